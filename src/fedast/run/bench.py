"""How fast each trainer is on this machine, compared with what the machine could do at best.

All numbers of one call are measured together, since machines differ and their
speed drifts. The floor of an update is the longer of two times: its operations at
the rate of a large matrix product, and its bytes (every parameter read and
written once a step, every input read once) at the rate of a large copy. Both rates
are measured in the same call.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedast.config.schema import Compute, RunConfig
from fedast.core.protocol import Algorithm, Observers, TaskName
from fedast.core.streams import Stream
from fedast.learner.profiling import Profiler
from fedast.records.metrics import RunMetrics
from fedast.run.build import build_tasks
from fedast.run.compute import arithmetic, choose_trainers, resolve_compute
from fedast.run.simulate import simulate
from fedast.tasks.dataset import Arrays, Dataset, Windows
from fedast.tasks.models import CharLSTM, cifar_cnn, lenet5, perceptron
from fedast.tasks.task import Task, Training
from fedast.training.batched import BatchedTrainer
from fedast.training.kernels.net import Precision
from fedast.training.options import TRAINERS, Resources
from fedast.training.processes import ProcessTrainer
from fedast.training.trainer import DeviceTask, Job, batches_of

CLIENTS, SAMPLES = 100, 300


@dataclass(frozen=True)
class Speed:
    """One task with one trainer."""

    task: str
    trainer: str
    clients: int
    """Trained in one batch, or at the same time in all processes."""
    ms: float
    """Per local update."""
    note: str = ""


@dataclass(frozen=True)
class Floor:
    task: str
    gigaflop: float
    """Operations of one local update."""
    megabytes: float
    ms: float
    """The least time that operations and bytes allow here."""


@dataclass(frozen=True)
class Rates:
    teraflops: float
    """Of a large matrix product."""
    gigabytes: float
    """Per second, of a large copy, read and written."""


def paper_shapes() -> list[Task]:
    """The models of the paper's heterogeneous experiment on random data of the same shape."""
    generator = torch.Generator().manual_seed(0)
    total = CLIENTS * SAMPLES

    def images(*shape: int) -> Arrays:
        return Arrays(
            torch.randn(total, *shape, generator=generator),
            torch.randint(10, (total,), generator=generator),
        )

    text = torch.randint(80, (total + 100,), generator=generator).to(torch.uint8)
    images28 = images(1, 28, 28)
    data: list[tuple[str, Callable[[], torch.nn.Module], Dataset, Training]] = [
        ("mnist", lambda: perceptron((784, 200, 200, 10)), images28, Training(client_lr=0.1)),
        ("fashion-mnist", lenet5, images28, Training(client_lr=0.06)),
        ("cifar10", cifar_cnn, images(3, 32, 32), Training(client_lr=0.1)),
        (
            "shakespeare",
            CharLSTM,
            Windows(text, torch.arange(total), 80),
            Training(batch_size=64, client_lr=0.5, sampling="independent"),
        ),
    ]
    partition = [np.arange(n * SAMPLES, (n + 1) * SAMPLES) for n in range(CLIENTS)]
    return [
        Task(
            name=name,
            model=model,
            train=dataset,
            test=dataset,
            partition=partition,
            training=training.model_copy(update={"weight_decay": 3e-4}),
        )
        for name, model, dataset, training in data
    ]


def measure_tasks(
    tasks: Sequence[Task],
    compute: Compute,
    trainers: Sequence[str],
    *,
    together: int,
    seconds: float,
    seen: Callable[[Speed], None] = lambda speed: None,
) -> list[Speed]:
    """Milliseconds per local update of every task with every trainer."""
    found = []
    with arithmetic(compute):
        device = torch.device(compute.device)
        moved: dict[int, Dataset] = {}
        for task in tasks:
            device_task = DeviceTask.build(task, 0, device, moved)
            for name in trainers:
                speed = measure_one(device_task, name, compute, together, seconds)
                seen(speed)
                found.append(speed)
    return found


def measure_one(
    device_task: DeviceTask, name: str, compute: Compute, together: int, seconds: float
) -> Speed:
    """Milliseconds per local update of a task with a trainer, the best of several tries."""
    task = device_task.task.name
    device_tasks = {task: device_task}
    note = ""
    precision: Precision = "fp32" if compute.precision == "auto" else compute.precision
    resources = Resources(compute.workers or 1, precision=precision)
    trainer = TRAINERS.parse(name, "--trainer").build(device_tasks, 0, resources)
    match trainer:
        case ProcessTrainer():
            count = 4 * resources.workers
            note = f"{resources.workers} workers"
        case BatchedTrainer():
            note = trainer.alone.get(task, "")
            count = 1 if note else together
        case _:
            count = min(together, trainer.limit(task))
    base = device_task.model.read()
    jobs = [Job(n, n % len(device_task.task.partition), base) for n in range(count)]
    try:
        trainer.train(task, jobs)  # compiles, captures, warms up
        _wait(base.device)
        times: list[float] = []
        began = time.perf_counter()
        while not times or time.perf_counter() - began < seconds:
            start = time.perf_counter()
            trainer.train(task, jobs)
            _wait(base.device)
            times.append(time.perf_counter() - start)
    finally:
        trainer.close()
    return Speed(task, name, count, 1e3 * min(times) / count, note)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_rates(compute: Compute) -> Rates:
    device = torch.device(compute.device)
    size = 8192 if device.type == "cuda" else 1024
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(compute.precision, torch.float32)
    with arithmetic(compute):
        a = torch.randn(size, size, device=device, dtype=dtype)
        product = _best(lambda: torch.mm(a, a), device)
        copied = torch.empty((1 << 30) if device.type == "cuda" else (1 << 26), device=device)
        target = torch.empty_like(copied)
        copy = _best(lambda: target.copy_(copied), device)
    return Rates(2 * size**3 / product / 1e12, 2 * copied.nbytes / copy / 1e9)


