"""``fedast bench --models``: local training of nets of many kinds, on random data.

``quick`` makes everything small enough for a test; its numbers say nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import psutil
import torch
from torch import nn

from fedast.config.schema import Compute
from fedast.run import bench
from fedast.run.bench_nets import CharGPT, VisionTransformer, depthwise_net
from fedast.run.compute import arithmetic, precision_of
from fedast.tasks.dataset import Arrays, Dataset, Windows
from fedast.tasks.models import CharLSTM, cifar_cnn, lenet5, perceptron, resnet18
from fedast.tasks.task import Task, Training
from fedast.training.options import TRAINERS, Resources
from fedast.training.trainer import DeviceTask, Job

NAMES = (
    "perceptron",
    "lenet5",
    "cifar-net",
    "lstm",
    "resnet18-batch-norm",
    "resnet18-group-norm",
    "depthwise",
    "vit",
    "gpt",
)


@dataclass(frozen=True)
class Measured:
    """One net with one trainer."""

    model: str
    trainer: str
    clients: int
    """Trained together."""
    parameters: int
    steps: int
    """Local steps of an update."""
    ms: float
    """Per local update."""
    floor_ms: float
    """The least time that its operations and bytes allow here."""
    gib: float
    """Memory that the training took, beyond the data: the GPU's, or the host's."""
    note: str = ""
    """Why clients were trained one by one, if they were."""


def model_tasks(names: Sequence[str] = NAMES, *, quick: bool = False) -> list[Task]:
    """A task for each net, on random data of its shape."""
    return [_task(name, quick) for name in names]


def _task(name: str, quick: bool) -> Task:
    clients, samples = (3, 12) if quick else (100, 300)
    total = clients * samples
    draws = torch.Generator().manual_seed(0)

    def images(channels: int, side: int, classes: int) -> Arrays:
        return Arrays(
            torch.randn(total, channels, side, side, generator=draws),
            torch.randint(classes, (total,), generator=draws),
        )

    def text(length: int) -> torch.Tensor:
        return torch.randint(80, (total, length), generator=draws)

    small = 8 if quick else 64
    # The paper's nets take its 27 local steps; the larger ones 5, as its ResNet-18 does.
    few, many = (2, 2) if quick else (5, 27)
    build: dict[str, Callable[[], tuple[Callable[[], nn.Module], Dataset, int]]] = {
        "perceptron": lambda: (partial(perceptron, (784, 200, 200, 10)), images(1, 28, 10), many),
        "lenet5": lambda: (lenet5, images(1, 28, 10), many),
        "cifar-net": lambda: (cifar_cnn, images(3, 32, 10), many),
        "lstm": lambda: (
            CharLSTM,
            Windows(text(100).flatten().to(torch.uint8), torch.arange(total), 10 if quick else 80),
            many,
        ),
        "resnet18-batch-norm": lambda: (
            partial(resnet18, norm=nn.BatchNorm2d, width=small), images(3, 32, 100), few
        ),
        "resnet18-group-norm": lambda: (partial(resnet18, width=small), images(3, 32, 100), few),
        "depthwise": lambda: (partial(depthwise_net, width=small // 2), images(3, 32, 100), few),
        "vit": lambda: (
            partial(VisionTransformer, width=24, depth=1) if quick else VisionTransformer,
            images(3, 32, 100),
            few,
        ),
        "gpt": lambda: (
            partial(CharGPT, length=16, width=24, depth=1) if quick else CharGPT,
            Arrays(text(16 if quick else 128), text(16 if quick else 128)),
            few,
        ),
    }  # fmt: skip
    model, dataset, steps = build[name]()
    count = len(dataset) // clients
    return Task(
        name=name,
        model=model,
        train=dataset,
        test=dataset,
        partition=[np.arange(n * count, (n + 1) * count) for n in range(clients)],
        training=Training(
            local_steps=steps, batch_size=4 if quick else 32, client_lr=0.02, weight_decay=3e-4
        ),
    )


def measure_models(
    tasks: Sequence[Task],
    compute: Compute,
    trainers: Sequence[str],
    *,
    together: int,
    seconds: float,
    seen: Callable[[Measured], None] = lambda measured: None,
) -> list[Measured]:
    """Every net with every trainer, one after another; nothing but what is measured is loaded."""
    found = []
    floors = {floor.task: floor for floor in bench.floors(tasks, bench.measure_rates(compute))}
    device = torch.device(compute.device)
    with arithmetic(compute):
        for task in tasks:
            device_task = DeviceTask.build(task, 0, device)
            gib: dict[str, float] = {}
            for name in trainers:
                gib[name] = _memory(device_task, name, compute, together)
            for name in trainers:
                speed = bench.measure_one(device_task, name, compute, together, seconds)
                measured = Measured(
                    model=task.name,
                    trainer=name,
                    clients=speed.clients,
                    parameters=device_task.model.buffers_from,
                    steps=task.training.local_steps,
                    ms=speed.ms,
                    floor_ms=floors[task.name].ms,
                    gib=gib[name],
                    note=speed.note if name == "batched" else "",
                )
                seen(measured)
                found.append(measured)
    return found


def _memory(device_task: DeviceTask, name: str, compute: Compute, together: int) -> float:
    """GiB that a training takes at most; worker processes are counted."""
    resources = Resources(compute.workers or 1, precision=precision_of(compute))
    cuda = compute.device == "cuda"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = float(torch.cuda.memory_allocated())
    watch = _Watch()
    trainer = TRAINERS.parse(name, "--trainer").build(
        {device_task.task.name: device_task}, 0, resources
    )
    base = device_task.model.read()
    count = min(together, trainer.limit(device_task.task.name))
    jobs = [Job(n, n % len(device_task.task.partition), base) for n in range(count)]
    try:
        trainer.train(device_task.task.name, jobs)
    finally:
        trainer.close()
        taken = watch.stop()
    if cuda:
        torch.cuda.synchronize()
        taken = torch.cuda.max_memory_allocated() - before
    return taken / 2**30


class _Watch:
    """The most memory that this process and its children take beyond what they have now."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before = self._now()
        self._most = self._before
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _now(self) -> int:
        total: int = self._process.memory_info().rss
        for child in self._process.children():
            with suppress(psutil.Error):  # it may have ended
                total += child.memory_full_info().uss  # without what it shares with this process
        return total

    def _look(self) -> None:
        while not self._done.wait(0.01):
            self._most = max(self._most, self._now())

    def stop(self) -> float:
        self._done.set()
        self._thread.join()
        return float(max(self._most, self._now()) - self._before)
