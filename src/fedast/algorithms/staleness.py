"""How much an update counts by its staleness s, in rounds of its task.

Polynomial and hinge are those of Xie, Koyejo, Gupta: "Asynchronous Federated
Optimization", 2019. An aggregation averages the weighted updates: weights below
one make a smaller step, they are not scaled back to sum to one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

from pydantic import Field

from fedast.parts.options import Options
from fedast.parts.registry import Registry

Weight: TypeAlias = Callable[[int], float]


def polynomial(exponent: float) -> Weight:
    """(1 + s)^-a"""
    return lambda staleness: (1.0 + staleness) ** -exponent


def hinge(slope: float, grace: int) -> Weight:
    """1 up to the grace, then 1 / (a (s - grace) + 1)"""
    return lambda staleness: 1.0 if staleness <= grace else 1 / (slope * (staleness - grace) + 1)


class StalenessOptions(Options, ABC):
    """Options of a weight by staleness."""

    @abstractmethod
    def build(self) -> Weight | None:
        """The weight of an update by its staleness; None: all count the same."""


class Constant(StalenessOptions):
    """Every update counts in full (the paper)."""

    name: ClassVar[str] = "constant"

    def build(self) -> None:
        return None


class Polynomial(StalenessOptions):
    """An update of staleness s counts (1 + s)^-slope."""

    name: ClassVar[str] = "polynomial"
    slope: float = Field(0.5, gt=0, le=1e3)
    """The exponent."""

    def build(self) -> Weight:
        return polynomial(self.slope)


class Hinge(StalenessOptions):
    """An update counts in full up to a staleness of grace, then 1 / (slope (s - grace) + 1)."""

    name: ClassVar[str] = "hinge"
    slope: float = Field(0.5, gt=0, le=1e3)
    """How fast the weight falls beyond the grace."""
    grace: int = Field(10, ge=0)
    """Up to this staleness an update counts in full."""

    def build(self) -> Weight:
        return hinge(self.slope, self.grace)


STALENESS_WEIGHTS: Registry[StalenessOptions] = Registry(
    "staleness",
    StalenessOptions,  # type: ignore[type-abstract]
    [__name__],
)
