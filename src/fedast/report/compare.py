"""Compare runs of several algorithms: times to target, gains, mean curves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedast.records.metrics import Point
from fedast.records.run import ALL_TASKS, RunResult


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

    def gain(self, label: str, task: str = ALL_TASKS) -> float | None:
        """(T_baseline - T) / T_baseline; None if a run missed its target or T_baseline is zero."""
        ours, theirs = self.times[label][task], self.times[self.baseline][task]
        if label == self.baseline or ours.mean is None or theirs.mean is None:
            return None
        if ours.reached < ours.runs or theirs.reached < theirs.runs or theirs.mean == 0.0:
            return None
        return (theirs.mean - ours.mean) / theirs.mean

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline,
            "times": {
                label: {
                    task: {
                        "reached": s.reached,
                        "runs": s.runs,
                        "mean": s.mean,
                        "deviation": s.deviation,
                        "gain": self.gain(label, task),
                    }
                    for task, s in row.items()
                }
                for label, row in self.times.items()
            },
        }


def compare(runs: Mapping[str, Sequence[RunResult]], baseline: str) -> Comparison:
    """Compare runs by label; every run has the same tasks."""
    tasks = tuple(next(iter(runs.values()))[0].tasks)
    times = {}
    for label, results in runs.items():
        row = {
            task: Summary.of([result.tasks[task].time_to_target for result in results])
            for task in tasks
        }
        row[ALL_TASKS] = Summary.of([time_to_all(result) for result in results])
        times[label] = row
    return Comparison(tuple(runs), tasks, baseline, times)


def time_to_all(result: RunResult) -> float | None:
    times = [task.time_to_target for task in result.tasks.values()]
    found = [time for time in times if time is not None]
    return max(found) if found and len(found) == len(times) else None


@dataclass(frozen=True)
class MeanCurve:
    """A metric over simulated time: mean and extremes over seeds."""

    time: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def mean_curve(curves: Sequence[Sequence[Point]], samples: int = 200) -> MeanCurve:
    """Curves of several seeds on one time axis, up to the end of the longest.

    Values between evaluations are interpolated linearly; a run that has finished keeps its last
    value.
    """
    end = max(curve[-1].time for curve in curves)
    time = np.linspace(0.0, end, samples)
    rows = []
    for curve in curves:
        times = np.array([point.time for point in curve])
        values = np.array([point.value for point in curve])
        rows.append(np.interp(time, times, values))
    table = np.array(rows)
    return MeanCurve(time, table.mean(axis=0), table.min(axis=0), table.max(axis=0))
