"""A study's runs, by cell and seed, and what can be read off them.

A ``Chapter`` holds the axes of a study and the runs found for each cell; ``rows`` makes the table
from it, a number or a claim of the paper beside ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fedast.records.compact import CompactRun, TaskRecord

Key: TypeAlias = tuple[str, ...]
"""A label for each axis."""
Measure: TypeAlias = Literal[
    "time", "gain", "largest-gain", "growing-gain", "first", "last", "similar", "linear", "best",
    "fewer", "positive-gain", "falling-rounds", "equal-final", "higher-final", "best-final",
    "ceiling", "lower-loss", "steadier", "steadier-loss",
]  # fmt: skip
Role: TypeAlias = Literal["panel", "x", "series"]


@dataclass(frozen=True)
class Axis:
    name: str
    role: Role
    labels: tuple[str, ...]
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels with the paper's star, and in which panels."""


@dataclass(frozen=True)
class Claim:
    """A number or statement of the paper, and which of our runs speak to it."""

    what: str
    where: str
    measure: Measure
    at: Mapping[str, str]
    over: Mapping[str, str]
    others: tuple[str, ...] = ()
    task: str | None = None
    along: str | None = None
    backwards: bool = False
    tolerance: float = 0.0
    paper: float | str | None = None
    paper_seeds: int = 3
    headline: bool = False


class Missing(Exception):
    """A measure needs runs that are not there."""


class Unreached(Exception):
    """The runs are there, but have not got to what is to be measured."""

    def __init__(self, said: str, *cells: Key) -> None:
        super().__init__(said)
        self.cells = cells


@dataclass(frozen=True)
class Chapter:
    name: str
    title: str
    where: str
    says: str
    axes: tuple[Axis, ...]
    runs: Mapping[Key, Mapping[int, CompactRun]]
    """By cell and seed."""
    places: Mapping[Key, str]
    """The folder of each cell's runs, relative to the results'."""
    targets: Mapping[Key, Mapping[str, float | None]]
    claims: tuple[Claim, ...]
    per_run: Literal["last", "mean"]
    baseline: str
    seeds: int
    figures: tuple[str, ...]
    count: tuple[int, int] = (0, 0)
    """Runs that are there, runs that there should be; one that several cells share is one."""
    source: str = ""
    """What the commands call it: its name, or its file."""
    settings: tuple[str, ...] = ()
    comparable: bool = True
    """Whether the runs are of the paper's scale, so that its numbers can be compared at all."""
    stamp: str = ""
    """What figures say of themselves, where labels name data that was not used."""

    # --- finding runs ----------------------------------------------------------------------

    def axis(self, role: Role) -> Axis | None:
        return next((axis for axis in self.axes if axis.role == role), None)

    def labels(self, role: Role) -> tuple[str, ...]:
        axis = self.axis(role)
        return ("",) if axis is None else axis.labels

    def key(self, **by_role: str) -> Key:
        """The cell with these labels, by role; axes that are not there are passed over."""
        return tuple(by_role[axis.role] for axis in self.axes)

    def cell(self, labels: Mapping[str, str]) -> Key:
        """The cell with these labels by axis name; an axis with one value may be left out."""
        found = []
        for axis in self.axes:
            label = labels.get(axis.name, axis.labels[0] if len(axis.labels) == 1 else None)
            if label is None:
                raise Missing(f"no value for {axis.name}")
            found.append(label)
        return tuple(found)

    def found(self, key: Key) -> list[CompactRun]:
        runs = [run for _, run in sorted(self.runs.get(key, {}).items())]
        if not runs:
            raise Missing(", ".join(key))
        return runs

    def common_seeds(self, keys: Sequence[Key]) -> set[int]:
        """Those that all these cells have been run with, so that like is compared with like."""
        found = [set(self.runs.get(key, ())) for key in keys]
        for key, seeds in zip(keys, found, strict=True):
            if not seeds:
                raise Missing(", ".join(key))
        return set.intersection(*found)

    # --- measures of runs ----------------------------------------------------------------------

    def times(self, key: Key, task: str | None = None) -> dict[int, float | None]:
        """By seed: a task's time to target, or the run's by the study's rule."""
        self.found(key)
        return {seed: self.time(run, task) for seed, run in sorted(self.runs[key].items())}

    def time(self, run: CompactRun, task: str | None = None) -> float | None:
        if task is not None:
            return run.tasks[task].result.time_to_target
        times = [entry.result.time_to_target for entry in run.tasks.values()]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return None
        return max(known) if self.per_run == "last" else statistics.fmean(known)

    def diverged(self, key: Key, task: str | None = None) -> int:
        """Runs in which a task (or that one) ended in numbers that are none."""
        return sum(
            any(record.diverged for name, record in run.tasks.items() if task in (None, name))
            for run in self.found(key)
        )

    def values(
        self, key: Key, of: Callable[[TaskRecord], float | None], task: str | None = None
    ) -> dict[int, float]:
        """By seed, the mean over a run's tasks (or that of one); only runs that have a value."""
        self.found(key)
        found = {}
        for seed, run in sorted(self.runs[key].items()):
            tasks = run.tasks.values() if task is None else [run.tasks[task]]
            values = [value for value in map(of, tasks) if value is not None]
            if len(values) == len(tasks):
                found[seed] = statistics.fmean(values)
        return found

    def at_least(self, key: Key, task: str | None = None) -> dict[int, float]:
        """By seed: the time to target, or where that was missed, the time until which it was."""
        self.found(key)
        return {seed: self._at_least(run, task) for seed, run in sorted(self.runs[key].items())}

    def _at_least(self, run: CompactRun, task: str | None) -> float:
        tasks = run.tasks.values() if task is None else [run.tasks[task]]
        times = [
            run.finish_time if time is None else time
            for time in (entry.result.time_to_target for entry in tasks)
        ]
        return max(times) if self.per_run == "last" else statistics.fmean(times)

    def gains(self, key: Key, over: Key, task: str | None = None) -> tuple[float, list[float]]:
        """The gain of the mean times in per cent, and those of the seeds one by one."""
        ours, theirs = self.times(key, task), self.times(over, task)
        pairs = [
            (a, b)
            for seed in sorted(ours.keys() & theirs.keys())
            if (a := ours[seed]) is not None and (b := theirs[seed]) is not None
        ]
        shared = ours.keys() & theirs.keys()
        if not shared:
            raise Missing("a seed that both have")
        if len(pairs) < len(shared):
            said = f"target not reached by {len(shared) - len(pairs)} of {len(shared)} seeds"
            raise Unreached(said, key, over)
        mine, base = zip(*pairs, strict=True)
        gain = 100 * (1 - statistics.fmean(mine) / statistics.fmean(base))
        return gain, [100 * (1 - a / b) for a, b in pairs]
