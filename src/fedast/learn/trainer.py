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
from fedast.learn.metrics import METRICS
from fedast.learn.task import Task

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
    train: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    loss: Loss

    @classmethod
    def build(cls, task: Task, seed: int, device: torch.device) -> Workbench:
        """Lay a task out; its initial model depends on the run's seed and the task's name."""
        with _seeded(Stream.of(seed, "init", task.name), torch.device("cpu")):
            module = task.model()
        model = FlatModel(module, device)
        default: Loss = getattr(torch.nn.functional, METRICS[task.metric].default_loss)
        return cls(
            task=task,
            model=model,
            train=(task.train[0].to(device), task.train[1].to(device)),
            test=(task.test[0].to(device), task.test[1].to(device)),
            loss=task.loss or default,
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
        inputs, labels = bench.train
        model.write(job.base)
        model.module.train()
        total = torch.zeros((), device=job.base.device)
        with _seeded(stream, job.base.device):  # for modules that draw, such as dropout
            for batch in torch.from_numpy(batches).to(job.base.device):
                loss = bench.loss(model.module(inputs[batch]), labels[batch])
                gradients = torch.autograd.grad(loss, model.parameters)
                with torch.no_grad():
                    for parameter, gradient in zip(model.parameters, gradients, strict=True):
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
