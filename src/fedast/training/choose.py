"""Which trainer each task gets; on a CPU, timing decides."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, final

from fedast.core.protocol import TaskName
from fedast.training.batched import BatchedTrainer
from fedast.training.kernels.net import Precision
from fedast.training.processes import ProcessTrainer, can_fork
from fedast.training.trainer import DeviceTask, Job, SerialTrainer, Trainer, Update

Kind: TypeAlias = Literal["serial", "processes", "batched"]

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
        kinds: Mapping[TaskName, Kind],
        *,
        workers: int,
        batch_limit: int | None = None,
        precision: Precision = "fp32",
    ) -> None:
        self._by_kind: dict[Kind, Trainer] = {}
        self._kinds = dict(kinds)
        for kind in dict.fromkeys(kinds.values()):
            mine = {
                name: device_task
                for name, device_task in device_tasks.items()
                if kinds[name] == kind
            }
            match kind:
                case "serial":
                    self._by_kind[kind] = SerialTrainer(mine, seed)
                case "processes":
                    self._by_kind[kind] = ProcessTrainer(mine, seed, workers=workers)
                case "batched":
                    self._by_kind[kind] = BatchedTrainer(
                        mine, seed, most=batch_limit, precision=precision
                    )

    def limit(self, task: TaskName) -> int:
        return self._by_kind[self._kinds[task]].limit(task)

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        return self._by_kind[self._kinds[task]].train(task, jobs)

    def close(self) -> None:
        for trainer in self._by_kind.values():
            trainer.close()


def fastest_trainers(
    device_tasks: Mapping[TaskName, DeviceTask], seed: int, *, workers: int
) -> dict[TaskName, Kind]:
    """The fastest trainer for each task on a CPU, found by timing a few local trainings.

    Batching clients pays off only for models so small that a step is mostly overhead, so only
    those are timed with it.
    """
    if workers < 2:
        return dict.fromkeys(device_tasks, "serial")
    serial = SerialTrainer(device_tasks, seed)
    processes = ProcessTrainer(device_tasks, seed, workers=workers) if can_fork() else None
    kinds: dict[TaskName, Kind] = {}
    try:
        for name, device_task in device_tasks.items():
            seconds: dict[Kind, float] = {"serial": _time(serial, name, device_task, _TRIAL)}
            if processes is not None:
                seconds["processes"] = _time(processes, name, device_task, _TRIAL * workers)
            if seconds["serial"] < _SMALL:
                together = BatchedTrainer({name: device_task}, seed)
                seconds["batched"] = _time(together, name, device_task, _TOGETHER)
            kinds[name] = min(seconds, key=lambda kind: seconds[kind])
        return kinds
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
