"""The client's half of a federation: local training and evaluation on its own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch

from fedast.config.schema import RunConfig
from fedast.core.protocol import (
    ClientId,
    TaskName,
)
from fedast.federation.wire import Vector
from fedast.learner.evaluation import measure
from fedast.learner.inference import ModuleInference
from fedast.learner.protocol import Evaluation
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.registry import load_object, make_importable
from fedast.run.build import build_tasks
from fedast.tasks.dataset import leaves
from fedast.tasks.task import BadTask, Task
from fedast.training.trainer import DeviceTask, Job, SerialTrainer


@final
class LocalTraining:
    """A client's training: its own data, with the models and settings of its configuration."""

    def __init__(self, config: RunConfig, client: ClientId) -> None:
        make_importable(config.path)
        names = [task.name or task.use for task in config.tasks]
        for name in config.federation.data:
            if name not in names:  # it would train on the task's own partition instead
                key = f"federation.data.{name}"
                raise ConfigError(key, f"there is no such task{nearest(name, names)}")
        tasks = [self._with_own_data(task, config, client) for task in build_tasks(config)]
        device = torch.device("cpu")
        self._device_tasks = {
            task.name: DeviceTask.build(task, config.seed, device) for task in tasks
        }
        self._held: dict[TaskName, torch.Tensor] = {}
        if config.federation.evaluate == "clients":
            for task in tasks:
                self._hold_out(task, config.federation.holdout, client)
        self._trainer = SerialTrainer(self._device_tasks, config.seed)
        self._places = {
            task.name: 0 if task.name in config.federation.data else client for task in tasks
        }

    def _hold_out(self, task: Task, share: float, client: ClientId) -> None:
        """Hold out every n-th sample for evaluation."""
        place = 0 if len(task.partition) == 1 else client
        mine = task.partition[place]
        every = max(2, round(1 / share))
        if len(mine) < 2:
            raise BadTask(
                f"task {task.name!r}: client {client} has too few samples to hold one out"
            )
        self._held[task.name] = torch.from_numpy(mine[every - 1 :: every] if len(mine) >= every
                                                 else mine[-1:])  # fmt: skip
        parts = list(task.partition)
        parts[place] = np.setdiff1d(mine, self._held[task.name].numpy())
        self._device_tasks[task.name] = replace(
            self._device_tasks[task.name], task=replace(task, partition=parts)
        )

    @property
    def tasks(self) -> Sequence[TaskName]:
        return tuple(self._device_tasks)

    def evaluate(self, task: TaskName, vector: Vector) -> tuple[float, float, int]:
        """Metric and loss on held-out samples, and their number."""
        found, samples = self.measure(task, vector)
        return found.metric, found.loss, samples

    def measure(self, task: TaskName, vector: Vector) -> tuple[Evaluation, int]:
        if task not in self._held:
            raise BadTask(
                f"task {task!r}: this client holds out no samples; set federation.evaluate"
            )
        device_task, held = self._device_tasks[task], self._held[task]
        model = ModuleInference(device_task)
        model.load(torch.from_numpy(vector))
        batch = device_task.task.test_batch or 2000
        return measure(device_task, model, device_task.train, batch, held), len(held)

    def samples(self, task: TaskName) -> int:
        held = self._held.get(task)
        mine = self._device_tasks[task].task.partition[self._places[task]]
        return len(mine) + (0 if held is None else len(held))

    def size(self, task: TaskName) -> int:
        return self._device_tasks[task].model.read().numel()

    def buffers(self, task: TaskName) -> int:
        return self._device_tasks[task].model.buffer_count

    def train(
        self, task: TaskName, request: int, vector: Vector, version: int = 0
    ) -> tuple[Vector, float, int]:
        place = self._places[task]
        job = Job(request, place, torch.from_numpy(vector), version)
        (update,) = self._trainer.train(task, [job])
        samples = len(self._device_tasks[task].task.partition[place])
        parts = [update.delta] if update.buffers is None else [update.delta, update.buffers]
        return torch.cat(parts).numpy(), float(update.loss), samples

    @staticmethod
    def _with_own_data(task: Task, config: RunConfig, client: ClientId) -> Task:
        named = config.federation.data.get(task.name)
        if named is None:
            if client >= len(task.partition):
                raise ConfigError(
                    f"federation.data.{task.name}",
                    f"is missing, and the task's own partition has {len(task.partition)} parts, "
                    f"none for client {client}",
                )
            return task
        read = load_object(named, f"federation.data.{task.name}")
        try:
            data = read(client)
            inputs, labels = data
        except Exception as error:  # whatever the user's own code raises
            raise BadTask(f"{named}: {type(error).__name__}: {error}") from error
        return replace(task, train=(inputs, labels), partition=[np.arange(len(leaves(inputs)[0]))])
