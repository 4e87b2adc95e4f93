"""The data plane in PyTorch: versions, updates, aggregation, variance, evaluation.

An update is trained when a value of its task is first needed, with all others of
the task that are outstanding then, as far as the trainer likes to have them
together. Until then a request is a reference to the model version that went out
with it, and one that is cancelled or lost by then costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, final

import torch

from fedast.aggregation.calibration import NoRoom
from fedast.aggregation.server import Server
from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.learner.evaluation import measure
from fedast.learner.inference import MakeInference, ModuleInference
from fedast.learner.protocol import Evaluation
from fedast.learner.versions import VersionStore
from fedast.tasks.dataset import Dataset
from fedast.tasks.task import BadTask, OutOfMemory, Task
from fedast.training.trainer import DeviceTask, Job, SerialTrainer, Trainer, Update

_TEST_BATCH = {"cpu": 2000, "cuda": 20_000}

MakeTrainer: TypeAlias = Callable[[Mapping[TaskName, DeviceTask], int], Trainer]
"""Makes a trainer for laid-out tasks and a run's seed."""


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
        trainer: MakeTrainer = SerialTrainer,
        inference: MakeInference = ModuleInference,
        remote: bool = False,
    ) -> None:
        """``remote``: nothing is trained here; ``receive`` brings updates before they are needed,
        and versions that went out are kept by whoever sent them."""
        moved: dict[int, Dataset] = {}
        self._device = device
        self._test_batch = _TEST_BATCH[device.type]
        self._device_tasks = {
            task.name: DeviceTask.build(task, seed, device, moved) for task in tasks
        }
        self._trainer = trainer(self._device_tasks, seed)
        self._inferences = {
            name: inference(device_task) for name, device_task in self._device_tasks.items()
        }
        self._window = variance_window
        self._remote = remote
        self._stores = {
            name: VersionStore(device_task.model.read())
            for name, device_task in self._device_tasks.items()
        }
        self._servers = {
            name: self._serve(device_task, server_rates[name])
            for name, device_task in self._device_tasks.items()
        }
        self._pending: dict[RequestId, _Pending] = {}
        self._waiting: dict[TaskName, dict[RequestId, None]] = {
            name: {} for name in self._device_tasks
        }
        """Requests that have not been trained yet, in the order in which they were sent."""
        self._latest: dict[TaskName, deque[RequestId]] = {
            name: deque() for name in self._device_tasks
        }
        self._saturated: dict[TaskName, torch.Tensor] = {}
        """Counts on the device, which is not asked before the end."""

    def parameters(self, task: TaskName) -> torch.Tensor:
        """The newest model of a task, as a flat vector."""
        store = self._stores[task]
        return store[store.newest]

    def buffers(self, task: TaskName) -> int:
        """How many of its entries, the last, are floating-point buffers."""
        return self._device_tasks[task].model.buffer_count

    def version(self, task: TaskName) -> Version:
        """Of these parameters: how often the model has been stepped."""
        return self._stores[task].newest

    def module(self, task: TaskName) -> torch.nn.Module:
        """The newest model of a task, as the module (the learner's own working copy)."""
        model = self._device_tasks[task].model
        model.write(self.parameters(task))
        return model.module.eval()

    def saturated(self) -> dict[TaskName, int]:
        """How many of the aggregated updates had a value cut off that was too large for fp16, of
        tasks that were trained in it."""
        return {name: int(count) for name, count in self._saturated.items()}

    def versions_kept(self, task: TaskName) -> int:
        return len(self._stores[task])

    def dispatch(
        self, request: RequestId, task: TaskName, client: ClientId, version: Version
    ) -> None:
        self._pending[request] = _Pending(client, version)
        if not self._remote:
            self._stores[task].retain(version)
            self._waiting[task][request] = None

    def receive(self, request: RequestId, update: Update) -> None:
        """The update of a request has come from where it was trained."""
        self._pending[request].update = update

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
        return float(self._updates(task, [request])[0].loss)

    def aggregate(
        self,
        task: TaskName,
        requests: tuple[RequestId, ...],
        weights: tuple[float, ...] | None = None,
    ) -> None:
        """x <- x - eta_s eta_c tau mean(weight * Delta), or as the task's server side does it."""
        updates = self._updates(task, requests)
        self._count_saturated(task, updates)
        deltas = self._deltas(task, updates)
        pending = [self._pending[request] for request in requests]
        store, server = self._stores[task], self._servers[task]
        parameters, buffers = store[store.newest].tensor_split([deltas.shape[1]])
        delay = store.newest - min(sent.version for sent in pending)
        clients = [sent.client for sent in pending]
        parameters = parameters - server.step(clients, deltas, weights, delay)
        if len(buffers):
            buffers = server.mix(buffers, [update.buffers for update in updates], weights)
            parameters = torch.cat([parameters, buffers])
        store.publish(parameters)
        for request in requests:
            self._release(request, task)

    def pass_over(self, task: TaskName, requests: tuple[RequestId, ...]) -> None:
        """Keep the books of an aggregation whose outcome will be restored."""
        store = self._stores[task]
        store.publish(store[store.newest])
        for request in requests:
            self._release(request, task)

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor that a run needs to go on, by name."""
        tensors: dict[str, torch.Tensor] = {}
        for number, (name, store) in enumerate(self._stores.items()):
            for version in store.versions():
                tensors[f"{number}.version.{version}"] = store[version]
            for key, value in self._servers[name].state().items():
                tensors[f"{number}.server.{key}"] = value
            if name in self._saturated:
                tensors[f"{number}.saturated"] = self._saturated[name]
        for request, pending in self._pending.items():
            if pending.update is not None:
                tensors[f"update.{request}"] = pending.update.delta
                tensors[f"loss.{request}"] = pending.update.loss
                if pending.update.buffers is not None:
                    tensors[f"buffers.{request}"] = pending.update.buffers
                if pending.update.saturated is not None:
                    tensors[f"saturated.{request}"] = pending.update.saturated
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put the tensors of ``state`` in place, where the books are as they were then."""
        left = set(tensors)
        for request, pending in self._pending.items():
            if f"update.{request}" in tensors:
                found = {
                    part: tensors[f"{part}.{request}"].to(self._device)
                    for part in ("update", "loss", "buffers", "saturated")
                    if f"{part}.{request}" in tensors
                }
                left -= {f"{part}.{request}" for part in found}
                pending.update = Update(delta=found.pop("update"), **found)
        for number, (name, store) in enumerate(self._stores.items()):
            for request in list(self._waiting[name]):
                if self._pending[request].update is not None:
                    del self._waiting[name][request]
                    store.release(self._pending[request].version)
            for version in store.versions():
                key = f"{number}.version.{version}"
                if tensors[key].shape != store[version].shape:
                    raise ValueError(f"{key} has another shape")
                store.put(version, tensors[key].to(self._device))
                left.discard(key)
            if f"{number}.saturated" in tensors:
                self._saturated[name] = tensors[f"{number}.saturated"].to(self._device)
                left.discard(f"{number}.saturated")
            prefix = f"{number}.server."
            own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            self._servers[name].restore(own)
            if own.keys() != self._servers[name].state().keys():
                raise LookupError(f"the server of {name} remembers something else")
            left -= {prefix + key for key in own}
        if left:
            raise LookupError(f"nothing is known of {min(left)}")

    def close(self) -> None:
        self._trainer.close()

    def variance(self, task: TaskName) -> float:
        """(1/V) sum |Delta_i - mean|^2 / |mean|^2 over the task's latest V updates."""
        latest = self._updates(task, self._latest[task])
        deltas = self._deltas(task, latest).double()
        mean = deltas.mean(dim=0)
        spread = (deltas - mean).square().sum(dim=1).mean()
        return float(spread / mean.square().sum())

    def evaluate(self, task: TaskName) -> Evaluation:
        return self._measure(task, self._device_tasks[task].test)

    def final_evaluation(self, task: TaskName) -> Evaluation | None:
        """The newest model on the task's larger test set, if it has one."""
        points = self._device_tasks[task].task.final_test
        return None if points is None else self._measure(task, points.to(self._device))

    def _measure(self, task: TaskName, points: Dataset) -> Evaluation:
        while True:
            try:
                self._inferences[task].load(self.parameters(task))
                return measure(
                    self._device_tasks[task], self._inferences[task], points, self._test_batch
                )
            except torch.OutOfMemoryError:
                if self._test_batch < 2:
                    raise OutOfMemory(
                        f"task {task!r}: not even one test point fits into the device's memory; "
                        'take compute.device = "cpu"'
                    ) from None
            torch.cuda.empty_cache()
            self._test_batch //= 2

    def _serve(self, device_task: DeviceTask, rate: float) -> Server:
        task, how = device_task.task, device_task.task.training
        try:
            return Server(
                task.server,
                lr=rate,
                scale=how.client_lr * how.local_steps,
                initial=device_task.model.read()[: device_task.model.buffers_from],
                trained=device_task.model.parameter_count,
                clients=len(task.partition),
            )
        except NoRoom as error:
            raise BadTask(f"task {task.name!r}: {error}") from None

    def _updates(self, task: TaskName, requests: Iterable[RequestId]) -> list[Update]:
        """The values of these updates; what is not trained yet is trained, with all that waits."""
        wanted = list(requests)
        missing = [r for r in wanted if self._pending[r].update is None]
        if missing:
            self._train(task, missing)
        updates = []
        for request in wanted:
            update = self._pending[request].update
            assert update is not None
            updates.append(update)
        return updates

    def _deltas(self, task: TaskName, updates: Sequence[Update]) -> torch.Tensor:
        """Of the parameters; what older checkpoints and clients have behind them, differences of
        buffers, is no value to be averaged."""
        end = self._device_tasks[task].model.buffers_from
        return torch.stack([update.delta[:end] for update in updates])

    def _count_saturated(self, task: TaskName, updates: Sequence[Update]) -> None:
        marks = [update.saturated for update in updates if update.saturated is not None]
        if marks:
            found = torch.stack(marks).sum()
            before = self._saturated.get(task)
            self._saturated[task] = found if before is None else before + found

    def _train(self, task: TaskName, missing: Sequence[RequestId]) -> None:
        """Train these, and beside them whatever else is outstanding, as far as there is room.

        Their values depend on nothing that is still to come, so this is exact.
        """
        waiting, store = self._waiting[task], self._stores[task]
        limit = self._trainer.limit(task)
        urgent = set(missing)
        queue = [*missing, *(request for request in waiting if request not in urgent)]
        count = -(-len(missing) // limit) * limit
        chosen = queue[: max(count, len(missing))]
        for start in range(0, len(chosen), limit):
            part = chosen[start : start + limit]
            jobs = [
                Job(request, self._pending[request].client, store[self._pending[request].version])
                for request in part
            ]
            try:
                updates = self._trainer.train(task, jobs)
            except torch.OutOfMemoryError as error:
                raise OutOfMemory(
                    f"task {task!r}: out of memory while it trained request {part[0]}; lower its "
                    f'batch_size, or take compute.device = "cpu" ({error})'
                ) from None
            for request, update in zip(part, updates, strict=True):
                pending = self._pending[request]
                pending.update = update
                del waiting[request]
                store.release(pending.version)

    def _release(self, request: RequestId, task: TaskName) -> None:
        pending = self._pending[request]
        pending.uses -= 1
        if pending.uses == 0:
            del self._pending[request]
            if pending.update is None and not self._remote:
                del self._waiting[task][request]
                self._stores[task].release(pending.version)
