"""The server's half of every learner: model versions, server steps, variance, evaluation."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch

from fedast.aggregation.averaging import RunningAverage
from fedast.aggregation.calibration import NoRoom
from fedast.aggregation.server import Server
from fedast.core.protocol import ClientId, TaskName, Version
from fedast.learner.evaluation import (
    CapturedEvaluation,
    Meanwhile,
    Part,
    Spread,
    can_be_captured,
    measure,
    measure_in_pieces,
)
from fedast.learner.inference import MakeInference
from fedast.learner.protocol import Evaluation
from fedast.learner.requests import OpenRequest
from fedast.learner.versions import VersionStore
from fedast.tasks.dataset import Dataset
from fedast.tasks.task import BadTask, OutOfMemory, Task
from fedast.training.graphs import Graphs
from fedast.training.prepared import prepared
from fedast.training.trainer import DeviceTask, Update

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model, and at the time the server optimizer's memory and the average of the models."""

    vector: torch.Tensor
    memory: Mapping[str, torch.Tensor]


_MARKS = 1000
"""So many wait to be counted."""
_AVERAGE = "average"
"""In a snapshot's memory: the running average of the models."""
_TEST_BATCH = {"cpu": 2000, "cuda": 20_000}


@final
class ServerModels:
    """The models of all tasks on a device, and what updates do to them."""

    def __init__(
        self,
        tasks: Sequence[Task],
        server_lrs: Mapping[TaskName, float],
        *,
        seed: int,
        device: torch.device,
        inference: MakeInference,
    ) -> None:
        moved: dict[int, Dataset] = {}
        self.device_tasks = {
            task.name: DeviceTask.build(task, seed, device, moved) for task in tasks
        }
        self.stores = {
            name: VersionStore(device_task.model.read())
            for name, device_task in self.device_tasks.items()
        }
        self._device = device
        self._inferences = {
            name: inference(device_task) for name, device_task in self.device_tasks.items()
        }
        self._servers = {
            name: _build_server(device_task, server_lrs[name])
            for name, device_task in self.device_tasks.items()
        }
        self._averages = {
            name: RunningAverage(device_task.task.server.averaging.exponent, self.parameters(name))
            for name, device_task in self.device_tasks.items()
            if device_task.task.server.averaging.use == "always"
        }
        self._evaluations = dict.fromkeys(self._averages, 0)
        """So far, of the averages: every so many-th is also made of the newest model."""
        self._captures: dict[TaskName, CapturedEvaluation | None] = {}
        self._graphs = Graphs()
        self._saturated: dict[TaskName, torch.Tensor] = {}
        """Counts on the device; reading one would make the host wait."""
        self._marks: dict[TaskName, list[torch.Tensor]] = {}
        """Marks that are not counted yet: many are counted as fast as one."""
        self._test_batch = _TEST_BATCH[device.type]
        self._norms: dict[TaskName, tuple[torch.Tensor, float]] = {}
        """The newest models' norms, as every update is compared with them."""

    def parameters(self, task: TaskName) -> torch.Tensor:
        """The newest model of a task, as a flat vector."""
        store = self.stores[task]
        return store[store.newest]

    def result(self, task: TaskName) -> torch.Tensor:
        """What is evaluated and handed out: the average of the models if the task has one,
        otherwise the newest model."""
        average = self._averages.get(task)
        return self.parameters(task) if average is None else average.value

    def buffers(self, task: TaskName) -> int:
        """How many of the vector's last entries are floating-point buffers."""
        return self.device_tasks[task].model.buffer_count

    def version(self, task: TaskName) -> Version:
        """The newest model's version: the number of server steps so far."""
        return self.stores[task].newest

    def module(self, task: TaskName) -> torch.nn.Module:
        """A task's result as a module; not a copy, so evaluation overwrites it."""
        model = self.device_tasks[task].model
        model.write(self.result(task))
        return model.module.eval()

    def raw_module(self, task: TaskName) -> torch.nn.Module | None:
        """A copy of the newest model as a module, if an average of the models is the result."""
        if task not in self._averages:
            return None
        model = self.device_tasks[task].model
        model.write(self.parameters(task))
        return copy.deepcopy(model.module).eval()

    def saturated(self) -> dict[TaskName, int]:
        """Aggregated updates in which a value was clipped because it was too large for fp16, by
        task; only tasks trained in fp16 are listed."""
        return {name: int(self._count_of(name)) for name in self._marks}

    def step(
        self,
        task: TaskName,
        requests: Sequence[OpenRequest],
        updates: Sequence[Update],
        weights: tuple[float, ...] | None,
    ) -> None:
        """x <- x - eta_s eta_c tau mean(weight * Delta), or whatever the task's aggregator and
        server optimizer make of the updates."""
        self._count_saturated(task, updates)
        deltas = self._deltas(task, updates)
        store, server = self.stores[task], self._servers[task]
        parameters, buffers = store[store.newest].tensor_split([deltas.shape[1]])
        staleness = [store.newest - request.version for request in requests]
        clients = [request.client for request in requests]
        parameters = parameters - server.step(clients, deltas, weights, staleness)
        if len(buffers):
            buffers = server.mix(buffers, [update.buffers for update in updates], weights)
            parameters = torch.cat([parameters, buffers])
        store.publish(parameters)
        if task in self._averages:
            self._averages[task].follow(parameters, store.newest)

    def snapshot(self, task: TaskName) -> Snapshot:
        """The newest model and what the server optimizer remembers."""
        memory = dict(self._servers[task].memory())
        if task in self._averages:
            memory[_AVERAGE] = self._averages[task].value
        return Snapshot(self.parameters(task), memory)

    def publish(self, task: TaskName, good: Snapshot, suspects: Collection[ClientId]) -> None:
        """Make a snapshot the newest version; what these clients sent is forgotten."""
        self._go_back(task, good, suspects)
        self.stores[task].publish(good.vector)

    def undo(self, task: TaskName, before: Snapshot, suspects: Collection[ClientId]) -> None:
        """The newest version becomes what the one before it was."""
        self._go_back(task, before, suspects)
        self.stores[task].put(self.version(task), before.vector)

    def _go_back(self, task: TaskName, to: Snapshot, suspects: Collection[ClientId]) -> None:
        memory = dict(to.memory)
        average = memory.pop(_AVERAGE, None)
        if average is not None:
            self._averages[task].value = average
        self._servers[task].go_back(memory, suspects)

    def move(self, task: TaskName) -> float:
        """The norm of an update that moves a client's model by the model's own norm."""
        training = self.device_tasks[task].task.training
        newest = self.parameters(task)
        vector, own = self._norms.get(task, (None, 0.0))
        if vector is not newest:  # versions are not changed, they are replaced
            own = float(newest[: self.device_tasks[task].model.buffers_from].norm())
            self._norms[task] = newest, own
        return max(1.0, own) / (training.client_lr * training.local_steps)

    def skip_step(self, task: TaskName) -> None:
        """Count a server step whose outcome ``restore`` will bring."""
        store = self.stores[task]
        store.publish(store[store.newest])

    def variance(self, task: TaskName, updates: Sequence[Update]) -> float:
        """(1/V) sum |Delta_i - mean|^2 / |mean|^2 over these V updates."""
        deltas = self._deltas(task, updates).double()
        mean = deltas.mean(dim=0)
        spread = (deltas - mean).square().sum(dim=1).mean()
        return float(spread / mean.square().sum())

    def evaluate(
        self, task: TaskName, spread: Spread | None = None, meanwhile: Meanwhile = ()
    ) -> Evaluation:
        """How the task's result does on its test set; ``spread`` has others do it, ``meanwhile``
        is what to do while a GPU does it as a graph."""
        device_task = self.device_tasks[task]
        found = self._measure(task, "test", self.result(task), spread, meanwhile)
        if task not in self._averages:
            return found
        every = device_task.task.server.averaging.raw_every
        due = every > 0 and self._evaluations[task] % every == 0
        self._evaluations[task] += 1
        if not due:
            return found
        raw = self._measure(task, "test", self.parameters(task), spread, meanwhile)
        return replace(found, raw=(raw.metric, raw.loss))

    def has_graph(self, task: TaskName) -> bool:
        """Whether the task's evaluation is a graph, which uses nothing but its own copy of the
        model."""
        return self._captures.get(task) is not None

    def final_evaluation(self, task: TaskName, spread: Spread | None = None) -> Evaluation | None:
        """The task's result on its larger test set, if it has one."""
        if self.device_tasks[task].task.final_test is None:
            return None
        return self._measure(task, "final_test", self.result(task), spread)

    def state(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for number, (name, store) in enumerate(self.stores.items()):
            for version in store.versions():
                tensors[f"{number}.version.{version}"] = store[version]
            for key, value in self._servers[name].state().items():
                tensors[f"{number}.server.{key}"] = value
            if name in self._averages:
                tensors[f"{number}.average"] = self._averages[name].value
                tensors[f"{number}.evaluations"] = torch.tensor(self._evaluations[name])
            if name in self._marks:
                tensors[f"{number}.saturated"] = self._count_of(name)
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> set[str]:
        """Take back what ``state`` gave, for the versions kept now; the names it used."""
        used: set[str] = set()
        for number, (name, store) in enumerate(self.stores.items()):
            for version in store.versions():
                key = f"{number}.version.{version}"
                if tensors[key].shape != store[version].shape:
                    raise ValueError(
                        f"{key} has shape {tuple(tensors[key].shape)}, the model of task {name!r} "
                        f"has {tuple(store[version].shape)}"
                    )
                store.put(version, tensors[key].to(self._device))
                used.add(key)
            if name in self._averages:
                key = f"{number}.average"
                self._averages[name].value = tensors[key].to(self._device)
                used.add(key)
                key = f"{number}.evaluations"
                if key in tensors:  # (there were averages before there were raw curves)
                    self._evaluations[name] = int(tensors[key])
                    used.add(key)
            key = f"{number}.saturated"
            if key in tensors:
                self._saturated[name] = tensors[key].to(self._device)
                self._marks[name] = []
                used.add(key)
            prefix = f"{number}.server."
            own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            self._servers[name].restore(own)
            if own.keys() != self._servers[name].state().keys():
                raise LookupError(f"task {name!r} has another aggregator or server optimizer")
            used |= {prefix + key for key in own}
        return used

    def _measure(
        self,
        task: TaskName,
        part: Part,
        vector: torch.Tensor,
        spread: Spread | None,
        meanwhile: Meanwhile = (),
    ) -> Evaluation:
        device_task = self.device_tasks[task]
        if spread is not None:
            return measure_in_pieces(spread, device_task, vector, part, self._test_batch)
        dataset = device_task.test
        if part == "final_test":
            assert device_task.task.final_test is not None
            dataset = device_task.task.final_test.to(self._device)
        while True:
            batch = min(self._test_batch, device_task.task.test_batch or self._test_batch)
            try:
                captured = self._captured(task, batch) if part == "test" else None
                if captured is not None:
                    return captured(vector, meanwhile)
                self._inferences[task].load(vector)
                return measure(device_task, self._inferences[task], dataset, batch)
            except torch.OutOfMemoryError:
                if batch < 2:
                    raise OutOfMemory(
                        f"task {task!r}: not even one test sample fits into the device's memory; "
                        'set compute.device = "cpu"'
                    ) from None
            self._captures.pop(task, None)
            torch.cuda.empty_cache()
            self._test_batch = batch // 2

    def _captured(self, task: TaskName, batch: int) -> CapturedEvaluation | None:
        """The evaluation of a task on its test set as a graph, if it can be one."""
        if task not in self._captures:
            device_task, model = self.device_tasks[task], self._inferences[task]
            self._captures[task] = None
            if can_be_captured(model, device_task):
                test = prepared(device_task.test, model.takes)
                try:
                    self._captures[task] = self._graphs.with_room(
                        partial(CapturedEvaluation, device_task, model, test, batch, self._graphs)
                    )
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as problem:  # a metric needs the host: it is asked as it is
                    torch.cuda.synchronize()
                    _log.info("task %r: evaluated without a graph: %s", task, problem)
        return self._captures[task]

    def _deltas(self, task: TaskName, updates: Iterable[Update]) -> torch.Tensor:
        """One row per update. Older checkpoints and clients append differences of buffers, which
        must not be averaged."""
        end = self.device_tasks[task].model.buffers_from
        deltas = [update.delta for update in updates]
        return torch.stack([delta if len(delta) == end else delta[:end] for delta in deltas])

    def _count_saturated(self, task: TaskName, updates: Iterable[Update]) -> None:
        marks = [update.saturated for update in updates if update.saturated is not None]
        if marks:
            waiting = self._marks.setdefault(task, [])
            waiting += marks
            if len(waiting) > _MARKS:
                self._count_of(task)

    def _count_of(self, task: TaskName) -> torch.Tensor:
        found = self._saturated.get(task, torch.zeros((), dtype=torch.int64, device=self._device))
        if self._marks[task]:
            found = found + torch.stack(self._marks[task]).sum()
        self._saturated[task], self._marks[task] = found, []
        return found


def _build_server(device_task: DeviceTask, server_lr: float) -> Server:
    task, training = device_task.task, device_task.task.training
    try:
        return Server(
            task.server,
            lr=server_lr,
            scale=training.client_lr * training.local_steps,
            initial=device_task.model.read()[: device_task.model.buffers_from],
            trained=device_task.model.parameter_count,
            clients=len(task.partition),
        )
    except NoRoom as error:
        raise BadTask(f"task {task.name!r}: {error}") from None
