"""Local training in actors of a Ray cluster.

An actor is given the tasks once, when it starts, and each model version once per node: versions lie
in Ray's object store, and an actor reads them there. It trains clients one at a time, as the
process trainer's workers do. So an update depends on its job alone, and results are the same for
any number of actors, and after any of them has died: what it had is trained by another.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from fedast.core.protocol import ClientId, RequestId, TaskName
from fedast.tasks.task import Task, TrainingFailed
from fedast.training.ray_connection import connect, require_ray
from fedast.training.trainer import DeviceTask, Job, Update

_AHEAD = 2
"""Shards that an actor has at a time: one in work, one waiting."""
_VERSIONS = 64
"""So many of the latest model versions are kept in the object store."""
_LOSSES = 100
"""So many actors may be lost during one call of ``train``; then something else is wrong."""

Shard = list[tuple[RequestId, ClientId, int]]
"""Requests, their clients, and the number of each one's base model."""


@final
class RayTrainer:
    def __init__(
        self,
        device_tasks: Mapping[TaskName, DeviceTask],
        seed: int,
        *,
        cluster: str | None = None,
        actors: int | None = None,
        shard: int = 4,
    ) -> None:
        require_ray()
        connect(cluster)
        import ray

        self._ray = ray
        self._shard = shard
        self._seed = seed
        count = actors or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._kind = ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        tasks = {name: device_task.task for name, device_task in device_tasks.items()}
        self._tasks = ray.put(tasks)
        self._actors: list[Any] = []
        self._starting: dict[Any, Any] = {}
        """Actors that there was no room for yet, by what is there when they have started."""
        for _ in range(count):
            self._start()
        self._versions: OrderedDict[tuple[int, int, int], tuple[torch.Tensor, Any]] = OrderedDict()

    def limit(self, task: TaskName) -> int:
        return self._shard * _AHEAD * max(1, len(self._actors) + len(self._starting))

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        waiting = deque(range(0, len(jobs), self._shard))
        found: dict[int, list[Update]] = {}
        running: dict[Any, tuple[int, Any]] = {}
        losses = 0
        while waiting or running:
            for actor in self._actors:
                mine = sum(other is actor for _, other in running.values())
                while waiting and mine < _AHEAD:
                    start = waiting.popleft()
                    part = jobs[start : start + self._shard]
                    running[self._send(actor, task, part)] = start, actor
                    mine += 1
            ready, _ = self._ray.wait([*running, *self._starting], num_returns=1)
            for reference in ready:
                if reference in self._starting:
                    losses += not self._has_started(reference)
                    continue
                start, actor = running.pop(reference)
                try:
                    found[start] = _updates(self._ray.get(reference))
                except self._ray.exceptions.RayTaskError as error:
                    raise TrainingFailed(
                        f"request {jobs[start].request}: {error.cause or error}"
                    ) from None
                except self._ray.exceptions.RayError as error:
                    waiting.appendleft(start)
                    losses += 1
                    if losses > _LOSSES:
                        raise TrainingFailed(f"Ray loses its actors: {error}") from None
                    if actor in self._actors:  # its other shard comes back in the same way
                        self._actors.remove(actor)
                        self._start()
        return [update for start in sorted(found) for update in found[start]]

    def close(self) -> None:
        for actor in (*self._actors, *self._starting.values()):
            self._ray.kill(actor)
        self._actors, self._starting = [], {}
        self._versions.clear()

    def _start(self) -> None:
        actor = self._kind.remote(self._tasks, self._seed)
        self._starting[actor.ready.remote()] = actor

    def _has_started(self, reference: Any) -> bool:
        actor = self._starting.pop(reference)
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            if error.__cause__ is not None or "creation task" in str(error).lower():
                raise TrainingFailed(f"an actor cannot start: {_last_line(error)}") from None
            self._start()  # its process died
            return False
        self._actors.append(actor)
        return True

    def _send(self, actor: Any, task: TaskName, jobs: Sequence[Job]) -> Any:
        bases: list[Any] = []
        shard: Shard = []
        for job in jobs:
            base = self._stored(job.base)
            if base not in bases:
                bases.append(base)
            shard.append((job.request, job.client, bases.index(base)))
        return actor.train.remote(task, shard, *bases)

    def _stored(self, base: torch.Tensor) -> Any:
        """A version in the object store. The tensor is kept with it, so that its place in memory
        stays its own and tells it from others."""
        key = base.data_ptr(), base.numel(), base._version
        if key not in self._versions:
            self._versions[key] = base, self._ray.put(base.detach().numpy())
            while len(self._versions) > _VERSIONS:
                self._versions.popitem(last=False)
        self._versions.move_to_end(key)
        return self._versions[key][1]


class _Actor:
    """Trains shards, on one core of some node."""

    def __init__(self, tasks: Mapping[TaskName, Task], seed: int) -> None:
        from fedast.tasks.dataset import Dataset
        from fedast.training.batched import BatchedTrainer

        torch.set_num_threads(1)
        moved: dict[int, Dataset] = {}
        cpu = torch.device("cpu")
        built = {name: DeviceTask.build(task, seed, cpu, moved) for name, task in tasks.items()}
        self._trainer = BatchedTrainer(built, seed, most=1, lean=True)

    def ready(self) -> None:
        """Answers when it has started."""

    def train(
        self, task: TaskName, shard: Shard, *bases: np.ndarray[Any, Any]
    ) -> tuple[Any, Any, Any]:
        versions = [torch.from_numpy(base.copy()) for base in bases]  # (the store is read-only)
        updates = [
            self._trainer.train(task, [Job(request, client, versions[number])])[0]
            for request, client, number in shard
        ]
        deltas = torch.stack([update.delta for update in updates]).numpy()
        losses = torch.stack([update.loss for update in updates]).numpy()
        buffers = [update.buffers for update in updates if update.buffers is not None]
        return deltas, losses, torch.stack(buffers).numpy() if buffers else None


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _updates(arrays: tuple[Any, Any, Any]) -> list[Update]:
    deltas, losses, buffers = arrays
    return [
        Update(
            torch.from_numpy(delta.copy()),
            torch.tensor(loss),
            None if buffers is None else torch.from_numpy(buffers[number].copy()),
        )
        for number, (delta, loss) in enumerate(zip(deltas, losses, strict=True))
    ]
