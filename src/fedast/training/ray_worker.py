"""What happens in an actor of Ray: local trainings, and pieces of evaluations.

An actor is given the tasks once, when it starts, and each model version once; it keeps a version
until it is told that nobody needs it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.tasks.dataset import Dataset
from fedast.tasks.task import Task
from fedast.training.batched import BatchedTrainer
from fedast.training.kernels.net import Precision
from fedast.training.lean import LeanTrainer
from fedast.training.nodes import Facts, my_facts
from fedast.training.processes import keep_memory
from fedast.training.trainer import DeviceTask, Job, Trainer, Update

Vector: TypeAlias = "np.ndarray[Any, Any]"
Piece: TypeAlias = Callable[[DeviceTask, torch.Tensor, Any, dict[Any, Any]], Any]
"""A part of some work: a function of a task, a model, what to do, and what it keeps for later."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Jobs as they travel, which are trained together: request, client, version, and the number
    that the sender gave the base model."""

    task: TaskName
    jobs: tuple[tuple[RequestId, ClientId, Version, int], ...]


@dataclass(frozen=True, slots=True)
class Post:
    """What goes with a message: models that are new to the actor, and those it may forget."""

    new: tuple[int, ...]
    forget: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """How actors train, the same for all of them."""

    seed: int
    device: str
    together: int | None
    """So many clients are one batch at most; None: one after another."""
    precision: Precision


class TrainingActor:
    """Trains on one core, or on a GPU, of some node."""

    def __init__(self, tasks: Mapping[TaskName, Task], settings: Settings) -> None:
        torch.set_num_threads(1)
        keep_memory()
        fast = settings.precision in ("tf32", "fp16", "bf16")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
        moved: dict[int, Dataset] = {}
        self._device = torch.device(settings.device)
        self._tasks = {
            name: DeviceTask.build(task, settings.seed, self._device, moved)
            for name, task in tasks.items()
        }
        if settings.together is None and self._device.type == "cpu":
            self._trainer: Trainer = LeanTrainer(self._tasks, settings.seed)
        else:
            self._trainer = BatchedTrainer(
                self._tasks,
                settings.seed,
                most=settings.together or 1,
                precision=settings.precision,
            )
        self._versions: dict[int, torch.Tensor] = {}
        self._kept: dict[Any, Any] = {"precision": settings.precision}

    def ready(self) -> Facts:
        """Answers when it has started."""
        return my_facts()

    def train(self, sheets: Sequence[Sheet], post: Post, *new: Vector) -> list[Vector | str]:
        """For each sheet its updates, one after another in one vector; or what went wrong."""
        self._take(post, new)
        found: list[Vector | str] = []
        for sheet in sheets:
            jobs = [Job(r, c, self._versions[base], v) for r, c, v, base in sheet.jobs]
            try:
                updates = self._trainer.train(sheet.task, jobs)
                found.append(torch.cat([_packed(update) for update in updates]).cpu().numpy())
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
        return found

    def call(
        self, task: TaskName, base: int, piece: Piece, what: Any, post: Post, *new: Vector
    ) -> Any:
        """A piece of other work with a model."""
        self._take(post, new)
        return piece(self._tasks[task], self._versions[base], what, self._kept)

    def _take(self, post: Post, new: Sequence[Vector]) -> None:
        for number in post.forget:
            del self._versions[number]
        for number, vector in zip(post.new, new, strict=True):  # (Ray's store is read-only)
            self._versions[number] = torch.from_numpy(vector.copy()).to(self._device)


def _packed(update: Update) -> torch.Tensor:
    parts = [update.delta, update.loss.reshape(1).to(update.delta.dtype)]
    if update.buffers is not None:
        parts.append(update.buffers)
    if update.saturated is not None:
        parts.append(update.saturated.reshape(1).to(update.delta.dtype))
    return torch.cat(parts)


def unpacked(vector: Vector, device_task: DeviceTask, count: int) -> list[Update]:
    """The updates that a vector holds."""
    end, buffers = device_task.model.buffers_from, device_task.model.buffer_count
    device = device_task.model.parameters[0].device
    rows = torch.from_numpy(vector.copy()).view(count, -1).to(device)
    updates = []
    for row in rows:
        rest = row[end + 1 :]
        updates.append(
            Update(
                row[:end],
                row[end],
                rest[:buffers] if buffers else None,
                rest[buffers] if len(rest) > buffers else None,
            )
        )
    return updates
