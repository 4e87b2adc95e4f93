"""The learner of federations: clients train, and their updates come in over the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.learner.inference import ModuleInference
from fedast.learner.models import TaskModels
from fedast.learner.protocol import Evaluation
from fedast.learner.replay import check_all_used
from fedast.learner.requests import OpenRequests
from fedast.tasks.task import Task
from fedast.training.trainer import Update


@final
class RemoteLearner:
    """Aggregates updates that ``receive`` brought.

    It keeps only the newest version of each model: whoever publishes models to
    clients keeps the older ones for as long as they may be fetched.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        server_lrs: Mapping[TaskName, float],
        *,
        seed: int,
        device: torch.device,
        variance_window: int,
    ) -> None:
        self._device = device
        self._models = TaskModels(
            tasks, server_lrs, seed=seed, device=device, inference=ModuleInference
        )
        self._requests = OpenRequests([task.name for task in tasks], variance_window)

    def dispatch(
        self, request: RequestId, task: TaskName, client: ClientId, version: Version
    ) -> None:
        self._requests.add(request, client, version)

    def receive(self, request: RequestId, update: Update) -> None:
        """The update of an open request, as its client sent it."""
        self._requests[request].update = update

    def accept(self, request: RequestId, task: TaskName) -> None:
        self._requests.accept(request, task)

    def drop(self, request: RequestId, task: TaskName) -> None:
        self._requests.drop(request, task)

    def training_loss(self, request: RequestId, task: TaskName) -> float:
        return float(self._updates([request])[0].loss)

    def aggregate(
        self,
        task: TaskName,
        requests: tuple[RequestId, ...],
        weights: tuple[float, ...] | None = None,
    ) -> None:
        updates = self._updates(requests)
        self._models.step(task, [self._requests[r] for r in requests], updates, weights)
        self._requests.release(requests)

    def skip_aggregation(self, task: TaskName, requests: tuple[RequestId, ...]) -> None:
        self._models.skip_step(task)
        self._requests.release(requests)

    def variance(self, task: TaskName) -> float:
        return self._models.variance(task, self._updates(self._requests.latest(task)))

    def evaluate(self, task: TaskName) -> Evaluation:
        return self._models.evaluate(task)

    def parameters(self, task: TaskName) -> torch.Tensor:
        """The newest model of a task, as a flat vector."""
        return self._models.parameters(task)

    def result(self, task: TaskName) -> torch.Tensor:
        """What is evaluated here and handed out: the average of the models, if the task has one."""
        return self._models.result(task)

    def buffers(self, task: TaskName) -> int:
        """How many of the vector's last entries are floating-point buffers."""
        return self._models.buffers(task)

    def version(self, task: TaskName) -> Version:
        """The newest model's version: the number of server steps so far."""
        return self._models.version(task)

    def state(self) -> dict[str, torch.Tensor]:
        return self._models.state() | self._requests.state()

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        used = self._requests.restore(tensors, self._device)
        check_all_used(tensors, used | self._models.restore(tensors))

    def _updates(self, requests: Iterable[RequestId]) -> list[Update]:
        updates = []
        for request in requests:
            update = self._requests[request].update
            if update is None:
                raise LookupError(f"request {request}: its update has not been received")
            updates.append(update)
        return updates
