"""The allocation seam: what a task's measured variance is worth in active requests.

``plain`` is the paper's main text (eq. 2 and 3), ``bound`` the appendix's
EstimateVariances, which multiplies in the constants of the convergence bound;
``authors-code`` is what the authors' demo computes, where a precedence slip
left out the square root. The paper's experiments say that Shakespeare, with its
client rate of 7, gets fewer requests: ``plain`` and ``authors-code`` do that.
``uniform`` and ``shares`` do without the variance: equal parts, or the tasks'
own shares. A weighting of your own is any function of the variance and the
``TaskSpec`` that gives a number of at least 0; a configuration names it as
``package.module:function``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from fedast.core.protocol import TaskSpec

AllocationRule: TypeAlias = Callable[[float, TaskSpec], float]


def plain(variance: float, _task: TaskSpec) -> float:
    return math.sqrt(variance)


def bound(variance: float, task: TaskSpec) -> float:
    return math.sqrt(variance * task.server_lr * task.client_lr * task.local_steps)


def authors_code(variance: float, task: TaskSpec) -> float:
    return variance * task.server_lr / (task.client_lr * task.local_steps**2)


def uniform(_variance: float, _task: TaskSpec) -> float:
    return 1.0


def shares(_variance: float, task: TaskSpec) -> float:
    return task.share


ALLOCATION_RULES: Mapping[str, AllocationRule] = {
    "plain": plain,
    "bound": bound,
    "authors-code": authors_code,
    "uniform": uniform,
    "shares": shares,
}
