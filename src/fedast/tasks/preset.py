"""What a named task is: how it is built from its options, and its default settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedast.aggregation.settings import ServerSide
from fedast.tasks.metrics import Accuracy, MetricOptions
from fedast.tasks.task import Allocation, Goal, Task, Training

DOCUMENTED = {"use_attribute_docstrings": True}
"""The ``__pydantic_config__`` of option classes: ``fedast list`` shows the string under a field."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A task by name, so that a configuration can be checked and resolved without its data.

    ``training`` is for asynchronous algorithms and ``sync_training`` for
    synchronous ones, which often want other learning rates. ``targets`` are by
    level: low, main and high. What a configuration leaves open, these settings
    fill in; ``build`` brings the model and the data.
    """

    name: str
    summary: str
    build: Callable[[Any, int, int, str], Task]
    """(options, clients, seed, task name) -> task, with default settings"""
    options: type | None
    """The dataclass of its options; None: the keywords of the user's function."""
    metric: MetricOptions = field(default_factory=Accuracy)
    targets: Mapping[str, float]
    evaluate_every: int | None = None
    """Rounds between evaluations with asynchronous algorithms; None: the algorithm's default."""
    datasets: tuple[str, ...] = ()
    """The datasets that must be in the cache."""
    goal: Goal = field(default_factory=Goal)
    """Limits that hold unless a configuration says otherwise."""
    step_cost: float
    """See ``Task``."""
    training: Training
    sync_training: Training
    server: ServerSide = field(default_factory=ServerSide)
    allocation: Allocation = field(default_factory=Allocation)
