"""The learner of simulations: it trains clients' updates itself, as late as it can.

An update is trained when a value of its task is first needed, in one batch with
the task's other outstanding requests, as many as the trainer takes at a time, or
beside the evaluation of a model on a GPU, which would have time for it. Until then
a request is only a reference to the model version that went out with it, so a
request that is cancelled or lost before costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.core.streams import Stream
from fedast.learner.evaluation import Spread
from fedast.learner.inference import MakeInference, ModuleInference
from fedast.learner.models import ServerModels
from fedast.learner.protocol import Evaluation
from fedast.learner.replay import check_all_used
from fedast.learner.requests import OpenRequest, OpenRequests
from fedast.tasks.task import OutOfMemory, Task
from fedast.training.beside import Beside
from fedast.training.trainer import (
    AheadTrainer,
    DeviceTask,
    Drawn,
    Job,
    SerialTrainer,
    Trainer,
    Update,
    batches_of,
)

MakeTrainer: TypeAlias = Callable[[Mapping[TaskName, DeviceTask], int], Trainer]
"""Makes a trainer for tasks on a device and a run's seed."""
_WORTHWHILE = 0.2
"""The part of a task's open requests that is trained before it is needed: a GPU takes longer for
each client of a small batch."""


@final
class LocalLearner:
    """Trains the updates of all clients in this process."""

    def __init__(
        self,
        tasks: Sequence[Task],
        server_lrs: Mapping[TaskName, float],
        *,
        seed: int,
        device: torch.device,
        variance_window: int,
        trainer: MakeTrainer = SerialTrainer,
        inference: MakeInference = ModuleInference,
    ) -> None:
        self._device = device
        self._models = ServerModels(
            tasks, server_lrs, seed=seed, device=device, inference=inference
        )
        names = [task.name for task in tasks]
        self._requests = OpenRequests(names, variance_window)
        self._untrained: dict[TaskName, dict[RequestId, None]] = {name: {} for name in names}
        """In the order of their dispatch. Each keeps its model version alive."""
        self._out = dict.fromkeys(names, 0)
        """How many requests of each task have neither been aggregated nor dropped."""
        self._streams = {name: Stream.of(seed, "train", name) for name in names}
        self._trainer = trainer(self._models.device_tasks, seed)
        self._ahead = self._trainer if isinstance(self._trainer, AheadTrainer) else None
        self._beside = Beside() if device.type == "cuda" else None

    def dispatch(
        self, request: RequestId, task: TaskName, client: ClientId, version: Version
    ) -> None:
        self._requests.add(request, client, version)
        self._models.stores[task].retain(version)
        self._untrained[task][request] = None
        self._out[task] += 1

    def accept(self, request: RequestId, task: TaskName) -> None:
        self._forget(task, self._requests.accept(request, task))

    def drop(self, request: RequestId, task: TaskName) -> None:
        self._out[task] -= 1
        self._forget(task, self._requests.drop(request, task))

    def training_loss(self, request: RequestId, task: TaskName) -> float:
        return float(self._updates(task, [request])[0].loss)

    def aggregate(
        self,
        task: TaskName,
        requests: tuple[RequestId, ...],
        weights: tuple[float, ...] | None = None,
    ) -> None:
        updates = self._updates(task, requests)
        self._models.step(task, [self._requests[r] for r in requests], updates, weights)
        self._out[task] -= len(requests)
        self._forget(task, self._requests.release(requests))

    def skip_aggregation(self, task: TaskName, requests: tuple[RequestId, ...]) -> None:
        self._models.skip_step(task)
        self._out[task] -= len(requests)
        self._forget(task, self._requests.release(requests))

    def variance(self, task: TaskName) -> float:
        return self._models.variance(task, self._updates(task, self._requests.latest(task)))

    def evaluate(self, task: TaskName) -> Evaluation:
        self._plan()
        if self._beside is not None:
            if not self._models.has_graph(task):
                self._beside.join()
            self._beside.mark()
        return self._models.evaluate(task, self._spread(task), self._meanwhile())

    def final_evaluation(self, task: TaskName) -> Evaluation | None:
        """The task's result on its larger test set, if it has one."""
        self._join()
        return self._models.final_evaluation(task, self._spread(task))

    def parameters(self, task: TaskName) -> torch.Tensor:
        """The newest model of a task, as a flat vector."""
        return self._models.parameters(task)

    def raw_module(self, task: TaskName) -> torch.nn.Module | None:
        """A copy of the newest model as a module, if an average of the models is the result."""
        self._join()
        return self._models.raw_module(task)

    def module(self, task: TaskName) -> torch.nn.Module:
        """A task's result as a module (the learner's own, not a copy): the average of its models,
        if it has one, otherwise the newest."""
        self._join()
        return self._models.module(task)

    def saturated(self) -> dict[TaskName, int]:
        """By task trained in fp16: aggregated updates in which a value was clipped."""
        return self._models.saturated()

    def versions_kept(self, task: TaskName) -> int:
        return len(self._models.stores[task])

    def open_updates(self) -> dict[RequestId, Update | None]:
        """The requests whose updates are still needed; None: not trained yet."""
        self._join()
        return {request: self._requests[request].update for request in self._requests}

    def state(self) -> dict[str, torch.Tensor]:
        if self._ahead is not None:
            for task, untrained in self._untrained.items():
                bound = [request for request in self._ahead.bound(task) if request in untrained]
                self._updates(task, bound)
        self._join()
        return self._models.state() | self._requests.state()

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        used = self._requests.restore(tensors, self._device)
        for task, untrained in self._untrained.items():
            for request in list(untrained):
                if self._requests[request].update is not None:
                    self._trained(task, request)
        check_all_used(tensors, used | self._models.restore(tensors))

    def close(self) -> None:
        self._trainer.close()

    def _updates(self, task: TaskName, requests: Iterable[RequestId]) -> list[Update]:
        """These updates; any that are not trained yet are trained now."""
        wanted = list(requests)
        missing = [request for request in wanted if self._requests[request].update is None]
        if missing:
            self._plan()
            self._train(task, missing)
        updates = []
        for request in wanted:
            if self._beside is not None:
                self._beside.wait_for(request)
            update = self._requests[request].update
            assert update is not None
            updates.append(update)
        return updates

    def _train(self, task: TaskName, missing: Sequence[RequestId], *, beside: bool = False) -> None:
        """Train these, and fill the last batch with the task's other untrained requests.

        This is exact: their values depend on nothing that is still to come. ``beside``: they are
        not needed yet, so nothing has to wait for them.
        """
        limit = self._trainer.limit(task)
        if self._begins_itself(task):
            limit = len(missing)
        urgent = set(missing)
        queue = [*missing, *(r for r in self._untrained[task] if r not in urgent)]
        count = -(-len(missing) // limit) * limit
        chosen = queue[: max(count, len(missing))]
        for start in range(0, len(chosen), limit):
            batch = chosen[start : start + limit]
            entries = [self._requests[request] for request in batch]
            jobs = [self._job(task, request) for request in batch]
            try:
                with self._place(batch, jobs, beside):
                    updates = self._trainer.train(task, jobs)
            except torch.OutOfMemoryError as error:
                raise OutOfMemory(
                    f"task {task!r}: out of memory while training request {batch[0]}; lower its "
                    f'batch_size, or set compute.device = "cpu" ({error})'
                ) from None
            for request, entry, update in zip(batch, entries, updates, strict=True):
                entry.update = update
                self._trained(task, request)

    def _place(
        self, requests: Sequence[RequestId], jobs: Sequence[Job], beside: bool
    ) -> AbstractContextManager[None]:
        """Where on the device these are trained."""
        if self._beside is not None and beside:
            return self._beside.training(requests, [job.base for job in jobs])
        self._join()
        return nullcontext()

    def _join(self) -> None:
        if self._beside is not None:
            self._beside.join()

    def _job(self, task: TaskName, request: RequestId) -> Job:
        entry = self._requests[request]
        base = self._models.stores[task][entry.version]
        return Job(request, entry.client, base, entry.version, entry.drawn)

    def _meanwhile(self) -> Iterator[None]:
        """What there is to do while a GPU evaluates, the first thing in any case: rounding may
        depend on what is trained together, but must not on how fast a machine is."""
        self._train_ahead()
        yield
        yield from self._draws()

    def _train_ahead(self) -> None:
        """Train the task that has most to train, if that is worth a batch."""
        parts = {
            task: len(untrained) / max(self._out[task], 1)
            for task, untrained in self._untrained.items()
            if untrained and self._trainer.limit(task) > 1 and not self._begins_itself(task)
        }
        task = max(parts, key=lambda name: parts[name], default=None)
        if task is not None and parts[task] >= _WORTHWHILE:
            self._train(task, list(self._untrained[task]), beside=True)

    def _draws(self) -> Iterator[None]:
        """Draw mini-batches of open requests, as their training would; each time those of one."""
        for task, untrained in self._untrained.items():
            device_task = self._models.device_tasks[task]
            for request in untrained:
                entry = self._requests[request]
                if entry.drawn is None:
                    job = self._job(task, request)
                    entry.drawn = Drawn(*batches_of(device_task, self._streams[task], job))
                    yield

    def _plan(self) -> None:
        """Let a trainer that can begin with what is open, of all tasks.

        (Not at ``dispatch``: a replay dispatches requests that will never be trained.)
        """
        if self._ahead is None:
            return
        jobs = [
            (task, self._job(task, request))
            for task, untrained in self._untrained.items()
            if self._ahead.ahead(task)
            for request in untrained
        ]
        if jobs:
            self._ahead.plan(jobs)

    def _begins_itself(self, task: TaskName) -> bool:
        """Whether the trainer goes on with a task while the learner does other things."""
        return self._ahead is not None and self._ahead.ahead(task)

    def _spread(self, task: TaskName) -> Spread | None:
        return self._ahead.spread if self._ahead is not None and self._begins_itself(task) else None

    def _trained(self, task: TaskName, request: RequestId) -> None:
        del self._untrained[task][request]
        self._requests[request].drawn = None
        self._models.stores[task].release(self._requests[request].version)

    def _forget(self, task: TaskName, closed: Mapping[RequestId, OpenRequest]) -> None:
        """Requests that closed without ever being trained no longer need their model version."""
        for request, entry in closed.items():
            if entry.update is None:
                del self._untrained[task][request]
                self._models.stores[task].release(entry.version)
