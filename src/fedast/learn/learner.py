"""The data plane in PyTorch: versions, updates, aggregation, variance, evaluation.

An update is trained when its value is first needed, never when it is sent:
requests that are cancelled or lost cost nothing. Until then a request is a
reference to the model version that went out with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.learn.metrics import METRICS
from fedast.learn.points import Points
from fedast.learn.port import Evaluation
from fedast.learn.server.calibration import NoRoom
from fedast.learn.server.server import Server
from fedast.learn.store import VersionStore
from fedast.learn.task import BadTask, Task
from fedast.learn.trainer import Job, SerialTrainer, Trainer, Update, Workbench

_TEST_BATCH = 2000


@final
class _Pending:
    """A request between its dispatch and the last use of its update."""

    __slots__ = ("client", "update", "uses", "version")

    def __init__(self, client: ClientId, version: Version) -> None:
        self.client = client
        self.version = version
        self.update: Update | None = None
        self.uses = 1
        """Who needs it: the request's own fate, and the variance window."""


@final
class TorchLearner:
    def __init__(
        self,
        tasks: Sequence[Task],
        server_rates: Mapping[TaskName, float],
        *,
        seed: int,
        device: torch.device,
        variance_window: int,
    ) -> None:
        moved: dict[int, Points] = {}
        self._device = device
        self._benches = {task.name: Workbench.build(task, seed, device, moved) for task in tasks}
        self._trainer: Trainer = SerialTrainer(self._benches, seed)
        self._window = variance_window
        self._stores = {
            name: VersionStore(bench.model.read()) for name, bench in self._benches.items()
        }
        self._servers = {
            name: self._serve(bench, server_rates[name]) for name, bench in self._benches.items()
        }
        self._pending: dict[RequestId, _Pending] = {}
        self._latest: dict[TaskName, deque[RequestId]] = {name: deque() for name in self._benches}

    def parameters(self, task: TaskName) -> torch.Tensor:
        """The newest model of a task, as a flat vector."""
        store = self._stores[task]
        return store[store.newest]

    def module(self, task: TaskName) -> torch.nn.Module:
        """The newest model of a task, as the module (the learner's own working copy)."""
        model = self._benches[task].model
        model.write(self.parameters(task))
        return model.module.eval()

    def server(self, task: TaskName) -> Server:
        return self._servers[task]

    def versions_kept(self, task: TaskName) -> int:
        return len(self._stores[task])

    def dispatch(
        self, request: RequestId, task: TaskName, client: ClientId, version: Version
    ) -> None:
        self._stores[task].retain(version)
        self._pending[request] = _Pending(client, version)

    def accept(self, request: RequestId, task: TaskName) -> None:
        if self._window == 0:
            return
        latest = self._latest[task]
        latest.append(request)
        self._pending[request].uses += 1
        if len(latest) > self._window:
            self._release(latest.popleft(), task)

    def drop(self, request: RequestId, task: TaskName) -> None:
        if request in self._latest[task]:  # accepted, then dropped: it is no measure either
            self._latest[task].remove(request)
            self._release(request, task)
        self._release(request, task)

    def training_loss(self, request: RequestId, task: TaskName) -> float:
        return float(self._update(task, request).loss)

    def aggregate(
        self,
        task: TaskName,
        requests: tuple[RequestId, ...],
        weights: tuple[float, ...] | None = None,
    ) -> None:
        """x <- x - eta_s eta_c tau mean(weight * Delta), or as the task's server side does it."""
        deltas = torch.stack([self._update(task, r).delta for r in requests])
        pending = [self._pending[request] for request in requests]
        store = self._stores[task]
        delay = store.newest - min(sent.version for sent in pending)
        clients = [sent.client for sent in pending]
        step = self._servers[task].step(clients, deltas, weights, delay)
        store.publish(store[store.newest] - step)
        for request in requests:
            self._release(request, task)

    def variance(self, task: TaskName) -> float:
        """(1/V) sum |Delta_i - mean|^2 / |mean|^2 over the task's latest V updates."""
        deltas = torch.stack([self._update(task, r).delta for r in self._latest[task]]).double()
        mean = deltas.mean(dim=0)
        spread = (deltas - mean).square().sum(dim=1).mean()
        return float(spread / mean.square().sum())

    def evaluate(self, task: TaskName) -> Evaluation:
        return self._measure(task, self._benches[task].test)

    def final_evaluation(self, task: TaskName) -> Evaluation | None:
        """The newest model on the task's larger test set, if it has one."""
        points = self._benches[task].task.final_test
        return None if points is None else self._measure(task, points.to(self._device))

    @torch.no_grad()
    def _measure(self, task: TaskName, points: Points) -> Evaluation:
        bench, metric = self._benches[task], METRICS[self._benches[task].task.metric]
        module = self.module(task)
        score, loss, count = 0.0, 0.0, len(points)
        for indices in torch.split(torch.arange(count, device=self._device), _TEST_BATCH):
            inputs, labels = points.batch(indices)
            outputs = module(inputs)
            batch_loss = float(bench.loss(outputs, labels)) * len(labels)
            loss += batch_loss
            if metric.per_batch is None:
                score += batch_loss
            else:
                score += float(metric.per_batch(outputs, labels))
        return Evaluation(metric.finish(score / count), loss / count)

    def _serve(self, bench: Workbench, rate: float) -> Server:
        task, how = bench.task, bench.task.training
        try:
            return Server(
                task.server,
                rate=rate,
                scale=how.client_rate * how.local_steps,
                initial=bench.model.read(),
                trained=bench.model.parameter_count,
                clients=len(task.partition),
            )
        except NoRoom as error:
            raise BadTask(f"task {task.name!r}: {error}") from None

    def _update(self, task: TaskName, request: RequestId) -> Update:
        pending = self._pending[request]
        if pending.update is None:
            store = self._stores[task]
            job = Job(request, pending.client, store[pending.version])
            pending.update = self._trainer.train(task, job)
            store.release(pending.version)
        return pending.update

    def _release(self, request: RequestId, task: TaskName) -> None:
        pending = self._pending[request]
        pending.uses -= 1
        if pending.uses == 0:
            del self._pending[request]
            if pending.update is None:
                self._stores[task].release(pending.version)
