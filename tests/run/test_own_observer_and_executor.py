"""An observer and an executor of a user's own, from Python, a file and the command line."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedast import simulate
from fedast.cli.main import cli
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.core.protocol import ClientId, Command, Evaluated, Observer, RequestId
from fedast.records.observers import Log, ObserverOptions, Watched
from fedast.run.batch import run_batch
from fedast.run.build import build_tasks
from fedast.run.execute import execute
from fedast.run.executors import Executor, ExecutorOptions

QUICK = Path(__file__).parents[2] / "examples" / "quickstart.toml"
SHORT = (
    "simulation.max_time=5.0",
    "simulation.clients=20",
    "compute.device=cpu",
    "compute.trainer=serial",
    "algorithm.requests=12",
)
USED: list[int] = []


class Tracker:
    def __init__(self, file: Any) -> None:
        self._file = file

    def commanded(self, now: float, command: Command) -> None:
        pass

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        self._file.write(json.dumps([now, event.task, event.metric]) + "\n")


class TrackerOptions(ObserverOptions):
    """Writes evaluations beside the records."""

    file: str = "tracker.jsonl"

    def build(self, run: Watched) -> Observer:
        place = run.folder or Path()
        return Tracker(run.cleanup.enter_context((place / self.file).open("w", encoding="utf-8")))


class Counting(ExecutorOptions):
    """Carries runs out here, and counts them."""

    def build(self) -> Executor:
        def executor(runs: Any, **options: Any) -> Any:
            USED.append(len(runs))
            return run_batch(runs, **options)

        return executor


def test_an_observer_from_a_file(tmp_path: Path) -> None:
    named = f"observers=[{{name='{__name__}:TrackerOptions', file='mine.jsonl'}}]"
    config = resolve(load(QUICK, (*SHORT, named)), QUICK.parent)
    outcome = execute(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "mine.jsonl").read_text().splitlines()]
    curve = outcome.curves["synthetic"]
    assert [row[2] for row in rows if row[1] == "synthetic"] == [point.value for point in curve]
    again = load(tmp_path / "run" / "config.toml")
    assert again.observers == config.observers


def test_an_observer_from_python(caplog: pytest.LogCaptureFixture) -> None:
    config = resolve(load(QUICK, SHORT), QUICK.parent)
    with caplog.at_level(logging.INFO, "fedast.run"):
        simulate(
            build_tasks(config),
            config.algorithm,
            config.simulation,
            compute=config.compute,
            observers=[Log()],
            noted=True,
        )
    assert any("accuracy" in message for message in caplog.messages)
    assert any("finished" in message for message in caplog.messages)


def test_an_executor_on_the_command_line(tmp_path: Path) -> None:
    USED.clear()
    settings = [part for setting in SHORT for part in ("--set", setting)]
    on = ["--on", f"{__name__}:Counting", "--seeds", "2", "--out", str(tmp_path / "c")]
    done = CliRunner().invoke(cli, ["compare", str(QUICK), *settings, *on])
    assert done.exit_code == 0, done.output
    assert USED == [2]
    wrong = CliRunner().invoke(cli, ["compare", str(QUICK), "--on", "cloud"])
    assert wrong.exit_code == 2
    assert "unknown value 'cloud'" in wrong.output
