"""A task: a model, the data it learns from, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from fedast.aggregation.settings import ServerSide
from fedast.deprecations import renamed_keywords
from fedast.parts.errors import ConfigError
from fedast.tasks.metrics import METRICS

if TYPE_CHECKING:
    import torch

Indices: TypeAlias = npt.NDArray[np.int64]
Sampling: TypeAlias = Literal["epochs", "independent"]


class TrainingFailed(RuntimeError):
    """Training cannot go on, because memory or a worker is gone; the message says where."""


class OutOfMemory(TrainingFailed):
    """It does not fit into the device's memory, at least not beside what else is there."""


class BadTask(ValueError):
    """A task that cannot be trained; the message names the task and what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A task's hyperparameters: how its clients train and how the server steps.

    ``local_steps`` is tau, ``client_lr`` eta_c, ``server_lr`` eta_s (None:
    the algorithm's own default). ``sampling`` says where mini-batches come
    from: shuffled epochs over the client's data with the incomplete last batch
    dropped, or independent random batches.
    """

    local_steps: int = 27
    batch_size: int = 32
    client_lr: float = 0.1
    server_lr: float | None = None
    weight_decay: float = 0.0
    sampling: Sampling = "epochs"

    def __post_init__(self) -> None:
        if self.local_steps < 1 or self.batch_size < 1:
            raise BadTask("local_steps and batch_size must be at least 1")
        if not self.client_lr > 0 or not self.weight_decay >= 0:
            raise BadTask("client_lr must be positive, weight_decay not negative")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """When a task ends (at the first of these) and how often it is evaluated.

    ``evaluate_every`` None leaves it to the algorithm; ``evaluate_hint``
    replaces an asynchronous algorithm's default for this task, and is scaled
    like it. ``max_time`` is simulated time since the start of the run, as are
    ``join_time`` and ``leave_time``, at which the task is added or removed
    while the others train.
    """

    target: float | None = None
    max_rounds: int | None = None
    max_time: float | None = None
    evaluate_every: int | None = None
    evaluate_hint: int | None = None
    join_time: float = 0.0
    leave_time: float | None = None


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A task's part of the clients; None is worked out from the rest of the run.

    ``requests`` (R) and ``buffer`` (b) are for asynchronous algorithms,
    ``share`` for synchronous ones.
    """

    requests: int | None = None
    buffer: int | None = None
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """One model to train over the clients: everything a run needs to know about it.

    ``model`` builds a fresh, randomly initialised module. ``train`` and
    ``test`` are pairs of tensors or arrays whose first axis counts samples,
    map-style datasets of (input, label) pairs, or ``Arrays`` and ``Windows``;
    ``partition`` gives each client the indices of its training samples. Several
    tasks may share the same data. ``final_test`` is a larger test set for the
    last model only. ``loss`` maps (outputs, labels) to a scalar mean, by default
    the usual one for the metric. ``metric`` is what is measured on the test set: a name
    (``accuracy``, ``rmse``, ``perplexity``, ``package.module:Class``), or a ``MetricOptions``
    object, which it becomes. ``augment`` changes training inputs batch by batch, at random (with
    torch's generator, which is seeded for each request). ``step_cost`` is the
    relative work of one local step, for the simulated delays. ``server`` says
    what the server does with the updates of a round.
    """

    name: str
    model: Callable[[], torch.nn.Module]
    train: Any
    test: Any
    partition: Sequence[Indices]
    final_test: Any = None
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    metric: Any = "accuracy"
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None
    step_cost: float = 1.0
    training: Training = Training()
    goal: Goal = Goal()
    allocation: Allocation = Allocation()
    server: ServerSide = field(default_factory=ServerSide)

    def __post_init__(self) -> None:
        from fedast.tasks.dataset import as_dataset

        if not isinstance(self.name, str):
            raise BadTask(f"a task's name must be a string, got {self.name!r}")
        try:
            object.__setattr__(self, "metric", METRICS.parse(self.metric, "metric"))
        except ConfigError as error:
            self._refuse(str(error))
        for part in ("train", "test", "final_test"):
            data = getattr(self, part)
            if data is None and part == "final_test":
                continue
            try:
                object.__setattr__(self, part, as_dataset(data))
            except ValueError as error:
                self._refuse(f"{part} {error}")
        try:
            parts = [np.asarray(part) for part in self.partition]
        except (TypeError, ValueError) as error:
            self._refuse(f"its partition is not one list of indices per client: {error}")
        samples = len(self.train)
        for client, indices in enumerate(parts):
            if indices.ndim != 1 or (len(indices) and indices.dtype.kind not in "iu"):
                self._refuse(f"client {client} must have a list of integers as its indices")
            if len(indices) == 0:
                self._refuse(f"client {client} has no training samples")
            if indices.min() < 0 or indices.max() >= samples:
                self._refuse(f"client {client} has an index outside the {samples} training samples")
        object.__setattr__(self, "partition", parts)

    def _refuse(self, problem: str) -> NoReturn:
        raise BadTask(f"task {self.name!r}: {problem}")


Task.__init__ = renamed_keywords(size="step_cost")(Task.__init__)  # type: ignore[method-assign]
