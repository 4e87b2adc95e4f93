"""What is said of settings that defeat their own purpose."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedast.cli.running import load_noted
from fedast.core.protocol import Dispatch, Evaluate, Evaluated, Started
from fedast.experiments.build import build_algorithm, build_pool
from fedast.experiments.cautions import clients_per_round
from fedast.experiments.config import ALGORITHMS, SyncConfig
from fedast.experiments.load import apply_settings, load, parse
from fedast.experiments.notes import notes_of
from fedast.experiments.plan import plan
from fedast.experiments.resolve import outline, preset_of, resolve

REPOSITORY = Path(__file__).parents[2]

BASE = """
[simulation]
clients = 100
max_time = 9.0
[[tasks]]
use = "digits-mlp"
[[tasks]]
use = "synthetic"
"""


def said(*settings: str) -> list[str]:
    table = tomllib.loads(BASE)
    apply_settings(table, settings)
    return [str(note) for note in notes_of(parse(table)) if not note.idle]


SYNC = "algorithm.name=sync-st"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ((SYNC,), "with 15 clients a round for every task"),  # the default of 30, a cap of 30
        ((SYNC, "algorithm.first_k=15"), "is 15, but with 15 clients"),
        ((SYNC, "algorithm.first_k=14"), ""),
        ((SYNC, "algorithm.first_k=all"), ""),
        ((SYNC, "simulation.clients=1000"), ""),
        ((SYNC, "simulation.availability={model='active_cap', cap=62}"), ""),
        ((SYNC, "simulation.availability={model='bernoulli', p=0.5}"), "with 25 clients"),
        ((SYNC, "simulation.availability={model='bernoulli', p=0.7}"), ""),
        ((SYNC, "simulation.availability={model='always'}"), ""),
        ((SYNC, "simulation.availability={model='always'}", "tasks.0.share=3.0"),
         "with 25 clients a round for synthetic it"),
        ((SYNC, "algorithm.assignment=round-robin", "tasks.0.share=9.0",
          "simulation.availability={model='always'}"), ""),
        (("algorithm.name=sequential-fedavg", "algorithm.first_k=29"), ""),
        (("algorithm.name=sequential-fedavg", "algorithm.first_k=30"), "with 30 clients"),
        (("algorithm.name=sync-bayes-st", "simulation.availability={model='always'}",
          "algorithm.extra=60"), "with 20 clients"),
        (("algorithm.name=sync-ucb-st", "simulation.clients=210"), ""),
        (("algorithm.name=centralized",), ""),
    ],
)  # fmt: skip
def test_first_k_that_waits_for_all(settings: tuple[str, ...], told: str) -> None:
    found = said(*settings)
    assert len(found) == bool(told), found
    assert all(told in line and line.startswith("algorithm.first_k: is ") for line in found)


@pytest.mark.parametrize("name", [n for n, kind in ALGORITHMS.items() if kind.synchronous])
@pytest.mark.parametrize("model", ["active_cap", "always"])
def test_clients_per_round_are_those_of_a_round(name: str, model: str) -> None:
    if name in ("centralized", "sync-ucb-st"):  # (its first round is for everyone)
        return
    table = tomllib.loads(BASE)
    settings = [f"algorithm.name={name}", f"simulation.availability={{model='{model}'}}"]
    apply_settings(table, [*settings, "tasks.0.share=2.0"])
    config = resolve(parse(table))
    algorithm = config.algorithm
    assert isinstance(algorithm, SyncConfig)
    tasks = [outline(task, preset_of(task, config), True) for task in config.tasks]
    specs = plan(tasks, algorithm, config.simulation)
    logic = build_algorithm(algorithm, specs, build_pool(config.simulation), 0)
    commands = logic.handle(Started())
    for command in [c for c in commands if isinstance(c, Evaluate)]:
        commands += logic.handle(Evaluated(command.task, command.round, 0.0, 1.0))
    sent = [c.task for c in commands if isinstance(c, Dispatch)]
    sizes = clients_per_round(tasks, algorithm, config.simulation)
    for task, size in zip(tasks, sizes, strict=True):
        if name == "sequential-fedavg" and task is tasks[1]:
            assert sent.count(task.name) == 0  # its turn comes later
        else:
            assert size <= sent.count(task.name) <= size + 1


@pytest.mark.parametrize(
    "path", sorted(REPOSITORY.glob("examples/**/*.toml")), ids=lambda p: p.stem
)
def test_examples_follow_their_own_advice(path: Path) -> None:
    if "tasks" not in tomllib.loads(path.read_text()):
        return
    _, notes = load_noted(str(path), ())
    assert not [str(note) for note in notes if not note.idle]


def test_examples_that_are_compared_have_stragglers_to_leave_behind() -> None:
    demo = REPOSITORY / "src/fedast/experiments/demo.toml"
    for path in (demo, REPOSITORY / "examples/quickstart.toml"):
        assert not [n for n in notes_of(load(path, algorithm="sync-st")) if not n.idle]
    path = REPOSITORY / "examples/all-algorithms.toml"
    for name in ALGORITHMS:
        assert not [n for n in notes_of(load(path, algorithm=name)) if not n.idle]
