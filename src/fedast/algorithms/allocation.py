"""Allocation rules: what a task's measured variance is worth in active requests.

``sqrt-variance`` is the paper's main text (eq. 2 and 3), ``bound`` the appendix's
EstimateVariances, which multiplies in the constants of the convergence bound; ``authors-code`` is
what the authors' demo computes, where a precedence slip left out the square root. The paper's
experiments say that Shakespeare, with its client learning rate of 7, gets fewer requests:
``sqrt-variance`` and ``authors-code`` do that. ``uniform`` and ``shares`` do without the variance:
equal parts, or the tasks' own shares. A rule of your own is an options class, or any function of
the variance and the ``TaskSpec`` that returns a number of at least 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from fedast.core.protocol import TaskSpec
from fedast.parts.blame import placed
from fedast.parts.errors import ConfigError
from fedast.parts.options import Options
from fedast.parts.registry import Registry

AllocationRule: TypeAlias = Callable[[float, TaskSpec], float]


class AllocationOptions(Options, ABC):
    """Options of an allocation rule."""

    uses_share: ClassVar[bool] = False
    """Whether the rule looks at the tasks' shares."""

    @abstractmethod
    def build(self) -> AllocationRule: ...


class SqrtVariance(AllocationOptions):
    """In proportion to the square root of the variance (the paper)."""

    name: ClassVar[str] = "sqrt-variance"

    def build(self) -> AllocationRule:
        return sqrt_variance


class Bound(AllocationOptions):
    """By the convergence bound of the paper's appendix."""

    name: ClassVar[str] = "bound"

    def build(self) -> AllocationRule:
        return bound


class AuthorsCode(AllocationOptions):
    """As the authors' demo computes it, without the square root."""

    name: ClassVar[str] = "authors-code"

    def build(self) -> AllocationRule:
        return authors_code


class Uniform(AllocationOptions):
    """Equal parts."""

    name: ClassVar[str] = "uniform"

    def build(self) -> AllocationRule:
        return lambda variance, task: 1.0


class Shares(AllocationOptions):
    """By the tasks' shares."""

    name: ClassVar[str] = "shares"
    uses_share = True

    def build(self) -> AllocationRule:
        return lambda variance, task: task.share


def sqrt_variance(variance: float, _task: TaskSpec) -> float:
    return math.sqrt(variance)


def bound(variance: float, task: TaskSpec) -> float:
    return math.sqrt(variance * task.server_lr * task.client_lr * task.local_steps)


def authors_code(variance: float, task: TaskSpec) -> float:
    return variance * task.server_lr / (task.client_lr * task.local_steps**2)


def _from_function(name: str, function: Callable[..., Any]) -> type[AllocationOptions]:
    """A rule from a function of the variance and the task; what it returns is checked."""

    def checked(variance: float, task: TaskSpec) -> float:
        try:
            weight = float(function(variance, task))
        except Exception as error:  # whatever the user's own code raises
            raise ConfigError("algorithm.allocation_rule", f"{name}: {placed(error)}") from error
        if not 0.0 <= weight < math.inf:
            raise ConfigError(
                "algorithm.allocation_rule",
                f"{name}: returned {weight} for task {task.name!r}; it must be 0 or more",
            )
        return weight

    class Own(AllocationOptions):
        uses_share = True

        def build(self) -> AllocationRule:
            return checked

    Own.__doc__ = function.__doc__
    Own.name = name
    return Own


ALLOCATION_RULES: Registry[AllocationOptions] = Registry(
    "allocations",
    AllocationOptions,  # type: ignore[type-abstract]
    [__name__],
    adapt=_from_function,
)
