"""The one place that turns configuration into objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedast.algorithms.options import AlgorithmOptions
from fedast.config import schema as cfg
from fedast.config.resolve import options_of, settings_of
from fedast.core.protocol import Algorithm, Pool, StopReason, TaskSpec
from fedast.core.streams import Stream
from fedast.run.compute import pick_device
from fedast.sim import delays
from fedast.sim.availability import Always, SimulatedPool
from fedast.sim.simulator import Deadline, Join, Timer
from fedast.tasks.options import build_task
from fedast.tasks.task import Task


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
    tasks: Sequence[Task], specs: Sequence[TaskSpec], simulation: cfg.Simulation
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
        decided = settings_of(task, config)
        built = build_task(options, config.simulation.clients, config.seed, decided.name)
        model = built.model
        if task.initialization != "model":
            from fedast.tasks.initialization import Initialized

            model = Initialized(model, task.initialization)
        tasks.append(
            replace(
                built,
                name=decided.name,
                model=model,
                step_cost=decided.step_cost,
                training=decided.training,
                goal=decided.goal,
                allocation=decided.allocation,
                server=decided.server,
            )
        )
    return tasks


def check_inputs(config: cfg.RunConfig) -> None:
    """Find out whether what a resolved configuration names is there and can be used."""
    for observer in config.observers:
        observer.check()
    if config.compute.device == "cuda":
        pick_device("cuda")
    build_pool(config.simulation)
    build_delay(config.simulation, [task.name or task.use for task in config.tasks])
