"""How much an update counts by its staleness s, in rounds of its task.

Polynomial and hinge are those of Xie, Koyejo, Gupta: "Asynchronous Federated
Optimization", 2019. An aggregation averages the weighted updates: weights below
one make a smaller step, they are not scaled back to sum to one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Weight: TypeAlias = Callable[[int], float]


def polynomial(exponent: float) -> Weight:
    """(1 + s)^-a"""
    return lambda staleness: (1.0 + staleness) ** -exponent


def hinge(slope: float, grace: int) -> Weight:
    """1 up to the grace, then 1 / (a (s - grace) + 1)"""
    return lambda staleness: 1.0 if staleness <= grace else 1 / (slope * (staleness - grace) + 1)
