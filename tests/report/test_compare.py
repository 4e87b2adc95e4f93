"""The numbers behind tables and figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedast.cli.tables import comparison_tables
from fedast.core.protocol import TaskSpec
from fedast.records.metrics import Point
from fedast.records.run import ALL_TASKS, RunResult, TaskResult
from fedast.report.compare import Summary, compare, mean_curve
from fedast.report.estimate import expected_finish


def result(algorithm: str, **times: float | None) -> RunResult:
    return RunResult(
        algorithm=algorithm,
        seed=1,
        tasks={
            name: TaskResult(
                "accuracy", time, 0.9, 0.1, 5, 10, 1.0, 2, "target",
                curve=(Point(0.0, 0, 0.1, 2.0), Point(time or 50.0, 5, 0.9, 0.1)),
            )
            for name, time in times.items()
        },
        finish_time=1.0,
        wall_seconds=1.0,
        updates_per_second=1.0,
    )  # fmt: skip


RUNS = {
    "ours": [result("fedast-d", a=10.0, b=40.0), result("fedast-d", a=20.0, b=60.0)],
    "theirs": [result("sync-st", a=50.0, b=80.0), result("sync-st", a=30.0, b=120.0)],
    "weak": [result("fedast-nobuffer", a=10.0, b=None), result("fedast-nobuffer", a=10.0, b=5.0)],
}


def test_times_and_gains_by_hand() -> None:
    comparison = compare(RUNS, "theirs")
    ours = comparison.times["ours"]
    assert ours["a"] == Summary(2, 2, 15.0, 50.0**0.5)
    assert ours[ALL_TASKS].mean == 50.0, "the mean of 40 and 60"
    assert comparison.gain("ours") == pytest.approx((100 - 50) / 100)
    assert comparison.gain("ours", "a") == pytest.approx((40 - 15) / 40)
    assert comparison.gain("theirs") is None


def test_a_target_missed_once_gives_no_gain() -> None:
    comparison = compare(RUNS, "theirs")
    assert comparison.times["weak"]["b"] == Summary(1, 2, 5.0, None)
    assert comparison.gain("weak", "b") is None
    assert comparison.gain("weak", "a") == pytest.approx(0.75)


def test_a_baseline_that_is_there_at_once_gives_no_gain() -> None:
    runs = {"ours": [result("a", a=1.0)], "theirs": [result("b", a=0.0)]}
    assert compare(runs, "theirs").gain("ours") is None


def test_held_targets_are_compared_where_there_are_any() -> None:
    assert "held" not in compare(RUNS, "theirs").to_json()
    assert len(comparison_tables(compare(RUNS, "theirs"))) == 1
    runs = {
        label: [with_held(run, 1.5 if label == "ours" else 2.0) for run in found]
        for label, found in RUNS.items()
        if label != "weak"
    }
    comparison = compare(runs, "theirs")
    assert comparison.held["ours"][ALL_TASKS].mean == 75.0, "the mean of 1.5 times 40 and 60"
    assert comparison.gain("ours", held=True) == pytest.approx((200 - 75) / 200)
    assert comparison.to_json()["held"]["ours"]["a"]["mean"] == 22.5
    first, second = comparison_tables(comparison)
    assert "held" in str(second.title)
    assert "held" not in str(first.title)
    cells = [next(iter(column.cells)) for column in second.columns]
    assert cells == ["ours", "22.5 ± 10.6", "75.0 ± 21.2", "75.0 ± 21.2", "62.5 %"]


def with_held(run: RunResult, factor: float) -> RunResult:
    tasks = {
        name: replace(task, time_held=factor * (task.time_to_target or 0.0))
        for name, task in run.tasks.items()
    }
    return replace(run, tasks=tasks)


def test_mean_curve_interpolates_and_holds_the_end() -> None:
    curve = mean_curve(
        [
            [[Point(0, 0, 0.0, 1), Point(10, 1, 1.0, 1)]],
            [[Point(0, 0, 0.0, 1), Point(5, 1, 0.8, 1)]],
        ],
        samples=3,
    )
    assert list(curve.time) == [0.0, 5.0, 10.0]
    assert curve.mean == pytest.approx([0.0, 0.65, 0.9])
    assert curve.low == pytest.approx([0.0, 0.5, 0.8])
    assert curve.high == pytest.approx([0.0, 0.8, 1.0])


def points(*values: float) -> list[Point]:
    return [Point(10.0 * i, 4 * i, value, 1.0) for i, value in enumerate(values)]


def test_expected_finish() -> None:
    spec = TaskSpec("a", target=0.9)
    assert expected_finish(points(0.1, 0.3, 0.5), spec, None) == pytest.approx(40.0)
    assert expected_finish(points(0.1, 0.3, 0.5), spec, limit=35.0) == 35.0
    assert expected_finish(points(0.5, 0.4, 0.3), spec, None) is None, "it moves away"
    assert expected_finish(points(0.1), spec, None) is None
    assert expected_finish(points(0.1, 0.1), TaskSpec("a", max_rounds=20), None) == 50.0
    falling = TaskSpec("a", target=0.1, higher_is_better=False)
    assert expected_finish(points(0.5, 0.4, 0.3), falling, None) == pytest.approx(40.0)
