"""A task: a model, the data it learns from, and how it is trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from fedast.aggregation.settings import ServerSide
from fedast.algorithms.options import LearningRate
from fedast.deprecated import renamed_keywords
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.options import Section
from fedast.parts.registry import Part
from fedast.tasks.client_optimizers import CLIENT_OPTIMIZERS, SGD, ClientOptimizerOptions
from fedast.tasks.metrics import METRICS

if TYPE_CHECKING:
    import torch

Indices: TypeAlias = npt.NDArray[np.int64]
Sampling: TypeAlias = Literal["epochs", "independent"]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, np.integer) else value


Count: TypeAlias = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
WeightDecay: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]
Share: TypeAlias = Annotated[float, Field(gt=0, le=1e9)]
Positive: TypeAlias = Annotated[float, Field(gt=0)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0)]


class TrainingFailed(RuntimeError):
    """Training cannot continue, because memory ran out or a worker died; the message says where."""


class OutOfMemory(TrainingFailed):
    """It does not fit into the device's memory, at least not beside what else is in it."""


class BadTask(ValueError):
    """A task that cannot be trained; the message names the task and what is wrong."""


class Training(Section):
    """A task's hyperparameters: how its clients train and how the server steps."""

    local_steps: Count = 27
    """Steps of a local training, tau."""
    batch_size: Count = 32
    client_lr: LearningRate = 0.1
    """The clients' learning rate, eta_c."""
    server_lr: LearningRate | None = None
    """The server's learning rate, eta_s; None: the algorithm's own default."""
    weight_decay: WeightDecay = 0.0
    client_optimizer: Annotated[SerializeAsAny[ClientOptimizerOptions], Part(CLIENT_OPTIMIZERS)] = (
        SGD()
    )
    """How a client's model steps along its gradients (fedast list client-optimizers)."""
    sampling: Sampling = "epochs"
    """Where mini-batches come from: shuffled epochs over the client's data with the incomplete last
    batch dropped, or independent random batches."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        for old, new in (("client_rate", "client_lr"), ("server_rate", "server_lr")):
            if isinstance(given, dict) and old in given:
                if new in given:
                    raise ValueError(f"{old} is now {new}, which is given too; leave one out")
                warnings.warn(
                    f"Training({old}=...) is now Training({new}=...)",
                    DeprecationWarning,
                    stacklevel=3,
                )
                given = {new if key == old else key: value for key, value in given.items()}
        return given


class Goal(Section):
    """When a task ends (at the first of these) and how often it is evaluated.

    Times are simulated, since the start of the run.
    """

    target: float | None = None
    max_rounds: Count | None = None
    max_time: Positive | None = None
    evaluate_every: Count | None = None
    """Rounds between evaluations; None leaves it to the algorithm."""
    evaluate_hint: Count | None = None
    """Replaces an asynchronous algorithm's default for this task, and is scaled like it."""
    join_time: NotNegative = 0.0
    """When the task is added, while the others train."""
    leave_time: Positive | None = None
    """When the task is removed, while the others train."""


class Allocation(Section):
    """A task's part of the clients; None is worked out from the rest of the run."""

    requests: Count | None = None
    """Active requests R (asynchronous algorithms)."""
    buffer: Count | None = None
    """Buffer size b (asynchronous algorithms)."""
    share: Share = 1.0
    """Share of the clients (synchronous algorithms)."""


_NO_PARTITION: tuple[Indices, ...] = ()


