"""Which trainer a run uses: the options of each, and how they are found by name.

They stand apart from the trainers themselves, all of which need torch: a configuration is read
and listed without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from fedast.core.protocol import TaskName
from fedast.parts.options import Options
from fedast.parts.registry import Registry

if TYPE_CHECKING:
    from fedast.training.trainer import DeviceTask, Trainer


@dataclass(frozen=True, slots=True)
class Resources:
    """What a run allows a trainer (the table ``[compute]``)."""

    workers: int = 1
    """Worker processes."""
    batch_limit: int = 256
    """Clients that are trained together at most."""
    precision: Literal["fp32", "tf32", "fp16", "bf16"] = "fp32"


class TrainerOptions(Options, ABC):
    """Options of a trainer."""

    forks: ClassVar[bool] = False
    """Whether it forks worker processes, which not every machine can."""
    remote: ClassVar[bool] = False
    """Whether it trains on other machines."""
    uses: ClassVar[tuple[str, ...]] = ("workers", "batch_limit")
    """The resources that make a difference to it."""

    @property
    def careful(self) -> bool:
        """Whether training may fail for reasons outside of it, so that the state before each step
        is kept for a checkpoint."""
        return self.forks

    @abstractmethod
    def build(
        self, device_tasks: Mapping[TaskName, DeviceTask], seed: int, resources: Resources
    ) -> Trainer: ...


class Serial(TrainerOptions):
    """One client after another, one step after another: the reference, for any model."""

    name: ClassVar[str] = "serial"
    uses = ()

    def build(
        self, device_tasks: Mapping[TaskName, DeviceTask], seed: int, resources: Resources
    ) -> Trainer:
        from fedast.training.trainer import SerialTrainer

        return SerialTrainer(device_tasks, seed)


class Processes(TrainerOptions):
    """Clients in parallel, in worker processes of one thread each (CPU only)."""

    name: ClassVar[str] = "processes"
    forks = True
    uses = ("workers",)

    def build(
        self, device_tasks: Mapping[TaskName, DeviceTask], seed: int, resources: Resources
    ) -> Trainer:
        from fedast.training.processes import ProcessTrainer

        return ProcessTrainer(device_tasks, seed, workers=resources.workers)


class Batched(TrainerOptions):
    """Many clients at once, as stacked copies of the model (fastest on a GPU)."""

    name: ClassVar[str] = "batched"
    uses = ("batch_limit",)

    def build(
        self, device_tasks: Mapping[TaskName, DeviceTask], seed: int, resources: Resources
    ) -> Trainer:
        from fedast.training.batched import BatchedTrainer

        return BatchedTrainer(
            device_tasks, seed, most=resources.batch_limit, precision=resources.precision
        )


class OnRay(TrainerOptions):
    """Clients in parallel, in actors of a Ray cluster; evaluations too."""

    name: ClassVar[str] = "ray"
    uses = ()
    remote = True
    cluster: str | None = None
    """HOST:PORT of the cluster; default: RAY_ADDRESS, a Ray that runs here, or one of its own."""
    actors: int | None = Field(None, ge=1)
    """How many; default: one for each core of the cluster, or as many as share its GPUs. It makes
    no difference to results."""
    gpus: float = Field(0.0, ge=0, strict=False)
    """Of each actor; 0.5 lets two share a GPU."""
    shard: int = Field(4, ge=1)
    """Clients that an actor is given at a time."""
    together: bool | None = None
    """Train the clients of a shard as one batch; default: with a GPU. Then ``shard`` makes a
    difference to rounding."""
    allow_mixed: bool = False
    """Use nodes with different processors or GPUs, although they round differently."""

    @property
    def batches(self) -> bool:
        return self.gpus > 0 if self.together is None else self.together

    @property
    def careful(self) -> bool:
        return not self.batches  # these would have to be waited for at each step

    def build(
        self, device_tasks: Mapping[TaskName, DeviceTask], seed: int, resources: Resources
    ) -> Trainer:
        from fedast.training.ray_trainer import RayTrainer

        return RayTrainer(
            device_tasks,
            seed,
            cluster=self.cluster,
            actors=self.actors,
            shard=self.shard,
            gpus=self.gpus,
            together=self.batches,
            allow_mixed=self.allow_mixed,
            precision=resources.precision,
        )


class _Callable(TrainerOptions):
    """A trainer without options: a callable ``(device_tasks, seed) -> Trainer``."""

    target: ClassVar[Callable[..., Any]]

    def build(
        self, device_tasks: Mapping[TaskName, DeviceTask], seed: int, resources: Resources
    ) -> Trainer:
        trainer: Trainer = type(self).target(device_tasks, seed)
        return trainer

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickled by address: that is where the callable is found, not this class."""
        return _at_address, (self.address(),)


def _at_address(address: str) -> TrainerOptions:
    return TRAINERS.parse(address, "compute.trainer")


def _from_callable(name: str, target: Callable[..., Any]) -> type[TrainerOptions]:
    """Options of a callable ``(device_tasks, seed) -> Trainer``, such as a trainer's class."""
    attributes = {
        "__doc__": target.__doc__,
        "__module__": getattr(target, "__module__", __name__),
        "name": name,
        "target": staticmethod(target),
    }
    return type(getattr(target, "__name__", type(target).__name__), (_Callable,), attributes)


TRAINERS: Registry[TrainerOptions] = Registry(
    "trainers",
    TrainerOptions,  # type: ignore[type-abstract]
    [__name__],
    adapt=_from_callable,
)
