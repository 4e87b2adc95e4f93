"""What clients measured on their own samples, as one result.

The metric is finished from the pooled means, as on one set of samples: an RMSE of 0 and one of 2 on
equal parts make 1.41 together, not 1. A client's number of samples is a claim. It counts for no
more than what the server knows of the client's data, and for no more than twice the median of what
the others claim, so that no answer outweighs all the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

from fedast.tasks.metrics import MetricOptions

Pooling: TypeAlias = Literal["mean", "median"]
_MOST = 2.0
"""How much more than the median one client can weigh."""
_MAX_MEANS = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """What one client measured."""

    metric: float
    loss: float
    samples: int
    means: tuple[float, ...] | None = None
    """What the metric was finished from; clients of earlier versions do not say."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.metric) and math.isfinite(self.loss)


@dataclass(frozen=True, slots=True)
class Pooled:
    metric: float
    loss: float
    median_metric: float
    median_loss: float
    """Over the clients, each counted once: no single client can move these far."""
    averaged: bool = False
    """Metrics had to be averaged, because some client did not send what they are made of."""


def problem(answer: Answer, metric: MetricOptions) -> str | None:
    """Why an answer cannot be right, or None. One that is not finite can be: the model may have
    gone bad."""
    if answer.samples <= 0:
        return "it has no samples"
    if not answer.finite:
        return None
    if not metric.lowest <= answer.metric <= metric.highest:
        return f"its {metric.name} of {answer.metric:g} is not possible"
    if answer.means is not None:
        if len(answer.means) > _MAX_MEANS or not all(map(math.isfinite, answer.means)):
            return "what its metric is made of is not finite or too long"
        finished = _finished(metric, answer.means)
        if finished is None or not math.isclose(
            finished, answer.metric, rel_tol=1e-3, abs_tol=1e-6
        ):
            return f"its {metric.name} is not made of what it says"
    return None


def weights(samples: Sequence[int]) -> list[float]:
    """How much each answer counts, given the numbers of samples."""
    most = _MOST * median(samples)
    return [min(float(count), most) for count in samples]


def pool(answers: Collection[Answer], metric: MetricOptions, how: Pooling) -> Pooled:
    """One result. If most clients found that the model gives no finite numbers, it says so."""
    finite = [answer for answer in answers if answer.finite]
    if 2 * len(finite) < len(answers):
        return Pooled(math.nan, math.nan, math.nan, math.nan)
    middle = median(answer.metric for answer in finite)
    middle_loss = median(answer.loss for answer in finite)
    if how == "median":
        return Pooled(middle, middle_loss, middle, middle_loss)
    factors = weights([answer.samples for answer in finite])
    loss = _mean([answer.loss for answer in finite], factors)
    parts = [answer.means for answer in finite if answer.means is not None]
    pooled = None
    if len(parts) == len(finite) and len({len(part) for part in parts}) == 1:
        columns = zip(*parts, strict=True)
        pooled = _finished(metric, [_mean(column, factors) for column in columns])
    if pooled is not None:
        return Pooled(pooled, loss, middle, middle_loss)
    averaged = _mean([answer.metric for answer in finite], factors)
    return Pooled(averaged, loss, middle, middle_loss, averaged=True)


def _mean(values: Sequence[float], factors: Sequence[float]) -> float:
    total = math.fsum(factors)
    return math.fsum(v * (f / total) for v, f in zip(values, factors, strict=True))


def _finished(metric: MetricOptions, means: Sequence[float]) -> float | None:
    """The metric, if it can be made of these; it may be somebody's own code."""
    try:
        found = metric.finish(means)
    except (ArithmeticError, ValueError, LookupError, TypeError):
        return None
    return found if math.isfinite(found) else None
