"""What is said of settings that defeat their own purpose."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedast import FedASTStatic, Simulation
from fedast.algorithms.asynchronous import Asynchronous
from fedast.algorithms.options import ALGORITHMS, AsyncOptions, SyncOptions
from fedast.cli.loading import load_noted
from fedast.config.cautions import clients_per_round
from fedast.config.load import apply_settings, load, parse
from fedast.config.no_effect import notes, notes_of
from fedast.config.plan import plan
from fedast.config.resolve import resolve, settings_of
from fedast.core.protocol import (
    Dispatch,
    Evaluate,
    Evaluated,
    MeasureVariances,
    Started,
    UpdateArrived,
    VariancesMeasured,
)
from fedast.core.streams import Stream
from fedast.run.build import build_algorithm, build_pool, build_tasks
from fedast.run.execute import data_notes

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


D = "algorithm.name=fedast-d"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ((D, "algorithm.requests=24"), ""),  # by default it can
        ((D, "algorithm.requests=5"), ""),
        ((D, "algorithm.requests=2"), "in sum 2 of 2,"),
        ((D, "algorithm.requests=24", "algorithm.ratio=32.0"), "in sum 24 of 24,"),
        ((D, "algorithm.requests=24", "tasks.0.buffer=1", "tasks.1.buffer=1"), "in sum 24 of 24,"),
        ((D, "algorithm.requests=24", "tasks.0.buffer=1", "tasks.1.buffer=2"), ""),
        ((D, "algorithm.requests=24", "algorithm.ratio=12.0"), "in sum 24 of 24,"),
        ((D, "algorithm.requests=24", "algorithm.ratio=6.0"), ""),
        ((D, "algorithm.requests=16", "algorithm.ratio=8.0", "tasks.1.join_time=2.0"),
         "in sum 16 of 16,"),
        (("algorithm.name=fedast-s", "algorithm.requests=24", "algorithm.ratio=32.0"), ""),
        ((D, "tasks=[{use='synthetic'}]", "algorithm.ratio=32.0", "algorithm.requests=3"), ""),
    ],
)  # fmt: skip
def test_realloc_that_cannot_move_a_request(settings: tuple[str, ...], told: str) -> None:
    found = said(*settings)
    assert len(found) == bool(told), found
    assert all(
        told in line and line.startswith("algorithm.name: fedast-d works like fedast-s")
        for line in found
    )


@pytest.mark.parametrize("requests", [2, 4, 5, 7, 24, 80, 128, 384])
@pytest.mark.parametrize("apart", [1.0, 3.0])
def test_the_warning_is_true(requests: int, apart: float) -> None:
    """The extremes that Realloc can reach, with all of the variance at one task."""
    for ratio in ("", "algorithm.ratio=4.0", "algorithm.ratio=32.0"):
        table = tomllib.loads(BASE)
        settings = [D, f"algorithm.requests={requests}", *filter(None, [ratio])]
        apply_settings(table, [*settings, f"tasks.0.share={apart}", "algorithm.initial=shares"])
        config = resolve(parse(table))
        tasks = [settings_of(task, config) for task in config.tasks]
        specs = plan(tasks, config.algorithm, config.simulation)
        if min(spec.active_requests for spec in specs) < 1:
            continue
        logic = Asynchronous(specs, build_pool(config.simulation), Stream.of(0), variance_window=1,
                       period=1e-9)  # fmt: skip
        sent = [c for c in logic.handle(Started()) if isinstance(c, Dispatch)]
        moved: set[tuple[int, ...]] = {tuple(spec.active_requests for spec in specs)}
        for request in sent[:40]:
            for command in logic.handle(UpdateArrived(request.request, 1.0, 1.0)):
                if isinstance(command, MeasureVariances):
                    extreme = {name: float(name == "synthetic") for name in command.tasks}
                    logic.handle(VariancesMeasured(extreme))
                    moved.add(tuple(status.active_requests for status in logic.status()))
        stuck = [n for n in notes_of(parse(table)) if n.key == "algorithm.name"]
        assert (len(moved) == 1) is bool(stuck)


def test_the_default_ratio_is_the_papers_unless_buffers_would_be_too_small() -> None:
    def resolved(*settings: str) -> tuple[float | None, list[int | None]]:
        table = tomllib.loads(BASE)
        apply_settings(table, settings)
        config = resolve(parse(table))
        assert resolve(config) == config
        assert isinstance(config.algorithm, AsyncOptions)
        return config.algorithm.ratio, [task.buffer for task in config.tasks]

    assert resolved(D, "algorithm.requests=192") == (32.0, [3, 3])
    assert resolved(D, "algorithm.requests=128") == (32.0, [2, 2])
    assert resolved(D, "algorithm.requests=24") == (32.0, [2, 2])
    assert resolved(D, "algorithm.requests=25") == (32.0, [2, 2])
    # each task by its own requests: a small one does not change the others' buffers
    assert resolved(D, "algorithm.requests=304", "tasks.0.requests=300") == (32.0, [9, 2])
    assert resolved(D, "algorithm.requests=24", "tasks.0.buffer=3") == (32.0, [3, 2])
    assert resolved(D, "algorithm.requests=24", "algorithm.ratio=32.0") == (32.0, [1, 1])
    assert resolved(D, "algorithm.requests=24", "algorithm.ratio=4.0") == (4.0, [3, 3])
    assert resolved(D, "algorithm.requests=2") == (32.0, [1, 1])
    nobuffer = "algorithm.name=fedast-nobuffer"
    assert resolved(nobuffer, "algorithm.requests=24") == (32.0, [1, 1])
    table = tomllib.loads(BASE)
    apply_settings(table, (nobuffer, "algorithm.requests=48"))
    every = [task.evaluate_every for task in resolve(parse(table)).tasks]
    assert every == [3, 3], "4 R / 32, whatever buffers would be by default"
    # a median has at least the three updates that it needs
    assert resolved(D, "algorithm.requests=24", "tasks.0.aggregator=median") == (32.0, [3, 2])


@pytest.mark.parametrize("name", [n for n, kind in ALGORITHMS.builtin.items() if kind.synchronous])
@pytest.mark.parametrize("model", ["active_cap", "always"])
def test_clients_per_round_are_those_of_a_round(name: str, model: str) -> None:
    if name in ("centralized", "sync-ucb-st"):  # (its first round is for everyone)
        return
    table = tomllib.loads(BASE)
    settings = [f"algorithm.name={name}", f"simulation.availability={{model='{model}'}}"]
    apply_settings(table, [*settings, "tasks.0.share=2.0"])
    config = resolve(parse(table))
    algorithm = config.algorithm
    assert isinstance(algorithm, SyncOptions)
    tasks = [settings_of(task, config) for task in config.tasks]
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


FEDBUFF = "algorithm.name=fedbuff"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ((FEDBUFF,), ""),  # by default as many requests as clients may be active
        ((FEDBUFF, "algorithm.requests=30"), ""),
        ((FEDBUFF, "algorithm.requests=31"), "at most 30 can be active"),
        ((FEDBUFF, "algorithm.requests=31", "algorithm.idle=false"), ""),
        ((FEDBUFF, "simulation.availability={model='always'}", "algorithm.requests=100"), ""),
        (
            (FEDBUFF, "simulation.availability={model='always'}", "algorithm.requests=101"),
            "at most 100 can be active",
        ),
    ],
)
def test_fedbuff_with_more_requests_than_clients(settings: tuple[str, ...], told: str) -> None:
    found = said(*settings)
    assert (told in found[0]) if told else (found == [])


@pytest.mark.parametrize(
    "path", sorted(REPOSITORY.glob("examples/**/*.toml")), ids=lambda p: p.stem
)
def test_examples_follow_their_own_advice(path: Path) -> None:
    if "tasks" not in tomllib.loads(path.read_text()):
        return
    _, notes = load_noted(str(path), ())
    assert not [str(note) for note in notes if not note.idle]


def test_examples_that_are_compared_have_stragglers_to_leave_behind() -> None:
    demo = REPOSITORY / "src/fedast/run/demo.toml"
    for path in (demo, REPOSITORY / "examples/quickstart.toml"):
        assert not [n for n in notes_of(load(path, algorithm="sync-st")) if not n.idle]
    path = REPOSITORY / "examples/all-algorithms.toml"
    for name in ALGORITHMS.builtin:
        assert not [n for n in notes_of(load(path, algorithm=name)) if not n.idle]


def test_a_batch_larger_than_any_clients_data(tmp_path: Path) -> None:
    """Every batch would repeat samples. Of fedast's own tasks it is told once data is loaded."""
    path = tmp_path / "file.toml"
    path.write_text(BASE)
    config = resolve(load(path))
    assert data_notes(config) == []
    config = resolve(load(path, ["tasks.synthetic.batch_size=4000"]))
    (told,) = data_notes(config)
    assert told.startswith("warning: tasks.synthetic.batch_size: is 4000, but no client has more")
    config = resolve(load(path, ["tasks.synthetic.batch_size=4000"], algorithm="centralized"))
    assert data_notes(config) == []  # all data is in one place
    synthetic = build_tasks(resolve(load(path)))[1]
    large = synthetic.training.model_copy(update={"batch_size": 4000})
    asked = FedASTStatic(), Simulation(clients=100, max_time=9.0)
    assert notes([synthetic], *asked) == []
    (note,) = notes([replace(synthetic, training=large)], *asked)  # what simulate() warns of
    assert str(note) == told.removeprefix("warning: ")
