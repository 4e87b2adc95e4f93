"""Simulate a federation: the Python API's one function, and what every run goes through."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from fedast.core.protocol import Algorithm, FinishReason, Observer, Observers, TaskName
from fedast.experiments.build import (
    Device,
    build_algorithm,
    build_delay,
    build_pool,
    build_speeds,
    build_timers,
    centralize,
    pick_device,
)
from fedast.experiments.config import ALGORITHMS, AlgorithmConfig, Centralized, Simulation
from fedast.experiments.load import ConfigError, nearest
from fedast.experiments.plan import plan
from fedast.learn.learner import TorchLearner
from fedast.learn.task import Task
from fedast.records.events import EventLog
from fedast.records.run import RESULT, RunResult, UnusableFolder, write_result
from fedast.records.tally import Point, Tally
from fedast.sim.delays import Timing
from fedast.sim.simulator import Simulator

Watch: TypeAlias = Callable[[Algorithm, Tally], Observer]


@dataclass(frozen=True)
class Outcome:
    """What a simulation gives: numbers, curves, trained models."""

    result: RunResult
    models: Mapping[TaskName, torch.nn.Module]
    starved: bool
    """Whether it ended because no client would ever be available again."""

    def save(self, folder: Path | str) -> None:
        """Write ``result.json`` and ``curves.csv`` to a folder that holds no other result."""
        folder = Path(folder)
        if (folder / RESULT).exists():
            raise UnusableFolder(f"{folder}: holds another run ({RESULT})")
        folder.mkdir(parents=True, exist_ok=True)
        write_result(folder, self.result)

    @property
    def curves(self) -> Mapping[TaskName, tuple[Point, ...]]:
        return self.result.curves


def simulate(
    tasks: Sequence[Task],
    algorithm: AlgorithmConfig | str = "fedast-d",
    simulation: Simulation | None = None,
    *,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
    events: Path | str | None = None,
    watch: Sequence[Watch] = (),
    stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Train ``tasks`` over one pool of simulated clients until each has ended.

    ``algorithm`` is a name (``fedast list algorithms``) or an options object
    such as ``FedASTDynamic(requests=64)``. ``simulation`` describes the
    clients; by default there are as many as the tasks' partitions have parts.
    ``events`` is a file for the log of every event. ``stop`` is asked before
    each step and ends the run early when it says so.
    """
    if isinstance(algorithm, str):
        if algorithm not in ALGORITHMS:
            known = nearest(algorithm, ALGORITHMS)
            raise ConfigError("algorithm", f"unknown algorithm {algorithm!r}{known}")
        algorithm = ALGORITHMS[algorithm]()
    if simulation is None:
        simulation = Simulation(clients=len(tasks[0].partition))
    for task in tasks:
        if len(task.partition) != simulation.clients:
            raise ConfigError(
                f"tasks.{task.name}",
                f"its partition has {len(task.partition)} parts for {simulation.clients} clients",
            )
    if isinstance(algorithm, Centralized):
        tasks, simulation = centralize(tasks, simulation)
    specs = plan(tasks, algorithm, simulation)
    present = [spec for spec, task in zip(specs, tasks, strict=True) if task.goal.join_time == 0]
    pool = build_pool(simulation)
    logic = build_algorithm(algorithm, present, pool, seed)
    delay = build_delay(simulation, [task.name for task in tasks])
    place = torch.device(pick_device(device))
    threads_before = torch.get_num_threads()
    with ExitStack() as stack:
        torch.set_num_threads(threads)
        stack.callback(torch.set_num_threads, threads_before)
        began = time.perf_counter()
        learner = TorchLearner(
            tasks,
            {spec.name: spec.server_rate for spec in specs},
            seed=seed,
            device=place,
            variance_window=logic.variance_window,
        )
        tally = Tally(specs)
        observers: list[Observer] = [tally]
        if events is not None:
            file = stack.enter_context(Path(events).open("w", encoding="utf-8"))
            observers.append(EventLog(file))
        observers.extend(make(logic, tally) for make in watch)
        simulator = Simulator(
            logic,
            learner,
            pool,
            delay,
            build_speeds(simulation, seed),
            {task.name: Timing(task.name, task.training.local_steps, task.size) for task in tasks},
            observers[0] if len(observers) == 1 else Observers(tuple(observers)),
            seed=seed,
            loss_rate=simulation.loss_rate,
            timers=build_timers(tasks, specs, simulation),
        )
        simulator.run(*([stop] if stop is not None else []))
        # Whoever stops a run wants it to end: no last test then, which may take minutes.
        stopped = any(t.finish_reason is FinishReason.INTERRUPTED for t in tally.tasks.values())
        finals = {
            task.name: None if stopped else learner.final_evaluation(task.name) for task in tasks
        }
        result = RunResult.of(
            tally,
            algorithm=algorithm.name,
            seed=seed,
            metrics={task.name: task.metric for task in tasks},
            finals={name: (e.metric, e.loss) for name, e in finals.items() if e is not None},
            wall_seconds=time.perf_counter() - began,
        )
        return Outcome(
            result=result,
            models={task.name: learner.module(task.name).cpu() for task in tasks},
            starved=simulator.starved,
        )
