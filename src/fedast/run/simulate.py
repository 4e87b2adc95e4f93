"""Simulate a federation: the Python API's one function, and what every run goes through."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch

from fedast.algorithms.options import ALGORITHMS, AlgorithmOptions
from fedast.config.no_effect import notes
from fedast.config.notes import lines
from fedast.config.schema import Compute, Simulation
from fedast.core.protocol import Algorithm, FinishReason, Observer, Observers, TaskName
from fedast.learner.inference import inference
from fedast.learner.local import LocalLearner
from fedast.learner.profiling import ProfiledLearner, Profiler
from fedast.learner.protocol import Learner
from fedast.learner.replay import RecordingLearner
from fedast.parts.errors import ConfigWarning
from fedast.records.events import EventLog
from fedast.records.metrics import Point, RunMetrics
from fedast.records.observers import ObserverOptions, Watched
from fedast.records.run import RESULT, RunResult, UnusableFolder, write_result
from fedast.records.schedule import Schedule
from fedast.records.series_writer import SeriesWriter, header
from fedast.records.toml import flat
from fedast.run.checkpointing import Checkpointer, Checkpointing
from fedast.run.compute import arithmetic, make_trainer, precision_of
from fedast.run.models import save_models
from fedast.run.plan import MakeAlgorithm, RunPlan, World, build_world, plan_run
from fedast.tasks.task import Task, TrainingFailed

Watch: TypeAlias = Callable[[Algorithm, RunMetrics], Observer]


@dataclass(frozen=True)
class Outcome:
    """What a simulation gives: numbers, curves, trained models."""

    result: RunResult
    models: Mapping[TaskName, torch.nn.Module]
    """What was evaluated: of a task with averaging the average of the models."""
    raw_models: Mapping[TaskName, torch.nn.Module]
    """The newest models of tasks with averaging."""
    starved: bool
    """Whether it ended because no client would ever be available again."""
    compute: Compute
    """Where and how it was trained: what was left open is decided here."""

    def save(self, folder: Path | str) -> None:
        """Write ``result.json``, ``curves.csv`` and ``models/`` to a folder that holds no other
        result."""
        folder = Path(folder)
        if (folder / RESULT).exists():
            raise UnusableFolder(f"{folder}: holds another run ({RESULT})")
        folder.mkdir(parents=True, exist_ok=True)
        save_models(folder, self.models, self.result, {}, self.raw_models)
        write_result(folder, self.result)

    @property
    def curves(self) -> Mapping[TaskName, tuple[Point, ...]]:
        return self.result.curves


def simulate(
    tasks: Sequence[Task],
    algorithm: AlgorithmOptions | MakeAlgorithm | str = "fedast-d",
    simulation: Simulation | None = None,
    *,
    seed: int = 0,
    compute: Compute | None = None,
    events: Path | str | None = None,
    watch: Sequence[Watch] = (),
    observers: Sequence[ObserverOptions] = (),
    stop: Callable[[], bool] | None = None,
    checkpointing: Checkpointing | None = None,
    profiler: Profiler | None = None,
    noted: bool = False,
) -> Outcome:
    """Train ``tasks`` over one pool of simulated clients until each has ended.

    ``algorithm`` is a name (``fedast list algorithms``), an options object such as
    ``FedASTDynamic(requests=64)``, or a callable of your own that makes an ``Algorithm`` from the
    tasks' specs, the pool and a random stream. ``simulation`` describes the clients; by default
    there are as many as the tasks' partitions have parts. ``compute`` says where and how it is
    trained, by default on a GPU if there is one. ``events`` is a file for the log of every event;
    ``observers`` see the run go by. ``checkpointing`` asks for checkpoints; ``profiler`` is told
    where the time goes. ``stop`` is asked before each step and ends the run early when it says
    so. A ``ConfigWarning`` names settings that have no effect, unless they have been ``noted``
    before.

    >>> import numpy as np
    >>> import torch
    >>> from fedast import FedASTStatic, Goal, Task, Training, simulate
    >>> inputs = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
    >>> labels = (inputs.sum(dim=1) > 0).long()
    >>> task = Task(
    ...     name="sign",
    ...     model=lambda: torch.nn.Linear(4, 2),
    ...     train=(inputs[:500], labels[:500]),
    ...     test=(inputs[500:], labels[500:]),
    ...     partition=np.array_split(np.arange(500), 10),
    ...     training=Training(local_steps=5, batch_size=10, client_lr=0.5, server_lr=0.5),
    ...     goal=Goal(target=0.9),
    ... )
    >>> outcome = simulate([task], FedASTStatic(requests=4, ratio=2.0), seed=1)
    >>> outcome.result.tasks["sign"].finish_reason
    'target'
    >>> outcome.models["sign"]
    Linear(in_features=4, out_features=2, bias=True)
    >>> outcome.curves["sign"][-1].value >= 0.9
    True
    """
    for observer in observers:
        observer.check()
    if simulation is None:
        simulation = Simulation(clients=len(tasks[0].partition) if tasks else 1)
    options = ALGORITHMS.parse(algorithm, "algorithm")
    if not noted:
        for line in lines(notes(tasks, options, simulation), len(tasks)):
            warnings.warn(line, ConfigWarning, stacklevel=2)
    plan = plan_run(tasks, options, simulation, seed=seed, compute=compute or Compute())
    return run_world(
        build_world(plan),
        events=None if events is None else Path(events),
        watch=watch,
        observers=observers,
        stop=stop,
        checkpointing=checkpointing,
        profiler=profiler,
    )


def run_world(
    world: World,
    *,
    events: Path | None = None,
    watch: Sequence[Watch] = (),
    observers: Sequence[ObserverOptions] = (),
    folder: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    stop: Callable[[], bool] | None = None,
    checkpointing: Checkpointing | None = None,
    profiler: Profiler | None = None,
) -> Outcome:
    """Train what has been planned and built until every task has ended, or ``stop`` says so."""
    plan, logic = world.plan, world.algorithm
    tasks, compute, seed = plan.tasks, plan.compute, plan.seed
    if profiler is None and folder is not None and compute.device == "cpu":
        profiler = Profiler(torch.device("cpu"))  # cheap there: nothing has to be waited for
    with ExitStack() as stack:
        stack.enter_context(arithmetic(compute))
        began = time.monotonic()
        learner = LocalLearner(
            tasks,
            {spec.name: spec.server_lr for spec in plan.specs},
            seed=seed,
            device=torch.device(compute.device),
            variance_window=logic.variance_window,
            trainer=partial(make_trainer, compute, profiler),
            inference=partial(inference, precision=precision_of(compute)),
        )
        stack.callback(learner.close)
        plane: Learner = learner
        metrics = {task.name: task.metric.name for task in tasks}
        averaged = [task.name for task in tasks if task.server.averaging.use == "always"]
        run_metrics = RunMetrics(plan.goals, averaged)
        watching: list[Observer] = [run_metrics]
        replaying = checkpointing is not None and checkpointing.resume is not None
        log = events
        draft = log  # what a replay writes takes the log's place when it has turned out right
        if log is not None and draft is not None:
            if replaying:
                draft = log.with_name(f"{log.name}.part")
                stack.callback(draft.unlink, missing_ok=True)
            file = stack.enter_context(draft.open("w", encoding="utf-8"))
            watching.append(EventLog(file, metrics, averaged))
        series = None
        if folder is not None:
            series = _series(world, folder, run_metrics, metrics, averaged, profiler)
            stack.callback(series.close)
            watching.append(series)
            if not replaying:
                series.begin()

        def live() -> None:
            run_metrics.went_live()
            if log is not None and draft is not None:
                draft.replace(log)
            if series is not None:
                series.go_on()

        checkpointer: Checkpointer | None = None
        if checkpointing is not None:
            schedule = Schedule()
            watching.append(schedule)
            answers = None if checkpointing.resume is None else checkpointing.resume.answers
            plane = recording = RecordingLearner(learner, answers)
            # (Calibration changes its cache in place, so it cannot be gone back on.)
            fixed = any(task.server.calibration.use != "never" for task in tasks)
            frail = any(trainer.careful for trainer in compute.trainers.values())
            checkpointer = Checkpointer(
                checkpointing, learner, recording, schedule, careful=frail and not fixed, live=live
            )
        if profiler is not None:
            plane = ProfiledLearner(plane, profiler)
        watching.extend(make(logic, run_metrics) for make in watch)
        watched = Watched(
            algorithm=logic,
            run_metrics=run_metrics,
            metrics=metrics,
            folder=folder,
            cleanup=stack,
            name=f"{plan.algorithm.name}-seed-{seed}",
            parameters=dict(flat(settings or _settings(plan))),
            live=lambda: checkpointer is None or not checkpointer.replaying,
        )
        watching.extend(options.build(watched) for options in observers)
        observer = watching[0] if len(watching) == 1 else Observers(tuple(watching))
        simulator = world.simulator(plane, observer, run_metrics.enough)

        stopping = False

        def ask() -> bool:
            nonlocal stopping
            wanted = stop is not None and stop()
            # A replay is short; cut off, it would leave records of a part of what there was.
            stopping = wanted and (checkpointer is None or not checkpointer.replaying)
            if checkpointer is not None:
                checkpointer.before_step(simulator.now, stopping=stopping)
            return stopping

        try:
            simulator.run(ask)
        except TrainingFailed:
            if checkpointer is not None:
                checkpointer.rescue()
            raise
        if checkpointer is not None and not stopping:
            checkpointer.ended()
        # Whoever stops a run wants it to end: no last test then, which may take minutes.
        stopped = any(
            t.finish_reason is FinishReason.INTERRUPTED for t in run_metrics.tasks.values()
        )
        if series is not None:
            series.end("interrupted" if stopped else "ended")
        finals = {
            task.name: None if stopped else learner.final_evaluation(task.name) for task in tasks
        }
        result = RunResult.of(
            run_metrics,
            algorithm=plan.algorithm.name,
            seed=seed,
            metrics=metrics,
            finals={name: (e.metric, e.loss) for name, e in finals.items() if e is not None},
            wall_seconds=time.monotonic() - began
            if checkpointer is None
            else checkpointer.wall_seconds,
            saturated=learner.saturated(),
            more={task.name: [metric.name for metric in task.metrics] for task in tasks},
        )
        found = {task.name: learner.raw_module(task.name) for task in tasks}
        raw = {name: module.cpu() for name, module in found.items() if module is not None}
        return Outcome(
            result=result,
            models={task.name: learner.module(task.name).cpu() for task in tasks},
            raw_models=raw,
            starved=simulator.starved,
            compute=compute,
        )


def _settings(plan: RunPlan) -> dict[str, Any]:
    """What a run follows from, as tables, where there is no configuration file."""
    return {
        "seed": plan.seed,
        "algorithm": plan.algorithm.model_dump(mode="json"),
        "simulation": plan.simulation.model_dump(mode="json"),
        "compute": plan.compute.model_dump(mode="json"),
        "tasks": [asdict(spec) for spec in plan.goals],
    }


def _series(
    world: World,
    folder: Path,
    run_metrics: RunMetrics,
    metrics: Mapping[TaskName, str],
    averaged: Sequence[TaskName],
    profiler: Profiler | None,
) -> SeriesWriter:
    plan = world.plan
    head = header(
        run_metrics,
        algorithm=plan.algorithm.name,
        synchronous=plan.algorithm.synchronous,
        seed=plan.seed,
        clients=plan.simulation.clients,
        metrics=metrics,
        simulated=True,
        groups=(world.speeds.factors, tuple(world.speeds.groups)),
    )
    profile = None if profiler is None else profiler.by_work
    return SeriesWriter(folder, head, world.algorithm, run_metrics, averaged, profile)
