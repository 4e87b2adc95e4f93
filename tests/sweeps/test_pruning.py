"""Pruning never stops the winner: a sweep over made-up runs, in any order of events."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fedast.config.schema import Compute
from fedast.records.metrics import Point
from fedast.records.run import RunResult, TaskResult
from fedast.run.batch import BatchRun, Pulse
from fedast.sweeps.conduct import Unwatched
from fedast.sweeps.run import SweepOutcome, run_sweep
from fedast.sweeps.sweep import check_points, load_sweep

TASK = "digits-mlp"
LIMIT = 100.0


def swept(trials: int, seeds: int, **more: Any) -> dict[str, Any]:
    return {
        "base": {"tasks": [{"use": TASK}], "simulation": {"clients": 10, "max_time": LIMIT}},
        "search": {"tasks.*.client_lr": [round(0.01 * (1 + n), 2) for n in range(trials)]},
        "seeds": seeds,
        **more,
    }


def result(time: float | None, now: float, curve: Iterable[Point] = ()) -> RunResult:
    over = time is not None and now >= time
    reason = "target" if over else "time" if now >= LIMIT else "interrupted"
    points = tuple(point for point in curve if point.time <= now)
    final = points[-1].value if points else None
    reached = time if over else None
    task = TaskResult("accuracy", reached, final, None, 1, 1, 0.0, 0, reason, curve=points)
    ends = time if over and time is not None else now
    return RunResult("fedast-d", 1, {TASK: task}, ends, 1.0, 1.0)


class Played:
    """An executor whose runs are made up: ``times`` by trial and seed, None for a missed target.

    ``draw`` decides which run goes on next, and how far.
    """

    def __init__(
        self,
        times: list[list[float | None]],
        draw: Callable[[int], int],
        curves: list[list[list[Point]]] | None = None,
    ) -> None:
        self._times = times
        self._draw = draw
        self._curves = curves
        self.stopped: set[int] = set()

    def __call__(
        self,
        runs: Iterable[BatchRun],
        *,
        jobs: int,
        progress: Callable[[Pulse], None] = lambda pulse: None,
        done: Callable[[int, RunResult, Compute], None] = lambda number, result, compute: None,
        prune: Callable[[int], bool] = lambda number: False,
        **options: Any,
    ) -> list[RunResult]:
        coming, count, left = iter(runs), 0, True
        now: dict[int, float] = {}
        which: dict[int, tuple[int, int]] = {}
        while left or now:
            while left and len(now) < jobs:
                run = next(coming, None)
                if run is None:
                    left = False
                    break
                assert run.out is not None
                trial = int(run.out.parent.name.removeprefix("trial-"))
                which[count] = trial, int(run.out.name.removeprefix("seed-")) - 1
                now[count] = 0.0
                count += 1
            if not now:
                break
            number = sorted(now)[self._draw(len(now))]
            trial, seed = which[number]
            time = self._times[trial][seed]
            end = LIMIT if time is None else time
            now[number] = min(end, now[number] + 1.0 + self._draw(40))
            curve = [] if self._curves is None else self._curves[trial][seed]
            seen = [point.value for point in curve if point.time <= now[number]]
            over = now[number] >= end
            reached = (time if over else None,)
            latest = seen[-1] if seen else None
            progress(Pulse(number, now[number], 1, int(over), ((TASK, latest),), reached))
            if over or prune(number):
                if not over:
                    self.stopped.add(trial)
                done(number, result(time, now.pop(number), curve), Compute())
        return []


def carried_out(table: dict[str, Any], played: Played, jobs: int) -> SweepOutcome:
    sweep = load_sweep(table)
    with tempfile.TemporaryDirectory() as place:
        return run_sweep(
            sweep, check_points(sweep), Path(place), jobs=jobs, executor=played, watcher=Unwatched()
        )


TIME = st.one_of(st.none(), st.floats(1.0, 90.0), st.sampled_from([10.0, 20.0, 30.0]))


@settings(max_examples=30)
@given(st.data())
def test_the_exact_rule_never_stops_a_winner(data: st.DataObject) -> None:
    seeds = data.draw(st.integers(1, 3))
    times = data.draw(
        st.lists(st.lists(TIME, min_size=seeds, max_size=seeds), min_size=2, max_size=6)
    )
    objective = data.draw(st.sampled_from(["finish_time", "time_to_target"]))
    played = Played(times, lambda n: data.draw(st.integers(0, n - 1)))
    outcome = carried_out(
        swept(len(times), seeds, objective=objective), played, data.draw(st.integers(1, 4))
    )
    true = [None if None in t else statistics.fmean(v for v in t if v is not None) for t in times]
    reached = [value for value in true if value is not None]
    best = outcome.best
    assert (None if best is None else best.value) == (min(reached) if reached else None)
    for trial, value in zip(outcome.trials, true, strict=True):
        if value is not None and value == min(reached):
            assert trial.state == "complete"
            assert trial.value == value
        if trial.state == "pruned":
            assert value is None or value > min(reached)
            assert trial.bound is None or value is None or trial.bound <= value
        if trial.state == "missed":
            assert value is None


def test_it_does_stop_what_cannot_win() -> None:
    played = Played([[10.0], [80.0], [9.0]], lambda n: 0)
    outcome = carried_out(swept(3, 1), played, 1)
    assert [trial.state for trial in outcome.trials] == ["complete", "pruned", "complete"]
    assert played.stopped == {1}
    off = carried_out(swept(3, 1, prune="off"), Played([[10.0], [80.0], [9.0]], lambda n: 0), 1)
    assert [trial.state for trial in off.trials] == ["complete"] * 3


def test_the_median_rule_stops_what_falls_behind() -> None:
    def curve(slope: float) -> list[list[Point]]:
        return [[Point(float(t), t, slope * t, 0.0) for t in range(1, 90)]]

    curves = [curve(slope) for slope in (0.005, 0.006, 0.007, 0.002, 0.008)]
    times: list[list[float | None]] = [[90.0]] * 5
    table = swept(5, 1, objective="final", prune={"rule": "median", "trials": 3})
    outcome = carried_out(table, Played(times, lambda n: 0, curves), 1)
    assert [t.state for t in outcome.trials] == ["complete"] * 3 + ["pruned", "complete"]
    assert outcome.best is not None
    assert outcome.best.number == 4
    late = swept(5, 1, objective="final", prune={"rule": "median", "trials": 3, "after": 95})
    outcome = carried_out(late, Played(times, lambda n: 0, curves), 1)
    assert {t.state for t in outcome.trials} == {"complete"}