def _no_model() -> NoReturn:
    raise BadTask("a task without a model cannot be trained")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One model to train over the clients: everything a run needs to know about it.

    ``model`` builds a fresh, randomly initialised module. ``train`` and ``test`` are pairs of
    tensors or arrays whose first axis counts samples, map-style datasets of (input, label) pairs,
    or ``Arrays`` and ``Windows``; ``partition`` gives each client the indices of its training
    samples. Several tasks may share the same data. ``final_test`` is a larger test set for the last
    model only. ``loss`` maps (outputs, labels) to a scalar mean, by default the usual one for the
    metric. ``metric`` is what is measured on the test set: a name (``accuracy``, ``rmse``,
    ``perplexity``, ``package.module:Class``), a ``MetricOptions`` object, which it becomes, or any
    function of (outputs, labels), see ``fedast.metric``. Targets are for it; ``metrics`` are
    further ones, which simulations measure and record. ``augment`` changes training inputs batch by
    batch, at random (with torch's generator, which is seeded for each request). ``step_cost`` is
    the relative work of one local step, for the simulated delays. ``server`` says what the server
    does with the updates of a round. ``test_batch`` is the most test samples that go through the
    model at once, for models with large outputs.

    ``model``, ``train``, ``test`` and ``partition`` may be left out together. Such a task has
    settings only: a run can be planned from it before any data is loaded, but not trained.
    """

    name: str
    model: Callable[[], torch.nn.Module] = _no_model
    train: Any = None
    test: Any = None
    partition: Sequence[Indices] = _NO_PARTITION
    final_test: Any = None
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    metric: Any = "accuracy"
    metrics: Sequence[Any] = ()
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None
    step_cost: float = 1.0
    training: Training = field(default_factory=Training)
    goal: Goal = field(default_factory=Goal)
    allocation: Allocation = field(default_factory=Allocation)
    server: ServerSide = field(default_factory=ServerSide)
    test_batch: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise BadTask(f"a task's name must be a string, got {self.name!r}")
        try:
            object.__setattr__(self, "metric", METRICS.parse(self.metric, "metric"))
            more = tuple(METRICS.parse(one, "metrics") for one in self.metrics)
            object.__setattr__(self, "metrics", more)
        except ConfigError as error:
            self._refuse(str(error))
        names = [one.name for one in (self.metric, *self.metrics)]
        if len(set(names)) < len(names):
            self._refuse(f"its metrics must have different names, got {', '.join(names)}")
        if not (self.step_cost > 0 and np.isfinite(self.step_cost)):
            self._refuse(f"step_cost must be positive, got {self.step_cost}")
        if self.test_batch is not None and self.test_batch < 1:
            self._refuse(f"test_batch must be at least 1, got {self.test_batch}")
        given = {
            "model": self.model is not _no_model,
            "train": self.train is not None,
            "test": self.test is not None,
            "partition": self.partition is not _NO_PARTITION,
        }
        if all(given.values()):
            self._check_data()
        elif any(given.values()):
            missing = [name for name, is_given in given.items() if not is_given]
            self._refuse(f"{' and '.join(missing)} missing")

    @property
    def trainable(self) -> bool:
        """Whether it has a model and data."""
        return self.train is not None

    def copy(self, name: str | None = None, **changes: Any) -> Task:
        """The same task under another name, or with other settings: its own, or those of its
        ``training``, ``goal`` and ``allocation``.

        >>> task = Task(name="wine", goal=Goal(target=0.9))
        >>> other = task.copy("wine-slow", client_lr=0.01, target=0.95)
        >>> other.name, other.training.client_lr, other.goal.target
        ('wine-slow', 0.01, 0.95)

        A task can be used in any number of runs, and the data of a copy is not copied.
        """
        own = {field.name for field in fields(self)}
        parts: dict[str, Section] = {
            "training": self.training, "goal": self.goal, "allocation": self.allocation
        }  # fmt: skip
        made: dict[str, Any] = {"name": name or self.name}
        made |= {key: value for key, value in changes.items() if key in own}
        for part, section in parts.items():
            inside = {k: v for k, v in changes.items() if k in type(section).model_fields}
            if inside:
                try:
                    made[part] = type(section)(**{**dict(made.get(part, section)), **inside})
                except ValueError as error:
                    self._refuse(" ".join(str(error).split()))
        known = own.union(*(type(section).model_fields for section in parts.values()))
        for key in changes:
            if key not in known:
                self._refuse(f"a task has no {key!r}{nearest(key, known)}")
        return replace(self, **made)

    def settings(self) -> Task:
        """The same task without its model and data: quick to compare and to copy."""
        return replace(
            self,
            model=_no_model,
            train=None,
            test=None,
            partition=_NO_PARTITION,
            final_test=None,
            loss=None,
            augment=None,
        )

    def _check_data(self) -> None:
        from fedast.tasks.dataset import as_dataset

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
