"""Which trainer each task gets; on a CPU, timing decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

from fedast.core.protocol import RequestId, TaskName
from fedast.training.options import Batched, Processes, Resources, Serial, TrainerOptions
from fedast.training.processes import can_fork
from fedast.training.trainer import AheadTrainer, DeviceTask, Job, Trainer, Update

_TRIAL = 2
"""Jobs per worker when trainers are timed."""
_TOGETHER, _SMALL = 8, 0.02
"""Clients in a batch when batched training is timed, and the longest local training (in seconds)
for which it is."""


@final
class MixedTrainer:
    """Trains each task with the trainer chosen for it."""

    def __init__(
        self,
        device_tasks: Mapping[TaskName, DeviceTask],
        seed: int,
        chosen: Mapping[TaskName, TrainerOptions],
        resources: Resources,
    ) -> None:
        together: list[tuple[TrainerOptions, dict[TaskName, DeviceTask]]] = []
        for name, device_task in device_tasks.items():
            options = chosen[name]
            mine = next((tasks for other, tasks in together if other == options), None)
            if mine is None:
                mine = {}
                together.append((options, mine))
            mine[name] = device_task
        self._trainers: list[Trainer] = []
        self._of: dict[TaskName, Trainer] = {}
        self._ahead: dict[TaskName, AheadTrainer] = {}
        """The trainers of tasks whose jobs are begun before they are wanted. (Found once: looking
        whether an object fits a protocol is slow.)"""
        for options, tasks in together:
            trainer = options.build(tasks, seed, resources)
            self._trainers.append(trainer)
            self._of |= dict.fromkeys(tasks, trainer)
            if isinstance(trainer, AheadTrainer):
                self._ahead |= dict.fromkeys(tasks, trainer)

    def limit(self, task: TaskName) -> int:
        return self._of[task].limit(task)

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        return self._of[task].train(task, jobs)

    def ahead(self, task: TaskName) -> bool:
        trainer = self._ahead.get(task)
        return trainer is not None and trainer.ahead(task)

    def plan(self, jobs: Sequence[tuple[TaskName, Job]]) -> None:
        for trainer in {id(trainer): trainer for trainer in self._ahead.values()}.values():
            trainer.plan([(task, job) for task, job in jobs if self._of[task] is trainer])

    def bound(self, task: TaskName) -> list[RequestId]:
        trainer = self._ahead.get(task)
        return [] if trainer is None else trainer.bound(task)

    def spread(
        self,
        task: TaskName,
        model: torch.Tensor,
        function: Callable[[DeviceTask, torch.Tensor, Any, dict[Any, Any]], Any],
        pieces: Sequence[Any],
    ) -> list[Any]:
        return self._ahead[task].spread(task, model, function, pieces)

    def close(self) -> None:
        for trainer in self._trainers:
            trainer.close()


def fastest_trainers(
    device_tasks: Mapping[TaskName, DeviceTask], seed: int, *, workers: int
) -> dict[TaskName, TrainerOptions]:
    """The fastest of fedast's own trainers for each task on a CPU, found by timing a few local
    trainings.

    Batching clients pays off only for models so small that a step is mostly overhead, so only
    those are timed with it.
    """
    if workers < 2:
        return dict.fromkeys(device_tasks, Serial())
    resources = Resources(workers=workers)
    serial = Serial().build(device_tasks, seed, resources)
    processes = Processes().build(device_tasks, seed, resources) if can_fork() else None
    chosen: dict[TaskName, TrainerOptions] = {}
    try:
        for name, device_task in device_tasks.items():
            seconds: dict[TrainerOptions, float] = {
                Serial(): _time(serial, name, device_task, _TRIAL)
            }
            if processes is not None:
                seconds[Processes()] = _time(processes, name, device_task, _TRIAL * workers)
            if seconds[Serial()] < _SMALL:
                together = Batched().build({name: device_task}, seed, resources)
                seconds[Batched()] = _time(together, name, device_task, _TOGETHER)
            chosen[name] = min(seconds, key=lambda options: seconds[options])
        return chosen
    finally:
        if processes is not None:
            processes.close()


def _time(trainer: Trainer, name: TaskName, device_task: DeviceTask, count: int) -> float:
    """Seconds per job, after a warm-up round."""
    base = device_task.model.read()
    jobs = [Job(-1 - n, n % len(device_task.task.partition), base) for n in range(count)]
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        trainer.train(name, jobs)
        seconds.append(time.perf_counter() - began)
    return seconds[1] / count
