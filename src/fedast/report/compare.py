"""Compare runs of several algorithms: times to target, gains, mean curves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedast.records.metrics import Point
from fedast.records.run import ALL_TASKS, RunResult, TaskResult


@dataclass(frozen=True, slots=True)
class Summary:
    """Times to target over seeds; ``mean`` and ``deviation`` are over the runs that reached it."""

    reached: int
    runs: int
    mean: float | None
    deviation: float | None
    """Sample standard deviation; None with fewer than two values."""

    @classmethod
    def of(cls, times: Sequence[float | None]) -> Summary:
        found = [time for time in times if time is not None]
        return cls(
            reached=len(found),
            runs=len(times),
            mean=statistics.fmean(found) if found else None,
            deviation=statistics.stdev(found) if len(found) > 1 else None,
        )


@dataclass(frozen=True)
class Comparison:
    labels: tuple[str, ...]
    tasks: tuple[str, ...]
    baseline: str
    times: Mapping[str, Mapping[str, Summary]]
    """By label and task; ``ALL_TASKS`` is the time at which the last task reached its target."""
    held: Mapping[str, Mapping[str, Summary]] = field(default_factory=dict)
    """The same for targets that were held; empty if none was in any run."""

    def gain(self, label: str, task: str = ALL_TASKS, *, held: bool = False) -> float | None:
        """(T_baseline - T) / T_baseline; None if a run missed its target or T_baseline is zero."""
        times = self.held if held else self.times
        ours, theirs = times[label][task], times[self.baseline][task]
        if label == self.baseline or ours.mean is None or theirs.mean is None:
            return None
        if ours.reached < ours.runs or theirs.reached < theirs.runs or theirs.mean == 0.0:
            return None
        return (theirs.mean - ours.mean) / theirs.mean

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline,
            "times": self._times_json(held=False),
            **({"held": self._times_json(held=True)} if self.held else {}),
        }

    def _times_json(self, *, held: bool) -> dict[str, Any]:
        return {
            label: {
                task: {
                    "reached": s.reached,
                    "runs": s.runs,
                    "mean": s.mean,
                    "deviation": s.deviation,
                    "gain": self.gain(label, task, held=held),
                }
                for task, s in row.items()
            }
            for label, row in (self.held if held else self.times).items()
        }


def compare(runs: Mapping[str, Sequence[RunResult]], baseline: str) -> Comparison:
    """Compare runs by label; every run has the same tasks."""
    tasks = tuple(next(iter(runs.values()))[0].tasks)
    every = [task for results in runs.values() for run in results for task in run.tasks.values()]
    any_held = any(task.time_held is not None for task in every)
    return Comparison(
        tuple(runs),
        tasks,
        baseline,
        _times(runs, tasks, lambda task: task.time_to_target),
        _times(runs, tasks, lambda task: task.time_held) if any_held else {},
    )


def _times(
    runs: Mapping[str, Sequence[RunResult]],
    tasks: Sequence[str],
    done: Callable[[TaskResult], float | None],
) -> dict[str, dict[str, Summary]]:
    return {
        label: {
            **{task: Summary.of([done(result.tasks[task]) for result in found]) for task in tasks},
            ALL_TASKS: Summary.of([_last([done(t) for t in r.tasks.values()]) for r in found]),
        }
        for label, found in runs.items()
    }


def _last(times: Sequence[float | None]) -> float | None:
    """When all are done; None if one is not."""
    found = [time for time in times if time is not None]
    return max(found) if found and len(found) == len(times) else None


@dataclass(frozen=True)
class MeanCurve:
    """A metric over simulated time: mean and extremes over seeds."""

    time: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def mean_curve(runs: Sequence[Sequence[Sequence[Point]]], samples: int = 200) -> MeanCurve:
    """The curves of each run on one time axis, up to the end of the longest.

    A run's curves (one, or those of its tasks) are averaged first; mean and extremes are over runs.
    Values between evaluations are interpolated linearly; a run that has finished keeps its last
    value.
    """
    end = max(curve[-1].time for run in runs for curve in run)
    time = np.linspace(0.0, end, samples)
    table = np.array([np.mean([_at(time, curve) for curve in run], axis=0) for run in runs])
    return MeanCurve(time, table.mean(axis=0), table.min(axis=0), table.max(axis=0))


def _at(time: npt.NDArray[np.float64], curve: Sequence[Point]) -> npt.NDArray[np.float64]:
    return np.interp(time, [point.time for point in curve], [point.value for point in curve])
