"""Trackers of experiments: what they are sent, and that training goes on whatever they do."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from fedast.cli.main import cli
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError
from fedast.records.observers import OBSERVERS
from fedast.run.checkpointing import Every
from fedast.run.execute import execute, resume
from fedast.run.simulate import Outcome, simulate
from fedast.trackers.tracking import Row, Tracked, Tracker, TrackerOptions

QUICK = Path(__file__).parents[2] / "examples" / "quickstart.toml"
SHORT = (
    "simulation.max_time=12.0", "simulation.clients=20", "compute.device=cpu",
    "compute.trainer=serial", "algorithm.requests=12", "tasks.0.name='my digits'",
)  # fmt: skip
NAMES = ("tensorboard", "wandb", "mlflow", "trackio")
real = pytest.mark.trackers


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first MLflow database takes a while on a busy machine."""
    monkeypatch.setattr("fedast.trackers.tracking._PATIENCE", 300.0)


def config_of(*settings: str) -> RunConfig:
    return resolve(load(QUICK, (*SHORT, *settings)), QUICK.parent)


def after(steps: int) -> Callable[[], bool]:
    asked = iter(range(steps))
    return lambda: next(asked, None) is None


# --- without any tracker ----------------------------------------------------------------------


class FileTracker:
    def __init__(self, file: str) -> None:
        self._path = Path(file)

    def begin(self, run: Tracked) -> str:
        self._write({"begin": run.name, "known_as": run.known_as, **run.parameters})
        return "mine"

    def send(self, row: Row) -> None:
        self._write({"t": row.time, "step": row.step, **row.values})

    def end(self, *, interrupted: bool) -> None:
        self._write({"end": interrupted})

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class ToFile(TrackerOptions):
    """Appends to a file."""

    package: ClassVar[str] = "json"
    file: str

    def tracker(self) -> Tracker:
        return FileTracker(self.file)


class Unreachable(TrackerOptions):
    """Nobody answers there."""

    package: ClassVar[str] = "json"

    def tracker(self) -> Tracker:
        class Refused(FileTracker):
            def begin(self, run: Tracked) -> str:
                raise ConnectionError("nobody\nanswers")

        return Refused("")


def test_a_tracker_sees_every_evaluation_once_though_the_run_is_resumed(tmp_path: Path) -> None:
    file = tmp_path / "tracked.jsonl"
    config = config_of(f"track=[{{name='{__name__}:ToFile', file='{file}'}}]")
    assert [observer.name for observer in config.observers] == [f"{__name__}:ToFile"]
    execute(config, tmp_path / "run", every=Every.parse("1"), stop=after(40))
    outcome = resume(tmp_path / "run")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    begins = [line for line in lines if "begin" in line]
    assert [line["known_as"] for line in begins] == [None, "mine"]
    assert begins[0]["begin"] == "fedast-d-seed-1"
    assert begins[0]["algorithm.requests"] == 12
    assert begins[0]["simulation.clients"] == 20
    assert [line["end"] for line in lines if "end" in line] == [True, False]
    for name, curve in outcome.curves.items():
        key = f"{name}/accuracy"
        assert [(r["t"], r[key]) for r in lines if key in r] == [(p.time, p.value) for p in curve]
    last = lines[-2]
    for quantity in ("round", "requests", "buffer", "buffered", "staleness", "updates"):
        assert f"synthetic/{quantity}" in last
    assert last["updates"] == sum(task.updates for task in outcome.result.tasks.values())
    assert {"simulated_time", "real_time", "updates_per_second"} <= set(last)


def test_one_that_cannot_be_reached_costs_a_line_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = execute(config_of(), tmp_path / "plain")
    config = config_of(f"observers=['{__name__}:Unreachable']")
    with caplog.at_level(logging.WARNING, "fedast.run"):
        outcome = execute(config, tmp_path / "run")
    assert outcome.result.tasks == plain.result.tasks
    ended = f"tracking with {__name__}:Unreachable has ended (ConnectionError: nobody answers)"
    assert caplog.messages == [f"{ended}; training goes on"]


@pytest.mark.parametrize("name", NAMES)
def test_one_that_is_not_installed_is_one_line_before_anything_begins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedast.trackers.tracking.find_spec", lambda package: None)
    out = str(tmp_path / "run")
    line = f"{name} is not installed; pip install 'fedast[track-{name}]'"
    for arguments in (
        ["run", str(QUICK), "--track", name, "--out", out],
        ["run", str(QUICK), "--set", f"track=['{name}']", "--out", out],
        ["compare", str(QUICK), "--track", name, "--out", out],
    ):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 2
        assert line in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="is not installed"):
        simulate([], observers=[OBSERVERS.parse(name, "observers")])


def test_a_wrong_name_and_the_list() -> None:
    wrong = CliRunner().invoke(cli, ["run", str(QUICK), "--track", "mlflo"])
    assert wrong.exit_code == 2
    assert "--track: unknown value 'mlflo'; did you mean 'mlflow'" in wrong.stderr
    with pytest.raises(ConfigError, match=r"track: must be a list of names, such as"):
        load(QUICK, ("track='mlflow'",))
    listed = CliRunner().invoke(cli, ["list", "observers"])
    for name in NAMES:
        assert name in listed.output


