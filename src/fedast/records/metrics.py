"""An observer that keeps the numbers of ``result.json`` and the learning curves."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final

from fedast.core.protocol import (
    Accept,
    Aggregate,
    ClientId,
    Command,
    Dispatch,
    Evaluated,
    Finish,
    FinishReason,
    Reallocate,
    RequestId,
    TaskName,
    TaskSpec,
)

Model: TypeAlias = Literal["raw", "average"]
"""Which parameters were evaluated: the newest ones, or an average over rounds."""

HELD = 5
"""A target is held when the mean of so many evaluations is at it."""


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation: a point of a learning curve."""

    time: float
    round: int
    value: float
    """Of the task's metric; ``TaskResult.metric`` names it."""
    loss: float
    model: Model = "raw"

    @property
    def accuracy(self) -> float:
        """Deprecated: the metric need not be accuracy."""
        warnings.warn("Point.accuracy is now Point.value", DeprecationWarning, stacklevel=2)
        return self.value


@dataclass(slots=True)
class TaskMetrics:
    """A task's numbers so far; ``RunResult.of`` makes its ``TaskResult`` from them."""

    spec: TaskSpec
    rounds: int = 0
    updates: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    time_to_target: float | None = None
    time_held: float | None = None
    """Of the first evaluation at which the mean of the last ``HELD`` is at the target."""
    finish_time: float | None = None
    finish_reason: FinishReason | None = None
    curve: list[Point] = field(default_factory=list)
    """Of the model that decides: the newest, or an average."""
    raw_curve: list[Point] = field(default_factory=list)
    """Of the newest model, where an average decides; not at every evaluation."""
    more: list[tuple[float, ...]] = field(default_factory=list)
    """Of the task's further metrics, if it has any: as many as ``curve`` has points."""
    requests: list[tuple[float, int]] = field(default_factory=list)
    """Reallocations: the time, and the number of active requests from then on."""
    staleness: dict[int, int] = field(default_factory=dict)
    """How many updates counted, by their staleness."""

    @property
    def staleness_mean(self) -> float:
        return self.staleness_sum / self.updates if self.updates else 0.0


@final
class RunMetrics:
    def __init__(self, specs: Sequence[TaskSpec], averaged: Collection[TaskName] = ()) -> None:
        """``averaged``: tasks of which an average of the models is evaluated."""
        self._averaged = frozenset(averaged)
        self.tasks: Mapping[TaskName, TaskMetrics] = {
            spec.name: TaskMetrics(spec) for spec in specs
        }
        self.updates = 0
        self.reallocations = 0
        self.sent: dict[ClientId, int] = {}
        """Requests that each client was sent, of all tasks."""
        self.counted: dict[ClientId, int] = {}
        """Updates of each client that counted."""
        self.replayed = 0
        """How many of these come from the replay of an earlier, interrupted run."""
        self.now = 0.0

    def went_live(self) -> None:
        """The replay is over; from here on updates are new."""
        self.replayed = self.updates

    def enough(self) -> bool:
        """Whether every task has reached its target, or has ended without it."""
        return all(
            task.time_to_target is not None or task.finish_reason is not None
            for task in self.tasks.values()
        )

    def commanded(self, now: float, command: Command) -> None:
        self.now = now
        match command:
            case Dispatch():
                self.sent[command.client] = self.sent.get(command.client, 0) + 1
            case Accept() if command.counted:
                task, staleness = self.tasks[command.task], command.staleness
                self.updates += 1
                self.counted[command.client] = self.counted.get(command.client, 0) + 1
                task.updates += 1
                task.staleness_sum += staleness
                task.staleness[staleness] = task.staleness.get(staleness, 0) + 1
                if staleness > task.staleness_max:
                    task.staleness_max = staleness
            case Aggregate():
                self.tasks[command.task].rounds = command.round
            case Reallocate():
                self.reallocations += 1
                for name, target in command.targets.items():
                    self.tasks[name].requests.append((now, target))
            case Finish():
                self.tasks[command.task].finish_time = now
                self.tasks[command.task].finish_reason = command.reason
            case _:
                pass

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        task = self.tasks[event.task]
        model: Model = "average" if event.task in self._averaged else "raw"
        task.curve.append(Point(now, event.round, event.metric, event.loss, model))
        if event.more:
            task.more.append(event.more)
        if event.raw is not None:
            task.raw_curve.append(Point(now, event.round, *event.raw))
        sound = math.isfinite(event.metric) and math.isfinite(event.loss)
        if sound and task.time_to_target is None and task.spec.reached(event.metric):
            task.time_to_target = now
        last = [point.value for point in task.curve[-HELD:]]
        if (
            task.time_held is None
            and len(last) == HELD
            and all(map(math.isfinite, last))
            and task.spec.reached(math.fsum(last) / HELD)
        ):
            task.time_held = now
