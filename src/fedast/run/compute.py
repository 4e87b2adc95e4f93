"""Where and how a run is computed: device, precision, trainers, threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from fedast.config import schema as cfg
from fedast.config.schema import Compute
from fedast.core.protocol import TaskName
from fedast.parts.errors import ConfigError, nearest
from fedast.tasks.task import Task
from fedast.training.options import Batched, Resources, TrainerOptions

if TYPE_CHECKING:
    from fedast.learner.profiling import Profiler
    from fedast.training.kernels.net import Precision
    from fedast.training.trainer import DeviceTask, Trainer

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
GPU_PRECISION: Final = "tf32"
"""What ``auto`` stands for on a GPU."""


def pick_device(device: Device) -> Literal["cpu", "cuda"]:
    if device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise ConfigError("compute.device", "there is no CUDA device here; use cpu or auto")
    return "cpu"


def resolve_compute(compute: cfg.Compute) -> cfg.Compute:
    """With the device found and what depends on it, but for the choice of trainers."""
    device = pick_device(compute.device)
    update: dict[str, object] = {"device": device}
    if compute.precision == "auto":
        update["precision"] = GPU_PRECISION if device == "cuda" else "fp32"
    elif device == "cpu" and compute.precision != "fp32":
        raise ConfigError("compute.precision", f"{compute.precision} needs a CUDA device; use fp32")
    if compute.workers is None:
        update["workers"] = available_cores()
    for trainer in (compute.trainer, *compute.trainers.values()):
        if isinstance(trainer, TrainerOptions) and trainer.forks:
            from fedast.training.processes import can_fork

            if not can_fork():
                raise ConfigError(
                    "compute.trainer",
                    f"{trainer.name} needs a system that forks, without a GPU; use another",
                )
    return compute.model_copy(update=update)


def available_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def choose_trainers(compute: Compute, tasks: Sequence[Task], seed: int) -> Compute:
    """With a trainer for every task; on a CPU they are timed first, which takes a moment."""
    names = [task.name for task in tasks]
    for name in compute.trainers:
        if name not in names:
            raise ConfigError(
                f"compute.trainers.{name}", f"there is no such task{nearest(name, names)}"
            )
    if set(compute.trainers) >= set(names):
        return compute
    chosen: dict[str, TrainerOptions]
    if isinstance(compute.trainer, TrainerOptions):
        chosen = dict.fromkeys(names, compute.trainer)
    elif compute.device == "cuda":
        chosen = dict.fromkeys(names, Batched())
    else:
        import torch

        from fedast.tasks.dataset import Dataset
        from fedast.training.choose import fastest_trainers
        from fedast.training.trainer import DeviceTask

        with arithmetic(compute):
            cpu = torch.device("cpu")
            moved: dict[int, Dataset] = {}
            device_tasks = {task.name: DeviceTask.build(task, seed, cpu, moved) for task in tasks}
            chosen = fastest_trainers(device_tasks, seed, workers=compute.workers or 1)
    return compute.model_copy(update={"trainers": chosen | compute.trainers})


def make_trainer(
    compute: Compute,
    profiler: Profiler | None,
    device_tasks: Mapping[TaskName, DeviceTask],
    seed: int,
) -> Trainer:
    from fedast.learner.profiling import ProfiledTrainer
    from fedast.training.choose import MixedTrainer

    resources = Resources(compute.workers or 1, compute.batch_limit, precision_of(compute))
    trainer = MixedTrainer(device_tasks, seed, compute.trainers, resources)
    return trainer if profiler is None else ProfiledTrainer(trainer, profiler)


def precision_of(compute: Compute) -> Precision:
    """The precision of a run whose ``compute`` is resolved."""
    assert compute.precision != "auto"
    return compute.precision


@contextmanager
def arithmetic(compute: Compute) -> Iterator[None]:
    """Threads and precision as a run wants them, then as they were before."""
    import torch

    threads = torch.get_num_threads()
    products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.set_num_threads(compute.threads)
    fast = compute.precision in ("tf32", "fp16", "bf16")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = products
        torch.backends.cudnn.allow_tf32 = convolutions
