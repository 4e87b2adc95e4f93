"""Aggregators: from the updates of a round to one direction.

Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran, Bartlett:
"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
ICML 2018. Both are the mean of what is left of each coordinate's sorted values
when as many are cut off at either end; the median cuts off all but the middle.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from fedast.parts.options import Options
from fedast.parts.registry import Registry

if TYPE_CHECKING:
    import torch

Aggregator: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
"""From updates, one per row, to one direction."""


class AggregatorOptions(Options, ABC):
    """Options of an aggregator."""

    clip: Annotated[float, Field(gt=0)] | Literal["median"] | None = None
    """Longer updates are shortened to this norm, or to the median of the round's norms."""

    @property
    def min_updates(self) -> int:
        """The fewest updates in a round with which it does what its name says."""
        return 1

    @abstractmethod
    def build(self) -> Aggregator: ...


class Mean(AggregatorOptions):
    """The mean of the updates (the paper)."""

    name: ClassVar[str] = "mean"

    def build(self) -> Aggregator:
        return lambda updates: updates.mean(dim=0)


class Median(AggregatorOptions):
    """The median by coordinate, which resists bad updates."""

    name: ClassVar[str] = "median"

    @property
    def min_updates(self) -> int:
        return 3

    def build(self) -> Aggregator:
        return _trimming(lambda updates: (updates - 1) // 2)


class TrimmedMean(AggregatorOptions):
    """The mean by coordinate without its largest and smallest values; resists bad updates."""

    name: ClassVar[str] = "trimmed-mean"
    trim: float = Field(0.1, gt=0, lt=0.5)
    """The part of the updates that is cut off at either end, by coordinate."""

    @property
    def min_updates(self) -> int:
        """With fewer it is a mean, and one bad update moves the model as far as it likes."""
        return next(count for count in itertools.count(1) if self.trimmed(count) > 0)

    def trimmed(self, updates: int) -> int:
        """How many of so many values are cut off at either end."""
        return min(int(self.trim * updates + 1e-9), (updates - 1) // 2)

    def build(self) -> Aggregator:
        return _trimming(self.trimmed)


def _trimming(cut_of: Callable[[int], int]) -> Aggregator:
    def aggregate(updates: torch.Tensor) -> torch.Tensor:
        cut = cut_of(len(updates))
        if cut == 0:
            return updates.mean(dim=0)
        return updates.sort(dim=0).values[cut : len(updates) - cut].mean(dim=0)

    return aggregate


def clipped(clip: float | Literal["median"] | None, updates: torch.Tensor) -> torch.Tensor:
    """The updates, one per row, none longer than allowed."""
    if clip is None:
        return updates
    norms = updates.norm(dim=1)
    limit = norms.median() if clip == "median" else norms.new_tensor(clip)
    shrink: torch.Tensor = (limit / norms.clamp_min(1e-30)).clamp_max(1.0)
    return updates * shrink[:, None]


AGGREGATORS: Registry[AggregatorOptions] = Registry(
    "aggregators",
    AggregatorOptions,  # type: ignore[type-abstract]
    [__name__],
)
