"""Parameters, samplers and objectives: what needs no runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedast.parts.errors import ConfigError
from fedast.records.sweeps import Trial
from fedast.sweeps.optuna import Optuna
from fedast.sweeps.samplers import Grid, Random, Sampler
from fedast.sweeps.space import Range, parameters_of
from fedast.sweeps.sweep import check_points, load_sweep

QUICK = str(Path(__file__).parents[2] / "examples" / "quickstart.toml")


def points(sampler: Sampler) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while (point := sampler.ask(len(found))) is not None:
        found.append(point)
    return found


def test_keys_may_be_nested_or_quoted() -> None:
    search = {
        "algorithm": {"server_lr": [0.1, 0.4]},
        "simulation": {"delay": {"low": [1.0, 2.0], "high": [3.0]}},
        "tasks.*.client_lr": {"low": 0.001, "high": 1.0, "log": True, "points": 4},
        "algorithm.requests": {"low": 8, "high": 32, "step": 8},
    }
    space = parameters_of(search)
    assert {p.name: list(p.grid()) for p in space} == {
        "algorithm.server_lr": [0.1, 0.4],
        "simulation.delay.low": [1.0, 2.0],
        "simulation.delay.high": [3.0],
        "tasks.*.client_lr": [0.001, 0.01, 0.1, 1.0],
        "algorithm.requests": [8, 16, 24, 32],
    }
    assert Grid().count(space) == 64 == len(points(Grid().build(space, "minimize")))


def test_random_points_follow_from_the_seed_and_stay_inside() -> None:
    space = parameters_of(
        {"a": {"low": 0.01, "high": 10.0, "log": True}, "b": {"low": 1, "high": 6}, "c": ["x", "y"]}
    )
    first = points(Random(trials=200, seed=3).build(space, "minimize"))
    assert first == points(Random(trials=200, seed=3).build(space, "maximize"))
    assert first[:50] == points(Random(trials=50, seed=3).build(space, "minimize"))
    assert first != points(Random(trials=200, seed=4).build(space, "minimize"))
    assert all(0.01 <= p["a"] <= 10 for p in first)
    assert {p["b"] for p in first} == {1, 2, 3, 4, 5, 6}
    assert sum(p["a"] < 0.3 for p in first) in range(70, 130), "half of a log range"
    # No point twice: two parameters with three and two values have six.
    few = parameters_of({"b": {"low": 1, "high": 3}, "c": ["x", "y"]})
    assert len(points(Random(trials=50).build(few, "minimize"))) == 6


def test_optuna_learns_and_goes_on_with_what_was_learned() -> None:
    space = parameters_of(
        {"lr": {"low": 0.001, "high": 1.0, "log": True}, "part": [{"name": "a"}, {"name": "b"}]}
    )

    def value(point: dict[str, Any]) -> float:
        return float(abs(point["lr"] - 0.1) + (0.2 if point["part"]["name"] == "b" else 0))

    def play(sampler: Sampler, start: int, count: int) -> list[Trial]:
        done = []
        for number in range(start, count):
            point = sampler.ask(number)
            assert point is not None
            sampler.tell(Trial(number, "running", point))
            state, found = ("pruned", None) if point["lr"] > 0.6 else ("complete", value(point))
            trial = Trial(number, state, point, value=found, bound=2.0)  # type: ignore[arg-type]
            sampler.tell(trial)
            done.append(trial)
        return done

    options = Optuna(trials=40, startup=8, seed=1)
    whole = play(options.build(space, "minimize"), 0, 40)
    early, late = 0.0, 0.0
    for seed in range(5):
        values = [
            value(dict(trial.parameters))
            for trial in play(Optuna(trials=40, seed=seed).build(space, "minimize"), 0, 40)
        ]
        early, late = early + sum(values[:10]), late + sum(values[-10:])
    assert late < 0.85 * early
    again = options.build(space, "minimize")
    for trial in whole[:15]:
        again.tell(trial)
    assert play(again, 15, 40) == whole[15:]
    assert options.build(space, "minimize").ask(40) is None
    # A trial that was under way keeps its point, and is told like the others.
    third = options.build(space, "minimize")
    for trial in whole[:15]:
        third.tell(trial)
    third.tell(Trial(15, "running", whole[15].parameters))
    third.tell(whole[15])
    assert play(third, 16, 40) == whole[16:]


def test_a_grid_needs_values() -> None:
    with pytest.raises(ConfigError, match=r"search.a: a grid needs a list of values, or points"):
        points(Grid().build([Range("a", 0.0, 1.0, whole=False)], "minimize"))


def swept(**table: Any) -> Any:
    return {"extends": QUICK, "search": {"algorithm.server_lr": [0.1, 0.4]}, **table}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (swept(search={}), "search: there is nothing to vary"),
        (swept(search={"algorithm.server_lr": []}), "the list is empty"),
        (swept(search={"algorithm.server_lr": 0.1}), "expected a list of values or a table"),
        (swept(search={"algorithm.server_rl": [1]}), "did you mean 'server_lr'"),
        (swept(search={"algorithm.server_lr": [0.1, -1.0]}), "search.algorithm.server_lr: -1: "),
        (swept(search={"tasks.mnist.client_lr": [0.1]}), "there is no task 'mnist'"),
        (swept(search={"each.client_lr": [0.1]}), "use tasks.*.client_lr instead"),
        (swept(search={"seed": [1, 2]}), "use seeds for their number"),
        (swept(search={"algorithm.server_lr": {"low": 1.0, "high": 0.1}}), "low must be below"),
        (swept(search={"algorithm.ratio": {"low": 0, "high": 9, "log": True}}), "log needs"),
        (swept(search={"algorithm.server_lr": {"low": 0.1}}), "high: is missing"),
        (swept(search={"algorithm.server_lr": {"low": 0.1, "hihg": 1.0}}), "did you mean 'high'"),
        (swept(search={"algorithm.server_lr": [0.1, 0.1]}), "0.1 is there twice"),
        (swept(sampler="gird"), "did you mean 'grid'"),
        (swept(sampler={"name": "random", "trails": 3}), "did you mean 'trials'"),
        (swept(objective="finishtime"), "did you mean 'finish_time'"),
        (swept(objective="tasks.mnist.final"), "there is no task 'mnist'"),
        (swept(objective={"value": "final", "direction": "up"}), "objective.direction"),
        (swept(objective="final", prune="exact"), "the exact rule is for finish_time"),
        (swept(prune="median"), "the median rule is for the objective final"),
        (swept(base={"simulation": {"until": "time"}}), "is the time limit of every run"),
        (swept(simulation={"clients": 3}), "write it under [base]"),
        (swept(sedes=3), "did you mean 'seeds'"),
        (swept(extends="nowhere.toml"), "nowhere.toml: cannot be read"),
        (swept(extends="heterogenous"), "there is no study 'heterogenous'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_points(load_sweep(table))
    assert words in str(caught.value)


def test_combinations_that_are_not_valid_are_told_apart_from_wrong_values() -> None:
    table = swept(search={"tasks.synthetic.requests": [4, 20], "tasks.synthetic.buffer": [3, 10]})
    checked = check_points(load_sweep(table))
    assert [point for point, _ in checked.invalid] == [
        {"tasks.synthetic.requests": 4, "tasks.synthetic.buffer": 10}
    ]


def test_axes_algorithms_and_every_task() -> None:
    table = swept(
        axes=[{"name": "size", "values": [
            {"label": "few", "set": {"simulation": {"clients": 40}}},
            {"label": "many", "set": {"simulation": {"clients": 60}}},
        ]}],
        search={"algorithm.name": ["fedast-s", "sync-st"], "tasks.*.client_lr": [0.05]},
        sampler="grid",
    )  # fmt: skip
    sweep = load_sweep(table, settings=["simulation.max_time=50"])
    assert sweep.trials == 4
    point = {"size": "many", "algorithm.name": "sync-st", "tasks.*.client_lr": 0.05}
    config = sweep.config(point, 7)
    assert config.seed == 7
    assert config.algorithm.name == "sync-st"
    assert config.algorithm.first_k == 8, "from the file's [algorithms.sync-st]"  # type: ignore[attr-defined]
    assert config.simulation.clients == 60
    assert config.simulation.max_time == 50
    assert [task.client_lr for task in config.tasks] == [0.05, 0.05]
    assert sweep.seeds == (1,), "the configuration's own seed"