# --- the real ones ----------------------------------------------------------------------------


def tracked_twice(name: str, folder: Path, *options: str) -> Outcome:
    """A run that is interrupted and taken up again."""
    wanted = ", ".join([f"name='{name}'", *options])
    execute(config_of(f"track=[{{{wanted}}}]"), folder, every=Every.parse("1"), stop=after(40))
    return resume(folder)


def check(outcome: Outcome, history: Callable[[str], list[tuple[float, float]]]) -> None:
    """``history``: steps and values of a metric, as the tracker's own reader reads them."""
    for name, curve in outcome.curves.items():
        for key, values in (
            ("accuracy", [point.value for point in curve]),
            ("loss", [point.loss for point in curve]),
        ):
            found = history(f"{name}/{key}")
            assert [step for step, _ in found] == [round(p.time * 1000) for p in curve], key
            assert [value for _, value in found] == pytest.approx(values, rel=1e-6)
        assert history(f"{name}/staleness")[-1][1] == pytest.approx(
            outcome.result.tasks[name].staleness_mean, rel=1e-6
        )
        for key in ("round", "requests", "buffer", "buffered", "updates"):
            assert history(f"{name}/{key}"), key
    times = [value for _, value in history("simulated_time")]
    assert times == sorted(times)
    assert history("real_time")
    assert history("updates_per_second")


@real
def test_tensorboard(tmp_path: Path) -> None:
    outcome = tracked_twice("tensorboard", tmp_path / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(
        str(tmp_path / "run" / "track" / "tensorboard"), size_guidance={"scalars": 0}
    )
    reader.Reload()
    check(outcome, lambda name: [(e.step, e.value) for e in reader.Scalars(name)])
    text = reader.Tensors("configuration/text_summary")
    assert len(text) == 1
    assert b"algorithm.requests | 12" in text[0].tensor_proto.string_val[0]


@real
def test_mlflow(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    outcome = tracked_twice("mlflow", tmp_path / "run", f"uri='{uri}'")
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("fedast")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1
    assert runs[0].info.status == "FINISHED"
    assert runs[0].data.params["algorithm.requests"] == "12"

    def history(name: str) -> list[tuple[float, float]]:
        found = client.get_metric_history(runs[0].info.run_id, name)
        return [(m.step, m.value) for m in sorted(found, key=lambda m: (m.step, m.timestamp))]

    check(outcome, history)


@real
def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "trackio" not in sys.modules, "it reads its folder when it is imported"
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    outcome = tracked_twice("trackio", tmp_path / "run")
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    runs = list(trackio.Api().runs("fedast"))
    assert len(runs) == 1
    assert runs[0].config["algorithm.requests"] == 12
    logs = SQLiteStorage.get_logs("fedast", runs[0].name, run_id=runs[0].id)
    check(outcome, lambda name: [(row["step"], row[name]) for row in logs if name in row])


def wandb_records(file: Path) -> Iterator[bytes]:
    """wandb has no reader in Python: a LevelDB log, with blocks of 32 KiB, after seven bytes."""
    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


@real
def test_wandb_offline(tmp_path: Path) -> None:
    outcome = tracked_twice("wandb", tmp_path / "run", "mode='offline'")
    from wandb.proto import wandb_internal_pb2

    rows: list[dict[str, Any]] = []
    configured: set[str] = set()
    files = sorted((tmp_path / "run" / "track").rglob("*.wandb"))
    assert len(files) == 2, "one for each part of the run"
    assert len({file.name for file in files}) == 1, "with the same id"
    for data in (data for file in files for data in wandb_records(file)):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = record.history.item
            rows.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in items})
        if record.HasField("run"):
            configured.update(item.key for item in record.run.config.update)
    assert "algorithm.requests" in configured
    check(
        outcome,
        lambda name: [(round(r["simulated_time"] * 1000), r[name]) for r in rows if name in r],
    )


@real
def test_a_server_that_nobody_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = config_of(f"track=[{{name='mlflow', uri='http://127.0.0.1:{port}'}}]")
    with caplog.at_level(logging.WARNING, "fedast.run"):
        outcome = execute(config, tmp_path / "run")
    assert not outcome.result.interrupted
    said = [m for m in caplog.messages if "tracking with mlflow has ended" in m]
    assert len(said) == 1


@real
def test_from_the_command_line_with_two_at_once(tmp_path: Path) -> None:
    settings = [part for setting in SHORT for part in ("--set", setting)]
    out = tmp_path / "runs"
    done = CliRunner().invoke(
        cli,
        ["compare", str(QUICK), *settings, "--seeds", "2", "--jobs", "2", "--out", str(out),
         "--track", "tensorboard", "--track", "tensorboard"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert len(list(out.rglob("events.out.tfevents*"))) == 2


def test_all_are_installed_where_they_are_tested() -> None:
    """``make trackers`` must not pass because there is nothing to test."""
    if Path(sys.prefix).name != ".venv-trackers" and "TRACKERS" not in os.environ:
        pytest.skip("in make trackers")
    assert all(find_spec(name) for name in NAMES)
