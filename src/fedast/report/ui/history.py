"""What a run has recorded up to now, in columns: from ``series.jsonl``, or from ``events.jsonl`` of
a run that has no series.

Files are read from where the last reading ended, so a run that goes on costs only what is new. A
row that is not understood is skipped, as the records promise; how many there were is kept.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from fedast.report.ui.columns import number

SAMPLE = ("round", "in_flight", "requests", "buffered", "buffer", "updates", "staleness")
"""The columns of a task's samples; the staleness is the sum over all its updates so far."""


def _column() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Curve:
    """A task's evaluations."""

    t: array[float] = field(default_factory=_column)
    w: array[float] = field(default_factory=_column)
    round: array[float] = field(default_factory=_column)
    value: array[float] = field(default_factory=_column)
    loss: array[float] = field(default_factory=_column)
    model: str = "raw"

    def add(self, t: float, w: float, round_: float, value: float, loss: float) -> None:
        self.t.append(t)
        self.w.append(w)
        self.round.append(round_)
        self.value.append(value)
        self.loss.append(loss)


@dataclass(slots=True)
class Samples:
    """The state of a run at moments of its life; a task that was not there yet has NaN."""

    t: array[float] = field(default_factory=_column)
    w: array[float] = field(default_factory=_column)
    updates: array[float] = field(default_factory=_column)
    tasks: dict[str, dict[str, array[float]]] = field(default_factory=dict)

    def add(self, t: float, w: float, updates: float, tasks: Mapping[str, Sequence[Any]]) -> None:
        before = len(self.t)
        self.t.append(t)
        self.w.append(w)
        self.updates.append(updates)
        for name in tasks:
            if name not in self.tasks:
                self.tasks[name] = {key: array("d", [math.nan] * before) for key in SAMPLE}
        for name, columns in self.tasks.items():
            values = tasks.get(name, ())
            for place, key in enumerate(SAMPLE):
                columns[key].append(number(values[place]) if place < len(values) else math.nan)


