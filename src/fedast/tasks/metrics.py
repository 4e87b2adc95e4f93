"""What is measured on a test set, and which direction is better. (Torch is imported lazily.)

A metric is computed batch by batch: its function maps a batch's (outputs, labels) to a sum over the
samples, or to several sums, and ``finish`` makes the metric from their means over all samples.
F1, for instance, sums true positives, false positives and false negatives. What clients measure on
their own samples is pooled in the same way: from the means of all, weighted by their samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from fedast.parts.options import Options
from fedast.parts.registry import Registry

if TYPE_CHECKING:
    import torch

Loss: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
"""(outputs, labels) -> a scalar mean"""
Sums: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
"""(outputs, labels) -> a scalar or a vector of sums over the batch"""
Whole: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], object]"
"""(outputs, labels) of all samples, on the CPU -> a number"""


class MetricOptions(Options, ABC):
    """A metric. Records call it by its ``name``."""

    higher_is_better: ClassVar[bool] = True
    lowest: ClassVar[float] = -math.inf
    highest: ClassVar[float] = math.inf
    """What it can be. In a federated evaluation, an answer outside of this is refused."""

    def default_loss(self) -> Loss:
        """What a task is trained with that has this metric and no loss of its own."""
        return cross_entropy

    @abstractmethod
    def build(self) -> Sums | None:
        """The sums over a batch; None: the task's loss."""

    def finish(self, means: Sequence[float]) -> float:
        """The metric from the means of the sums over all samples."""
        return means[0]

    def whole(self) -> Whole | None:
        """What makes the metric of all outputs and labels at once, if no sums over batches do."""
        return None


class Accuracy(MetricOptions):
    """The part of the samples whose class is right."""

    name: ClassVar[str] = "accuracy"
    lowest = 0.0
    highest = 1.0

    def build(self) -> Sums:
        return _correct


class RMSE(MetricOptions):
    """Root of the mean squared error; lower is better."""

    name: ClassVar[str] = "rmse"
    higher_is_better = False
    lowest = 0.0

    def default_loss(self) -> Loss:
        return mean_square

    def build(self) -> Sums:
        return _squares

    def finish(self, means: Sequence[float]) -> float:
        return math.sqrt(means[0])


class Perplexity(MetricOptions):
    """The exponential of the loss; lower is better."""

    name: ClassVar[str] = "perplexity"
    higher_is_better = False
    lowest = 1.0

    def build(self) -> None:
        return None

    def finish(self, means: Sequence[float]) -> float:
        return math.exp(means[0]) if means[0] < 700.0 else math.inf


def _correct(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(dim=1) == labels).sum()


def _squares(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return ((outputs.reshape(labels.shape) - labels) ** 2).reshape(len(labels), -1).mean(1).sum()


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    return functional.cross_entropy(outputs, labels)


def mean_square(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Outputs take the labels' shape first: (n, 1) and (n,) must not broadcast to (n, n)."""
    return ((outputs.reshape(labels.shape) - labels) ** 2).mean()


def metric(
    function: Whole, *, name: str | None = None, higher_is_better: bool | None = None
) -> MetricOptions:
    """A metric from any function of (outputs, labels), which gets those of all samples at once.

    >>> from fedast import metric
    >>> def largest_error(outputs, labels):
    ...     return (outputs - labels).abs().max()
    >>> lower = metric(largest_error, higher_is_better=False)
    >>> lower.name, lower.higher_is_better
    ('largest_error', False)

    ``Task(metric=largest_error)`` takes the function itself; then higher is better, unless it has
    an attribute ``higher_is_better`` that says otherwise.
    """
    called = str(name or getattr(function, "__name__", type(function).__name__))
    if higher_is_better is None:
        higher_is_better = bool(getattr(function, "higher_is_better", True))

    class Own(MetricOptions):
        def build(self) -> None:
            return None

        def whole(self) -> Whole:
            return function

        def __reduce__(self) -> tuple[object, ...]:
            return partial(metric, name=called, higher_is_better=higher_is_better), (function,)

    Own.__doc__ = function.__doc__
    Own.name = called
    Own.higher_is_better = higher_is_better
    return Own()


def _from_function(name: str, function: Callable[..., object]) -> type[MetricOptions]:
    return type(metric(function))


METRICS: Registry[MetricOptions] = Registry(
    "metrics",
    MetricOptions,  # type: ignore[type-abstract]
    [__name__],
    adapt=_from_function,
)
