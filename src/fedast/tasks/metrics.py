"""What is measured on a test set, and which direction is better. (Torch is imported lazily.)"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Metric:
    """A sum over test samples and a final step, so that it can be computed batch by batch.

    ``per_batch`` maps (outputs, labels) to a sum over the batch, None to use
    the loss; ``finish`` maps the mean over all samples to the metric.
    """

    name: str
    higher_is_better: bool
    default_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    per_batch: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None
    finish: Callable[[float], float]


def _correct(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(dim=1) == labels).sum()


def _squares(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return ((outputs.reshape(labels.shape) - labels) ** 2).reshape(len(labels), -1).mean(1).sum()


def _exp(mean: float) -> float:
    return math.exp(mean) if mean < 700.0 else math.inf


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    return functional.cross_entropy(outputs, labels)


def mean_square(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Outputs take the labels' shape first: (n, 1) and (n,) must not broadcast to (n, n)."""
    return ((outputs.reshape(labels.shape) - labels) ** 2).mean()


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", True, cross_entropy, _correct, float),
        Metric("rmse", False, mean_square, _squares, math.sqrt),
        Metric("perplexity", False, cross_entropy, None, _exp),
    )
}
