"""The learner of federations: clients train, and their updates come in over the network."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.learner.inference import ModuleInference
from fedast.learner.kept import KeptBooks, KeptVersions
from fedast.learner.models import ServerModels, Snapshot
from fedast.learner.protocol import Evaluation
from fedast.learner.replay import check_all_used
from fedast.learner.requests import Books, OpenRequests
from fedast.tasks.task import Task
from fedast.training.trainer import Update


@dataclass(frozen=True, slots=True)
class Undone:
    """A server step that would have made the model not finite; its version equals the one
    before."""

    task: TaskName
    version: Version
    requests: tuple[RequestId, ...]
    clients: tuple[ClientId, ...]


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
        self._models = ServerModels(
            tasks, server_lrs, seed=seed, device=device, inference=ModuleInference
        )
        self._requests = OpenRequests([task.name for task in tasks], variance_window)
        self._versions = KeptVersions([task.name for task in tasks])
        self._undone: list[Undone] = []

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
        self._versions.void.discard(request)
        self._requests.drop(request, task)

    def training_loss(self, request: RequestId, task: TaskName) -> float:
        return float(self._updates([request])[0].loss)

    def aggregate(
        self,
        task: TaskName,
        requests: tuple[RequestId, ...],
        weights: tuple[float, ...] | None = None,
    ) -> None:
        used = [place for place, r in enumerate(requests) if r not in self._versions.void]
        if used:
            chosen = [requests[place] for place in used]
            entries = [self._requests[request] for request in chosen]
            factors = None if weights is None else tuple(weights[place] for place in used)
            before = self._models.snapshot(task)
            self._models.step(task, entries, self._updates(chosen), factors)
            if not _finite(self._models.parameters(task)):
                clients = [entry.client for entry in entries]
                self._models.undo(task, before, set(clients))
                self._undone.append(Undone(task, self.version(task), tuple(chosen), tuple(clients)))
        else:
            self._models.skip_step(task)
        self._release(requests)

    def skip_aggregation(self, task: TaskName, requests: tuple[RequestId, ...]) -> None:
        self._models.skip_step(task)
        self._release(requests)

    def _release(self, requests: tuple[RequestId, ...]) -> None:
        self._versions.void.difference_update(requests)
        self._requests.release(requests)

    # --- going back -----------------------------------------------------------------------------

    def keep(self, task: TaskName) -> None:
        """Keep the newest version until it is judged."""
        self._versions.keep(task, self.version(task), self._models.snapshot(task))

    def judged(self, task: TaskName, version: Version, *, good: bool) -> None:
        """A version that was kept was judged; a good one is what ``roll_back`` goes back to."""
        self._versions.judged(task, version, good=good)

    def roll_back(
        self, task: TaskName, void: Collection[RequestId], suspects: Collection[ClientId]
    ) -> Version:
        """Make the good version the newest, with the server optimizer as it was then; the version
        that it had. ``void`` updates are left out when they are aggregated."""
        version, good = self._versions.good(task)
        self._models.publish(task, good, suspects)
        self._versions.went_back(task, self.version(task), void)
        return version

    def take_undone(self) -> list[Undone]:
        """Steps since the last call that were not taken because their outcome was not finite."""
        undone, self._undone = self._undone, []
        return undone

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

    def raw_module(self, task: TaskName) -> torch.nn.Module | None:
        """A copy of the newest model as a module, if an average of the models is the result."""
        return self._models.raw_module(task)

    def module(self, task: TaskName) -> torch.nn.Module:
        """The newest model of a task as a module (the learner's own, not a copy)."""
        return self._models.module(task)

    def version(self, task: TaskName) -> Version:
        """The newest model's version: the number of server steps so far."""
        return self._models.version(task)

    def books(self) -> tuple[Books, dict[TaskName, Version], KeptBooks]:
        """What ``restore`` needs to find: open requests, the newest version of each model, and
        those to which it may go back."""
        newest = {name: store.newest for name, store in self._models.stores.items()}
        return self._requests.books(), newest, self._versions.books()

    def take_up(self, books: tuple[Books, Mapping[TaskName, Version], KeptBooks]) -> None:
        """Continue from what ``books`` gave, instead of a replay; ``restore`` has to follow."""
        requests, newest, kept = books
        self._versions.take_up(kept, self._present())
        self._requests.take_up(requests)
        for name, version in newest.items():
            self._models.stores[name].skip_to(version)

    def move(self, task: TaskName) -> float:
        """The norm of an update that moves a client's model by the model's own norm."""
        return self._models.move(task)

    def state(self) -> dict[str, torch.Tensor]:
        kept = self._versions.state(self._present())
        return self._models.state() | self._requests.state() | kept

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        used = self._requests.restore(tensors, self._device) | self._models.restore(tensors)
        used |= self._versions.restore(tensors, self._device, self._present())
        check_all_used(tensors, used)

    def _present(self) -> dict[TaskName, Snapshot]:
        return {name: self._models.snapshot(name) for name in self._models.stores}

    def _updates(self, requests: Iterable[RequestId]) -> list[Update]:
        updates = []
        for request in requests:
            update = self._requests[request].update
            if update is None:
                raise LookupError(f"request {request}: its update has not been received")
            updates.append(update)
        return updates


def _finite(vector: torch.Tensor) -> bool:
    """Whether all values are. A finite sum says so at once; one that is not may be an overflow."""
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())