@dataclass(frozen=True, slots=True)
class Reallocation:
    t: float
    w: float
    cause: str
    requests: Mapping[str, float]
    buffers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a moment: a task finished, the run was resumed."""

    t: float
    w: float
    what: str
    task: str | None = None


@final
class History:
    def __init__(self) -> None:
        self.header: Mapping[str, Any] = {}
        self.curves: dict[str, Curve] = {}
        self.samples = Samples()
        self.reallocations: list[Reallocation] = []
        self.finished: list[Mark] = []
        self.marks: list[Mark] = []
        self.staleness: dict[str, dict[int, int]] = {}
        """Counted updates of each task by their staleness."""
        self.sent: dict[int, int] = {}
        self.counted: dict[int, int] = {}
        """Requests sent and updates counted, by client."""
        self.spent: dict[str, float] = {}
        """Where the real time went, in seconds."""
        self.skipped = 0

    @property
    def now(self) -> float:
        """The latest time that something was recorded for."""
        ends = [curve.t[-1] for curve in self.curves.values() if curve.t]
        if self.samples.t:
            ends.append(self.samples.t[-1])
        return max(ends, default=math.nan)

    @property
    def updates(self) -> float:
        return self.samples.updates[-1] if self.samples.updates else math.nan

    @property
    def seconds(self) -> float:
        return self.samples.w[-1] if self.samples.w else math.nan

    @property
    def ended(self) -> bool:
        return bool(self.marks) and self.marks[-1].what in ("ended", "interrupted")

    def curve(self, task: str) -> Curve:
        return self.curves.setdefault(task, Curve())

    def add(self, row: Any) -> None:
        """A row of the series."""
        try:
            if isinstance(row, dict):
                self._add_header(row)
            else:
                self._add(row)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            self.skipped += 1

    def _add_header(self, row: Mapping[str, Any]) -> None:
        if "series" in row:
            self.header = dict(row)

    def _add(self, row: Sequence[Any]) -> None:
        kind, w, t = row[0], number(row[1]), number(row[2])
        if kind == "e":
            task, round_, model, value, loss = row[3:8]
            curve = self.curve(str(task))
            curve.model = str(model)
            curve.add(t, w, number(round_), number(value), number(loss))
        elif kind == "s":
            self.samples.add(t, w, number(row[3]), {str(k): list(v) for k, v in row[4].items()})
        elif kind == "r":
            self.reallocations.append(
                Reallocation(t, w, str(row[3]), _numbers(row[4]), _numbers(row[5]))
            )
        elif kind == "f":
            self.finished.append(Mark(t, w, str(row[4]), str(row[3])))
        elif kind == "h":
            self.staleness = {str(task): _counts(found) for task, found in row[3].items()}
            self.sent, self.counted = _counts(row[4]["sent"]), _counts(row[4]["counted"])
        elif kind == "p":
            self.spent = dict(_numbers(row[3]))
        elif kind == "x":
            self.marks.append(Mark(t, w, str(row[3])))


def _numbers(table: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): number(value) for name, value in table.items()}


def _counts(table: Mapping[str, Any]) -> dict[int, int]:
    return {int(name): int(value) for name, value in table.items()}


@final
class FromEvents:
    """Makes a history of events. There is no real time in them, so ``w`` is NaN."""

    def __init__(self, history: History, buffers: Mapping[str, float], every: int) -> None:
        """``buffers``: sizes at the beginning, by task; ``every``: updates between samples."""
        self._history = history
        self._every = every
        self._updates = 0
        self._tasks: dict[str, _Task] = {}
        self._buffers = dict(buffers)
        self._task_of: dict[int, str] = {}
        self._sent: Counter[int] = Counter()
        self._counted: Counter[int] = Counter()
        history.sent, history.counted = self._sent, self._counted

    def add(self, event: Mapping[str, Any]) -> None:
        try:
            self._add(float(event["t"]), event)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            self._history.skipped += 1

    def sample(self, t: float) -> None:
        rows = {name: task.row() for name, task in self._tasks.items()}
        self._history.samples.add(t, math.nan, self._updates, rows)

    def _task(self, name: str) -> _Task:
        if name not in self._tasks:
            self._tasks[name] = _Task(self._buffers.get(name, math.nan))
            self._history.staleness[name] = self._tasks[name].histogram
        return self._tasks[name]

    def _add(self, t: float, event: Mapping[str, Any]) -> None:
        history, kind = self._history, event["event"]
        if kind == "dispatch":
            self._task(event["task"]).in_flight += 1
            self._task_of[event["request"]] = event["task"]
            self._sent[event["client"]] += 1
        elif kind == "arrive":
            task = self._task(event["task"])
            self._task_of.pop(event["request"], None)
            task.arrived(int(event["staleness"]))
            self._counted[event["client"]] += 1
            self._updates += 1
            if self._updates % self._every == 0:
                self.sample(t)
        elif kind == "drop":
            task = self._task(event["task"])
            if self._task_of.pop(event["request"], None) is not None:
                task.in_flight -= 1
            elif event["reason"] == "stale":  # it had arrived, but did not count
                task.buffered = max(0, task.buffered - 1)
        elif kind == "aggregate":
            task = self._task(event["task"])
            task.round = int(event["round"])
            task.buffered = max(0, task.buffered - len(event["requests"]))
        elif kind == "evaluate":
            value = event["value"] if "value" in event else event["accuracy"]  # schema 1
            model, curve = event.get("model", "raw"), history.curve(event["task"])
            if model == "average" or curve.model != "average":  # where both are, that decides
                curve.model = model
                curve.add(t, math.nan, event["round"], number(value), number(event["loss"]))
        elif kind == "realloc":
            requests, buffers = _numbers(event["targets"]), _numbers(event["buffers"])
            history.reallocations.append(
                Reallocation(t, math.nan, str(event["cause"]), requests, buffers)
            )
            for name, value in requests.items():
                self._task(name).requests = value
            for name, value in buffers.items():
                self._task(name).buffer = value
        elif kind == "finish":
            history.finished.append(Mark(t, math.nan, str(event["reason"]), event["task"]))


@dataclass(slots=True)
class _Task:
    buffer: float
    round: int = 0
    in_flight: int = 0
    requests: float = math.nan
    buffered: int = 0
    updates: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    staleness: int = 0

    def arrived(self, staleness: int) -> None:
        self.in_flight -= 1
        self.buffered += 1
        self.updates += 1
        self.histogram[staleness] += 1
        self.staleness += staleness

    def row(self) -> tuple[float, ...]:
        return (
            self.round, self.in_flight, self.requests, self.buffered, self.buffer, self.updates,
            self.staleness,
        )  # fmt: skip
