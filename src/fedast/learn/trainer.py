"""Local training, the slow and obvious way: one client after another, one step after another.

This is the reference that faster trainers are checked against, and it works
with any ``nn.Module``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

import numpy as np
import torch

from fedast.core.protocol import ClientId, RequestId, TaskName
from fedast.core.streams import Stream
from fedast.learn.batches import draw_batches
from fedast.learn.flat import FlatModel
from fedast.learn.metrics import METRICS, cross_entropy
from fedast.learn.points import Arrays, Points
from fedast.learn.task import BadTask, Task

Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Job:
    """One LocalTrain: all that the value of its update depends on."""

    request: RequestId
    client: ClientId
    base: torch.Tensor


@dataclass(frozen=True, slots=True)
class Update:
    """What comes back: the mean stochastic gradient (Delta) and the mean training loss."""

    delta: torch.Tensor
    loss: torch.Tensor


class Trainer(Protocol):
    def train(self, task: TaskName, job: Job) -> Update: ...


@dataclass(frozen=True, slots=True)
class Workbench:
    """A task laid out on a device: a working copy of its model, its data, its loss."""

    task: Task
    model: FlatModel
    train: Points
    test: Points
    loss: Loss

    @classmethod
    def build(
        cls,
        task: Task,
        seed: int,
        device: torch.device,
        moved: dict[int, Points] | None = None,
    ) -> Workbench:
        """Lay a task out; its initial model depends on the run's seed and the task's name.

        ``moved`` remembers what is on the device already, for tasks that share data.
        """
        with _seeded(Stream.of(seed, "init", task.name), torch.device("cpu")):
            module = task.model()
        moved = {} if moved is None else moved
        for points in (task.train, task.test):
            if id(points) not in moved:
                moved[id(points)] = points.to(device)
        bench = cls(
            task=task,
            model=FlatModel(module, device),
            train=moved[id(task.train)],
            test=moved[id(task.test)],
            loss=task.loss or METRICS[task.metric].default_loss,
        )
        bench.try_out()
        return bench

    @torch.no_grad()
    def try_out(self) -> None:
        """Find out before the run, not in it, whether model, data and loss fit together."""
        name = f"task {self.task.name!r}"
        if not self.model.parameters:
            raise BadTask(f"{name}: its model has no parameters to train")
        device = self.model.parameters[0].device
        inputs, labels = self.test.batch(torch.arange(min(2, len(self.test)), device=device))
        try:
            outputs = self.model.module.eval()(inputs)
            self.loss(outputs, labels)
        except Exception as error:  # whatever the user's own code raises
            raise BadTask(f"{name}: model, loss and data do not fit: {error}") from error
        if (
            METRICS[self.task.metric].default_loss is not cross_entropy
            or self.task.loss is not None
        ):
            return
        for part, points in (("train", self.train), ("test", self.test)):
            if isinstance(points, Arrays) and not points.labels.is_floating_point():
                low, high = int(points.labels.min()), int(points.labels.max())
                if low < 0 or high >= outputs.shape[1]:
                    wrong = low if low < 0 else high
                    raise BadTask(
                        f"{name}: {part} has label {wrong}, outside the model's "
                        f"{outputs.shape[1]} classes"
                    )


@final
class SerialTrainer:
    def __init__(self, benches: Mapping[TaskName, Workbench], seed: int) -> None:
        self._benches = benches
        self._streams = {name: Stream.of(seed, "train", name) for name in benches}

    def train(self, task: TaskName, job: Job) -> Update:
        """tau steps of SGD from ``job.base``; Delta = (before - after) / (tau eta_c)."""
        bench = self._benches[task]
        how, model = bench.task.training, bench.model
        stream = self._streams[task].child(job.client, job.request)
        batches = draw_batches(
            bench.task.partition[job.client],
            how.batch_size,
            how.local_steps,
            how.sampling,
            np.random.default_rng(stream.bits()),
        )
        model.write(job.base)
        model.module.train()
        total = torch.zeros((), device=job.base.device)
        with _seeded(stream, job.base.device):  # for modules that draw, such as dropout
            for batch in torch.from_numpy(batches).to(job.base.device):
                inputs, labels = bench.train.batch(batch)
                if bench.task.augment is not None:
                    inputs = bench.task.augment(inputs)
                loss = bench.loss(model.module(inputs), labels)
                gradients = torch.autograd.grad(loss, model.parameters, allow_unused=True)
                with torch.no_grad():
                    for parameter, gradient in zip(model.parameters, gradients, strict=True):
                        if gradient is not None:  # None: the loss does not depend on it
                            gradient = gradient.add(parameter, alpha=how.weight_decay)
                            parameter.sub_(gradient, alpha=how.client_rate)
                total += loss.detach()
        delta = (job.base - model.read()) / (how.local_steps * how.client_rate)
        return Update(delta, total / how.local_steps)


@contextmanager
def _seeded(stream: Stream, device: torch.device) -> Iterator[None]:
    """Torch's own generator on a device set to a stream for a block, then as it was before."""
    generator = torch.default_generator
    if device.type == "cuda":
        generator = torch.cuda.default_generators[device.index or 0]
    before = generator.get_state()
    generator.manual_seed(stream.bits() >> 1)
    try:
        yield
    finally:
        generator.set_state(before)
