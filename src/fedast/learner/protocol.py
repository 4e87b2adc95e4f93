"""What a driver asks of the data plane. No tensors cross this interface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, final

from fedast.core.protocol import RequestId, TaskName, Version


@dataclass(frozen=True, slots=True)
class Evaluation:
    metric: float
    loss: float
    means: tuple[float, ...] = field(default=(), compare=False)
    """What the metric was finished from, to pool it with what others measured."""
    raw: tuple[float, float] | None = None
    """Metric and loss of the newest model, if this is of an average and that was due, too."""
    more: tuple[float, ...] = ()
    """The task's further metrics."""


class Learner(Protocol):
    """Holds models and updates; trains, aggregates and evaluates on demand.

    An update's value depends only on what is known at ``dispatch``, so a
    learner is free to compute it at any time until it is first needed.
    """

    def dispatch(
        self, request: RequestId, task: TaskName, client: int, version: Version
    ) -> None: ...

    def accept(self, request: RequestId, task: TaskName) -> None:
        """The update is accepted: it enters the task's variance window."""
        ...

    def drop(self, request: RequestId, task: TaskName) -> None:
        """The update will not be aggregated."""
        ...

    def training_loss(self, request: RequestId, task: TaskName) -> float:
        """The client's mean training loss over the request's local steps."""
        ...

    def aggregate(
        self,
        task: TaskName,
        requests: tuple[RequestId, ...],
        weights: tuple[float, ...] | None = None,
    ) -> None:
        """Step the task's model by the mean of these (weighted) updates, to its next version."""
        ...

    def variance(self, task: TaskName) -> float:
        """The normalised variance of the task's latest accepted updates (eq. 2)."""
        ...

    def evaluate(self, task: TaskName) -> Evaluation:
        """How the task's newest model, or the average of its models, does on its test set."""
        ...


@final
class NoLearning:
    """A data plane that computes nothing, to benchmark or test the rest alone."""

    def dispatch(self, request: RequestId, task: TaskName, client: int, version: Version) -> None:
        pass

    def accept(self, request: RequestId, task: TaskName) -> None:
        pass

    def drop(self, request: RequestId, task: TaskName) -> None:
        pass

    def training_loss(self, request: RequestId, task: TaskName) -> float:
        return 0.0

    def aggregate(
        self,
        task: TaskName,
        requests: tuple[RequestId, ...],
        weights: tuple[float, ...] | None = None,
    ) -> None:
        pass

    def variance(self, task: TaskName) -> float:
        return 1.0

    def evaluate(self, task: TaskName) -> Evaluation:
        return Evaluation(metric=0.0, loss=0.0)
