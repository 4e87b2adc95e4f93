"""A study's runs by variant and seed, and the numbers that can be computed from them.

``StudyResults`` holds the axes of a study and the runs found for each variant; ``rows`` makes the
table of claims from it, figures draw it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fedast.records.compact import CompactRun
from fedast.records.run import TaskResult
from fedast.reproduce.claims import Claim

Key: TypeAlias = tuple[str, ...]
"""A variant: a label for each axis."""
Columns: TypeAlias = Literal[1, 2]
"""Of a paper, that a figure is as wide as."""
Role: TypeAlias = Literal["panel", "x", "series"]


@dataclass(frozen=True)
class Axis:
    name: str
    role: Role
    labels: tuple[str, ...]
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels that the paper chose, and the panels in which a star marks them."""


class Missing(Exception):
    """A measure needs runs that have not been made."""


class Unreached(Exception):
    """The runs have been made, but did not reach what is to be measured."""

    def __init__(self, problem: str, *variants: Key) -> None:
        super().__init__(problem)
        self.variants = variants


@dataclass(frozen=True)
class StudyResults:
    name: str
    title: str
    where: str
    says: str
    axes: tuple[Axis, ...]
    runs: Mapping[Key, Mapping[int, CompactRun]]
    """By variant and seed."""
    folders: Mapping[Key, str]
    """The folder of each variant's runs, relative to the results folder."""
    targets: Mapping[Key, Mapping[str, float | None]]
    claims: tuple[Claim, ...]
    per_run: Literal["last", "mean"]
    baseline: str
    seeds: int
    figures: tuple[str, ...]
    count: tuple[int, int] = (0, 0)
    """Runs made, runs planned; one that several variants share counts once."""
    source: str = ""
    """The study's name on the command line: its name, or its file."""
    settings: tuple[str, ...] = ()
    comparable: bool = True
    """Whether the runs have the paper's scale, so that its numbers can be compared at all."""
    criterion: Literal["first", "held"] = "first"
    """Whether a task is done at its first evaluation at the target, or when it is held."""
    disclaimer: str = ""
    """Printed on the figures if their labels name data that was not used."""
    algorithms: Mapping[Key, str] = field(default_factory=dict)
    """The name of each variant's algorithm, where nothing has been run that says it."""
    columns: Columns = 2
    """How wide its figures are."""

    # --- finding runs ----------------------------------------------------------------------

    def axis(self, role: Role) -> Axis | None:
        return next((axis for axis in self.axes if axis.role == role), None)

    def labels(self, role: Role) -> tuple[str, ...]:
        axis = self.axis(role)
        return ("",) if axis is None else axis.labels

    def key(self, **by_role: str) -> Key:
        """The variant with these labels, by role; roles without an axis are ignored."""
        return tuple(by_role[axis.role] for axis in self.axes)

    def variant(self, labels: Mapping[str, str]) -> Key:
        """The variant with these labels by axis name; an axis with one value may be left out."""
        found = []
        for axis in self.axes:
            label = labels.get(axis.name, axis.labels[0] if len(axis.labels) == 1 else None)
            if label is None:
                raise Missing(f"no value for {axis.name}")
            found.append(label)
        return tuple(found)

    def runs_of(self, key: Key) -> list[CompactRun]:
        """A variant's runs by seed; ``Missing`` if there are none."""
        runs = [run for _, run in sorted(self.runs.get(key, {}).items())]
        if not runs:
            raise Missing(", ".join(key))
        return runs

    def common_seeds(self, keys: Sequence[Key]) -> set[int]:
        """The seeds that all these variants have been run with."""
        found = [set(self.runs.get(key, ())) for key in keys]
        for key, seeds in zip(keys, found, strict=True):
            if not seeds:
                raise Missing(", ".join(key))
        return set.intersection(*found)

    def algorithm(self, key: Key) -> str:
        """The name of a variant's algorithm; empty if nothing says it."""
        runs = self.runs.get(key)
        return next(iter(runs.values())).algorithm if runs else self.algorithms.get(key, "")

    # --- measures of runs ----------------------------------------------------------------------

    def times(self, key: Key, task: str | None = None) -> dict[int, float | None]:
        """By seed: a task's time to target, or the run's as ``per_run`` defines it."""
        self.runs_of(key)
        return {seed: self.time(run, task) for seed, run in sorted(self.runs[key].items())}

    def time(self, run: CompactRun, task: str | None = None) -> float | None:
        if task is not None:
            return self.done(run.tasks[task])
        times = [self.done(entry) for entry in run.tasks.values()]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return None
        return max(known) if self.per_run == "last" else statistics.fmean(known)

    def done(self, task: TaskResult) -> float | None:
        """When a task was done, by the study's criterion."""
        held = self.criterion == "held"
        return task.time_held if held else task.time_to_target

    def diverged(self, key: Key, task: str | None = None) -> int:
        """How many runs have a task (or this task) that diverged."""
        return sum(
            any(record.diverged for name, record in run.tasks.items() if task in (None, name))
            for run in self.runs_of(key)
        )

    def values(
        self, key: Key, of: Callable[[TaskResult], float | None], task: str | None = None
    ) -> dict[int, float]:
        """By seed, the mean over a run's tasks (or the value of one); runs without are left out."""
        self.runs_of(key)
        found = {}
        for seed, run in sorted(self.runs[key].items()):
            tasks = run.tasks.values() if task is None else [run.tasks[task]]
            values = [value for value in map(of, tasks) if value is not None]
            if len(values) == len(tasks):
                found[seed] = statistics.fmean(values)
        return found

    def at_least(self, key: Key, task: str | None = None) -> dict[int, float]:
        """By seed: the time to target, or the end of the run if the target was missed."""
        self.runs_of(key)
        return {seed: self._at_least(run, task) for seed, run in sorted(self.runs[key].items())}

    def _at_least(self, run: CompactRun, task: str | None) -> float:
        tasks = run.tasks.values() if task is None else [run.tasks[task]]
        times = [run.finish_time if time is None else time for time in map(self.done, tasks)]
        return max(times) if self.per_run == "last" else statistics.fmean(times)

    def gains(self, key: Key, over: Key, task: str | None = None) -> tuple[float, list[float]]:
        """The gain of the mean times in per cent, and the gain of each seed."""
        ours, theirs = self.times(key, task), self.times(over, task)
        pairs = [
            (a, b)
            for seed in sorted(ours.keys() & theirs.keys())
            if (a := ours[seed]) is not None and (b := theirs[seed]) is not None
        ]
        shared = ours.keys() & theirs.keys()
        if not shared:
            raise Missing("a common seed")
        if len(pairs) < len(shared):
            missed = len(shared) - len(pairs)
            raise Unreached(f"target not reached by {missed} of {len(shared)} seeds", key, over)
        mine, base = zip(*pairs, strict=True)
        gain = 100 * (1 - statistics.fmean(mine) / statistics.fmean(base))
        return gain, [100 * (1 - a / b) for a, b in pairs]
