"""The one place that turns configuration into objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeAlias, assert_never

import numpy as np

from fedast.algorithms import staleness
from fedast.algorithms.centralized import PseudoClient
from fedast.algorithms.fedast import FedAST
from fedast.algorithms.fedbuff import fedbuff
from fedast.algorithms.rounds import Assignment, Rounds
from fedast.algorithms.selection import LossSelection, Selection, SpeedSelection
from fedast.algorithms.sequential_fedavg import OneAfterAnother
from fedast.algorithms.sync_bayes_st import BayesianOptimisation
from fedast.algorithms.sync_st import RandomPartition, RoundRobin
from fedast.algorithms.sync_ucb_st import UpperConfidenceBounds
from fedast.algorithms.weighting import WEIGHTINGS, Weighting
from fedast.core.protocol import Algorithm, Pool, StopReason, TaskSpec
from fedast.core.streams import Stream
from fedast.experiments import config as cfg
from fedast.experiments.load import ConfigError
from fedast.experiments.plan import Outline, active_cap
from fedast.experiments.resolve import options_of, outline, preset_of
from fedast.learn.own import find_function, make_importable
from fedast.learn.task import BadTask, Task
from fedast.sim import availability, delays
from fedast.sim.simulator import Deadline, Join, Timer

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
GPU_PRECISION: Final = "tf32"
"""What ``auto`` stands for on a GPU."""


def build_weighting(name: str) -> Weighting:
    if name in WEIGHTINGS:
        return WEIGHTINGS[name]
    function = find_function(name)

    def checked(variance: float, task: TaskSpec) -> float:
        try:
            weight = float(function(variance, task))
        except Exception as error:  # whatever the user's own code raises
            raise BadTask(f"{name}: {type(error).__name__}: {error}") from error
        if not 0.0 <= weight < float("inf"):
            raise BadTask(f"{name}: gave {weight} for task {task.name!r}; it must be 0 or more")
        return weight

    return checked


def _build_selection(algorithm: cfg.AsyncConfig | cfg.SyncST) -> Selection | None:
    match algorithm.selection:
        case "uniform":
            return None
        case "speed":
            return SpeedSelection(algorithm.candidates)
        case "loss":
            return LossSelection(algorithm.candidates)


def build_algorithm(
    algorithm: cfg.AlgorithmConfig, specs: Sequence[TaskSpec], pool: Pool, seed: int
) -> Algorithm:
    stream = Stream.of(seed, "control")
    if isinstance(algorithm, cfg.AsyncConfig):
        return _build_async(algorithm, specs, pool, stream)
    return Rounds(
        specs,
        pool,
        stream,
        _build_assignment(algorithm),
        first_k=None if algorithm.first_k == "all" else algorithm.first_k,
        free_on_cancel=algorithm.cancel == "free",
        free_stragglers=algorithm.stragglers == "free",
    )


def _build_async(
    algorithm: cfg.AsyncConfig, specs: Sequence[TaskSpec], pool: Pool, stream: Stream
) -> Algorithm:
    weight = _build_weight(algorithm)
    selection = _build_selection(algorithm)
    free_on_cancel = algorithm.cancel == "free"
    match algorithm:
        case cfg.FedASTDynamic():
            return FedAST(
                specs,
                pool,
                stream,
                dynamic=True,
                weighting=build_weighting(algorithm.weighting),
                variance_window=algorithm.variance_window,
                period=algorithm.period,
                weight=weight,
                selection=selection,
                max_staleness=algorithm.max_staleness,
                free_on_cancel=free_on_cancel,
            )
        case cfg.FedASTStatic() | cfg.FedASTNoBuffer():
            return FedAST(
                specs,
                pool,
                stream,
                dynamic=False,
                buffered=isinstance(algorithm, cfg.FedASTStatic),
                weight=weight,
                selection=selection,
                max_staleness=algorithm.max_staleness,
                free_on_cancel=free_on_cancel,
            )
        case cfg.FedBuff():
            return fedbuff(
                specs,
                pool,
                stream,
                idle=algorithm.idle,
                weight=weight,
                selection=selection,
                max_staleness=algorithm.max_staleness,
                free_on_cancel=free_on_cancel,
            )
        case _:
            assert_never(algorithm)


def _build_weight(algorithm: cfg.AsyncConfig) -> staleness.Weight | None:
    match algorithm.staleness_weight:
        case "constant":
            return None
        case "polynomial":
            return staleness.polynomial(algorithm.staleness_slope)
        case "hinge":
            return staleness.hinge(algorithm.staleness_slope, algorithm.staleness_grace)


def _build_assignment(algorithm: cfg.SyncConfig) -> Assignment:
    match algorithm:
        case cfg.SyncST(assignment="random"):
            return RandomPartition(_build_selection(algorithm))
        case cfg.SyncST():
            return RoundRobin()
        case cfg.SyncBayesST():
            return BayesianOptimisation(
                alpha=algorithm.alpha,
                candidates=algorithm.candidates,
                extra=algorithm.extra,
                history=algorithm.history,
            )
        case cfg.SyncUCBST():
            return UpperConfidenceBounds(
                gamma=algorithm.gamma, extra=algorithm.extra, per_batch=algorithm.loss == "batch"
            )
        case cfg.SequentialFedAvg():
            return OneAfterAnother()
        case cfg.Centralized():
            return PseudoClient()
        case _:
            assert_never(algorithm)


def centralize(
    tasks: Sequence[Task], simulation: cfg.Simulation
) -> tuple[list[Task], cfg.Simulation]:
    """One pseudo-client with all the data that the clients have between them."""
    pooled = [
        replace(task, partition=[np.unique(np.concatenate(task.partition))]) for task in tasks
    ]
    alone = {"clients": 1, "availability": cfg.Always(), "speeds": cfg.SpeedGroups(
        factors=(1.0,), shares=(1.0,)
    )}  # fmt: skip
    return pooled, simulation.model_copy(update=alone)


def build_pool(simulation: cfg.Simulation) -> availability.SimulatedPool:
    clients = simulation.clients
    match simulation.availability:
        case cfg.ActiveCap():
            return availability.ActiveCap(clients, active_cap(simulation) or clients)
        case cfg.Bernoulli(p=p):
            return availability.Bernoulli(clients, p)
        case cfg.Always():
            return availability.Always(clients)
        case cfg.Trace(file=file, leave=leave):
            return availability.Trace(Path(file), clients, lose=leave == "lose")
        case _:
            assert_never(simulation.availability)


def build_delay(simulation: cfg.Simulation, tasks: Sequence[str]) -> delays.Delay:
    match simulation.delay:
        case cfg.ShiftedExponential(scale=scale):
            return delays.ShiftedExponential(scale)
        case cfg.Constant(value=value):
            return delays.Constant(value)
        case cfg.Uniform(low=low, high=high):
            return delays.Uniform(low, high)
        case cfg.Lognormal(median=median, sigma=sigma):
            return delays.Lognormal(median, sigma)
        case cfg.Measured(file=file):
            return delays.Measured(Path(file), tasks)
        case _:
            assert_never(simulation.delay)


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
        preset = preset_of(task, config)
        sketch = outline(task, preset, config.algorithm.synchronous)
        options = None if preset.options is None else options_of(task, preset, sketch.name)
        problem = preset.build(options, config.simulation.clients, config.seed, sketch.name)
        model = problem.model
        if task.initialisation != "model":
            from fedast.learn.initialisation import Initialised

            model = Initialised(model, task.initialisation)
        tasks.append(
            Task(
                name=sketch.name,
                model=model,
                train=problem.train,
                test=problem.test,
                partition=problem.partition,
                final_test=problem.final_test,
                loss=problem.loss,
                augment=problem.augment,
                metric=preset.metric,
                size=preset.size if task.size is None else task.size,
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


def settle_compute(compute: cfg.Compute) -> cfg.Compute:
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
        from fedast.learn.processes import can_fork

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
    if isinstance(config.algorithm, cfg.FedASTDynamic):
        build_weighting(config.algorithm.weighting)
    build_pool(config.simulation)
    build_delay(config.simulation, [task.name or task.use for task in config.tasks])
