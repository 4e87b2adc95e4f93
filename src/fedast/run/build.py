"""The one place that turns configuration into objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, TypeAlias

import numpy as np

from fedast.algorithms.options import AlgorithmOptions
from fedast.config import schema as cfg
from fedast.config.plan import Outline
from fedast.config.resolve import defaults_of, options_of, outline
from fedast.core.protocol import Algorithm, Pool, StopReason, TaskSpec
from fedast.core.streams import Stream
from fedast.parts.errors import ConfigError
from fedast.parts.registry import make_importable
from fedast.sim import delays
from fedast.sim.availability import Always, SimulatedPool
from fedast.sim.simulator import Deadline, Join, Timer
from fedast.tasks.options import build_task
from fedast.tasks.task import Task

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
GPU_PRECISION: Final = "fp16"
"""What ``auto`` stands for on a GPU."""


def build_algorithm(
    options: AlgorithmOptions, specs: Sequence[TaskSpec], pool: Pool, seed: int
) -> Algorithm:
    """The control plane of a run, from the options of its algorithm."""
    return options.build(specs, pool, Stream.of(seed, "control"))


def centralize(
    tasks: Sequence[Task], simulation: cfg.Simulation
) -> tuple[list[Task], cfg.Simulation]:
    """One pseudo-client with all the data that the clients have between them."""
    pooled = [
        replace(task, partition=[np.unique(np.concatenate(task.partition))]) for task in tasks
    ]
    alone = {"clients": 1, "availability": Always(), "speeds": cfg.SpeedGroups(
        factors=(1.0,), shares=(1.0,)
    )}  # fmt: skip
    return pooled, simulation.model_copy(update=alone)


def build_pool(simulation: cfg.Simulation) -> SimulatedPool:
    return simulation.availability.build(simulation.clients)


def build_delay(simulation: cfg.Simulation, tasks: Sequence[str]) -> delays.Delay:
    return simulation.delay.build(tasks)


def build_speeds(simulation: cfg.Simulation, seed: int) -> delays.Speeds:
    groups = simulation.speeds
    return delays.Speeds(simulation.clients, groups.factors, groups.shares, seed)


def build_timers(
    tasks: Sequence[Outline], specs: Sequence[TaskSpec], simulation: cfg.Simulation
) -> list[tuple[float, Timer]]:
    timers: list[tuple[float, Timer]] = []
    for task, spec in zip(tasks, specs, strict=True):
        goal = task.goal
        if goal.join_time > 0:
            timers.append((goal.join_time, Join(spec)))
        if goal.leave_time is not None:
            timers.append((goal.leave_time, Deadline((task.name,), StopReason.REMOVED)))
        if goal.max_time is not None:
            timers.append((goal.max_time, Deadline((task.name,), StopReason.TIME)))
    if simulation.max_time is not None:
        timers.append((simulation.max_time, Deadline(None, StopReason.TIME)))
    return timers


def build_tasks(config: cfg.RunConfig) -> list[Task]:
    """The tasks of a resolved configuration, with their data."""
    tasks = []
    for task in config.tasks:
        options = options_of(task, config)
        defaults = defaults_of(task, config)
        sketch = outline(task, defaults, config.algorithm.synchronous)
        built = build_task(options, config.simulation.clients, config.seed, sketch.name)
        model = built.model
        if task.initialization != "model":
            from fedast.tasks.initialization import Initialized

            model = Initialized(model, task.initialization)
        tasks.append(
            replace(
                built,
                name=sketch.name,
                model=model,
                step_cost=defaults.step_cost if task.step_cost is None else task.step_cost,
                training=sketch.training,
                goal=sketch.goal,
                allocation=sketch.allocation,
                server=sketch.server,
            )
        )
    return tasks


def pick_device(device: Device) -> Literal["cpu", "cuda"]:
    if device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise ConfigError("compute.device", "there is no CUDA device here; use cpu or auto")
    return "cpu"


def resolve_compute(compute: cfg.Compute) -> cfg.Compute:
    """With the device found and what depends on it, but for the choice of trainers."""
    device = pick_device(compute.device)
    update: dict[str, object] = {"device": device}
    if compute.precision == "auto":
        update["precision"] = GPU_PRECISION if device == "cuda" else "fp32"
    elif device == "cpu" and compute.precision != "fp32":
        raise ConfigError("compute.precision", f"{compute.precision} needs a CUDA device; use fp32")
    if compute.workers is None:
        update["workers"] = available_cores()
    if "processes" in (compute.trainer, *compute.trainers.values()):
        from fedast.training.processes import can_fork

        if not can_fork():
            raise ConfigError(
                "compute.trainer", "processes need a system that forks, without a GPU; use another"
            )
    return compute.model_copy(update=update)


def available_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def check_inputs(config: cfg.RunConfig) -> None:
    """Find out whether what a resolved configuration names is there and can be used."""
    if config.compute.device == "cuda":
        pick_device("cuda")
    make_importable(config.path)
    build_pool(config.simulation)
    build_delay(config.simulation, [task.name or task.use for task in config.tasks])
