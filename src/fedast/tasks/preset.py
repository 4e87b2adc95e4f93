"""What a named task is: how it is built from its options, and its default settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedast.aggregation.settings import ServerSide
from fedast.tasks.task import Allocation, Goal, Indices, Training

if TYPE_CHECKING:
    import torch

DOCUMENTED = {"use_attribute_docstrings": True}
"""The ``__pydantic_config__`` of option classes: ``fedast list`` shows the string under a field."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a preset builds: the learning problem, without how it is trained."""

    model: Callable[[], torch.nn.Module]
    train: Any
    test: Any
    partition: Sequence[Indices]
    final_test: Any = None
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named task.

    ``training`` is for asynchronous algorithms and ``sync_training`` for
    synchronous ones, which often want other rates. ``targets`` are by level:
    low, main and high.
    """

    name: str
    summary: str
    build: Callable[[Any, int, int, str], Problem]
    """(options, clients, seed, task name) -> problem"""
    options: type | None
    """The dataclass of its options; None: whatever its function takes."""
    metric: str = "accuracy"
    targets: Mapping[str, float]
    evaluate_every: int | None = None
    """Rounds between evaluations with asynchronous algorithms; None: the algorithm's default."""
    datasets: tuple[str, ...] = ()
    """What must be in the cache of data sets."""
    goal: Goal = field(default_factory=Goal)
    """Limits that hold unless a configuration says otherwise."""
    size: float
    training: Training
    sync_training: Training
    server: ServerSide = field(default_factory=ServerSide)
    allocation: Allocation = field(default_factory=Allocation)