def _best(work: Callable[[], object], device: torch.device, tries: int = 8) -> float:
    times = []
    for _ in range(tries):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - began)
    return min(times)


def floors(tasks: Sequence[Task], rates: Rates) -> list[Floor]:
    """Operations are counted by running one local step, on the CPU."""
    found = []
    for task in tasks:
        device_task = DeviceTask.build(task, 0, torch.device("cpu"))
        how = task.training
        inputs, labels = device_task.train.batch(
            torch.arange(how.batch_size) % len(device_task.train)
        )
        device_task.model.module.train()
        with FlopCounterMode(display=False) as counter:
            loss = device_task.loss(device_task.model.module(inputs), labels)
            torch.autograd.grad(loss, device_task.model.parameters, allow_unused=True)
        flops = counter.get_total_flops() + _lstm_flops(device_task, how.batch_size)
        step_bytes = 2 * 4 * len(device_task.model.read()) + inputs.nbytes
        flops, bytes_ = how.local_steps * flops, how.local_steps * step_bytes
        seconds = max(flops / rates.teraflops / 1e12, bytes_ / rates.gigabytes / 1e9)
        found.append(Floor(task.name, flops / 1e9, bytes_ / 1e6, 1e3 * seconds))
    return found


def _lstm_flops(device_task: DeviceTask, samples: int) -> float:
    """Torch's fused LSTM, which the counter misses: three products per weight and character."""
    module = device_task.model.module
    if not isinstance(module, CharLSTM):
        return 0.0
    weights = sum(p.numel() for p in module.lstm.parameters() if p.ndim == 2)
    inputs, _ = device_task.train.batch(torch.arange(1))
    characters: int = inputs.shape[1]
    return 3.0 * 2.0 * weights * samples * characters


# --- where the time of a whole run goes ---------------------------------------------------


@dataclass(frozen=True)
class Shares:
    """Where the wall time of a run went, in seconds."""

    updates: int
    until: float
    """Simulated time at its end."""
    first_update: float
    """Seconds until the first aggregation, not counting the data."""
    wall: float
    training: float
    data: float
    """The part of training spent drawing mini-batches, measured separately."""
    evaluation: float
    aggregation: float
    sizes: Mapping[TaskName, Sequence[int]]
    """Clients in each batch."""
    gpu_gib: float | None
    host_gib: float
    trainers: Mapping[TaskName, str]

    @property
    def control(self) -> float:
        return self.wall - self.training - self.evaluation - self.aggregation


def measure_run(config: RunConfig, updates: int | None = None) -> Shares:
    """Run a resolved configuration (for at most ``updates`` updates) and measure its parts."""
    tasks = build_tasks(config)
    compute = choose_trainers(resolve_compute(config.compute), tasks, config.seed)
    profiler = Profiler(torch.device(compute.device))
    watched = _Watched(updates)
    began = time.perf_counter()
    outcome = simulate(
        tasks,
        config.algorithm,
        config.simulation,
        seed=config.seed,
        compute=compute,
        watch=(watched.watch,),
        stop=watched.enough,
        profiler=profiler,
        noted=True,
    )
    wall = time.perf_counter() - began
    data = 0.0
    for task in tasks:
        device_task = DeviceTask.build(task, 0, torch.device("cpu"))
        job, stream = Job(0, 0, device_task.model.read()), Stream.of(0)
        draw = partial(batches_of, device_task, stream, job)
        each = _best(draw, torch.device("cpu"))
        data += each * sum(profiler.sizes.get(task.name, ()))
    return Shares(
        updates=sum(task.updates for task in outcome.result.tasks.values()),
        until=outcome.result.finish_time,
        first_update=watched.first - began,
        wall=wall,
        training=profiler.seconds["training"],
        data=data,
        evaluation=profiler.seconds["evaluation"],
        aggregation=profiler.seconds["aggregation"],
        sizes=profiler.sizes,
        gpu_gib=torch.cuda.max_memory_allocated() / 2**30 if compute.device == "cuda" else None,
        host_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        trainers={task: trainer.name for task, trainer in compute.trainers.items()},
    )


@final
class _Watched:
    """Stops a run after ``updates`` updates, and notes when the first aggregation was done."""

    def __init__(self, updates: int | None) -> None:
        self._updates = updates
        self._run_metrics: RunMetrics | None = None
        self.first = time.perf_counter()
        self._seen = False

    def watch(self, algorithm: Algorithm, run_metrics: RunMetrics) -> Observers:
        self._run_metrics = run_metrics
        return Observers()

    def enough(self) -> bool:
        assert self._run_metrics is not None
        if not self._seen and any(task.rounds for task in self._run_metrics.tasks.values()):
            self._seen, self.first = True, time.perf_counter()
        return self._updates is not None and self._run_metrics.updates >= self._updates
