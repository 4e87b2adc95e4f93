"""From tasks and options to a run that is decided, and from that to one that is built.

A run is planned once (``plan_run``: everything checked, nothing left open), built once
(``build_world``: the algorithm, the clients, their delays) and then run (``simulate.run_plan``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fedast.algorithms.options import ALGORITHMS, AlgorithmOptions
from fedast.config.plan import complete_server, plan
from fedast.config.schema import Compute, Simulation
from fedast.core.protocol import Algorithm, Observer, Pool, TaskSpec
from fedast.core.streams import Stream
from fedast.learner.protocol import Learner
from fedast.parts.errors import ConfigError
from fedast.records.metrics import HELD
from fedast.run.build import (
    build_algorithm,
    build_delay,
    build_pool,
    build_speeds,
    build_timers,
    centralize,
)
from fedast.run.compute import choose_trainers, resolve_compute
from fedast.sim.availability import SimulatedPool
from fedast.sim.delays import Delay, Speeds, Timing
from fedast.sim.simulator import Simulator
from fedast.tasks.task import Task

MakeAlgorithm: TypeAlias = Callable[[Sequence[TaskSpec], Pool, Stream], Algorithm]


@dataclass(frozen=True)
class RunPlan:
    """Everything that determines a run, decided and checked."""

    tasks: tuple[Task, ...]
    goals: tuple[TaskSpec, ...]
    """What the control plane knows of each task, with its target."""
    algorithm: AlgorithmOptions
    simulation: Simulation
    seed: int
    compute: Compute

    @property
    def specs(self) -> tuple[TaskSpec, ...]:
        """What the algorithm is told: targets only if they end a task."""
        if self.simulation.until == "each":
            return self.goals
        if self.simulation.until == "held":
            return tuple(replace(spec, hold=HELD) for spec in self.goals)
        return tuple(replace(spec, target=None) for spec in self.goals)


@dataclass(frozen=True)
class World:
    """A plan's control plane and simulated clients, ready for the first event; used once."""

    plan: RunPlan
    algorithm: Algorithm
    pool: SimulatedPool
    delay: Delay
    speeds: Speeds

    def simulator(
        self, learner: Learner, observer: Observer, enough: Callable[[], bool]
    ) -> Simulator:
        """The driver that joins them to a data plane; ``enough`` ends tasks that need not go on."""
        plan = self.plan
        timings = {
            task.name: Timing(task.name, task.training.local_steps, task.step_cost)
            for task in plan.tasks
        }
        return Simulator(
            self.algorithm,
            learner,
            self.pool,
            self.delay,
            self.speeds,
            timings,
            observer,
            seed=plan.seed,
            loss_rate=plan.simulation.loss_rate,
            timers=build_timers(plan.tasks, plan.specs, plan.simulation),
            enough=enough if plan.simulation.until == "all" else lambda: False,
        )


def plan_run(
    tasks: Sequence[Task],
    algorithm: AlgorithmOptions | MakeAlgorithm | str,
    simulation: Simulation,
    *,
    seed: int,
    compute: Compute,
) -> RunPlan:
    """Check everything against everything else and decide what is open.

    On a CPU, the choice of trainers may take a short measurement.
    """
    options = ALGORITHMS.parse(algorithm, "algorithm")
    for task in tasks:
        if not task.trainable:
            raise ConfigError(
                f"tasks.{task.name}", "has no model and data; give model, train, test and partition"
            )
        if len(task.partition) != simulation.clients:
            raise ConfigError(
                f"tasks.{task.name}",
                f"its partition has {len(task.partition)} parts for {simulation.clients} clients",
            )
    own = options.server_defaults()
    tasks = [replace(task, server=task.server.with_defaults(own)) for task in tasks]
    if options.pools_data:
        tasks, simulation = centralize(tasks, simulation)
    specs = plan(tasks, options, simulation)
    tasks = [
        replace(task, server=complete_server(task.server, spec))
        for task, spec in zip(tasks, specs, strict=True)
    ]
    return RunPlan(
        tasks=tuple(tasks),
        goals=tuple(specs),
        algorithm=options,
        simulation=simulation,
        seed=seed,
        compute=choose_trainers(resolve_compute(compute), tasks, seed),
    )


def build_world(plan: RunPlan) -> World:
    """Input files are read here, so that errors in them are found before anything is written."""
    pool = build_pool(plan.simulation)
    present = [
        spec for spec, task in zip(plan.specs, plan.tasks, strict=True) if task.goal.join_time == 0
    ]
    return World(
        plan=plan,
        algorithm=build_algorithm(plan.algorithm, present, pool, plan.seed),
        pool=pool,
        delay=build_delay(plan.simulation, [task.name for task in plan.tasks]),
        speeds=build_speeds(plan.simulation, plan.seed),
    )
