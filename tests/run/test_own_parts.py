"""Parts of a user's own: the worked examples, from Python, from a file, under contract."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedast import Simulation, simulate
from fedast.cli.main import cli
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.records.run import read_run
from fedast.run.build import build_tasks
from fedast.run.checkpointing import Every
from fedast.run.execute import execute, resume
from fedast.testing import algorithm_contract, delay_contract

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))

NAMES = ("own-algorithm", "own-assignment", "own-delay")


def example(name: str) -> Any:
    return importlib.import_module(name.replace("-", "_"))


def part(name: str) -> dict[str, Any]:
    """What the file configures, as Python arguments."""
    module = example(name)
    world = Simulation(clients=30, max_time=60.0)
    match name:
        case "own-algorithm":
            return {"algorithm": module.FedAsync, "simulation": world}
        case "own-assignment":
            return {"algorithm": module.SyncByLoss(power=0.5, first_k=3), "simulation": world}
        case _:
            delay = module.Weibull(shape=0.7)
            return {
                "algorithm": "fedast-s",
                "simulation": world.model_copy(update={"delay": delay}),
            }


TestOwnAlgorithm = algorithm_contract(example("own-algorithm").FedAsync)
TestOwnAssignment = algorithm_contract(example("own-assignment").SyncByLoss(first_k=2))
TestOwnDelay = delay_contract(example("own-delay").Weibull(shape=0.5))


@pytest.mark.parametrize("name", NAMES)
def test_from_python(name: str) -> None:
    config = resolve(load(EXAMPLES / f"{name}.toml"), EXAMPLES)
    outcome = simulate(build_tasks(config), seed=1, noted=True, **part(name))
    assert all(task.rounds > 0 for task in outcome.result.tasks.values())


@pytest.mark.parametrize("name", NAMES)
def test_from_a_file_with_records_and_again_from_its_own_configuration(
    name: str, tmp_path: Path
) -> None:
    config = resolve(load(EXAMPLES / f"{name}.toml"), EXAMPLES)
    execute(config, tmp_path / "a", events=True)
    kept = tmp_path / "a" / "config.toml"
    execute(resolve(load(kept), kept.parent), tmp_path / "b", events=True)
    for file in ("events.jsonl", "curves.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert read_run(tmp_path / "a").algorithm == config.algorithm.name


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_run_is_resumed_to_the_same_end(name: str, tmp_path: Path) -> None:
    config = resolve(load(EXAMPLES / f"{name}.toml"), EXAMPLES)
    execute(config, tmp_path / "whole", events=True)
    steps = iter(range(10**9))
    execute(
        config,
        tmp_path / "parts",
        events=True,
        every=Every.parse("5"),
        stop=lambda: next(steps) > 60,
    )
    resume(tmp_path / "parts")
    for file in ("events.jsonl", "curves.csv"):
        whole, parts = (tmp_path / which / file for which in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes()


def test_a_comparison_of_own_algorithms_in_processes(tmp_path: Path) -> None:
    files = [str(EXAMPLES / f"{name}.toml") for name in ("own-algorithm", "own-assignment")]
    arguments = ["compare", *files, "--seeds", "1", "--jobs", "2", "--out", str(tmp_path / "c")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "own-assignment" in done.output
    assert (tmp_path / "c" / "comparison.json").is_file()


def test_an_algorithm_fits_into_80_lines() -> None:
    text = (EXAMPLES / "own_algorithm.py").read_text()
    body = text[text.index("class FedAsync") : text.index("if __name__")]
    assert len(body.strip().splitlines()) < 80
