"""Simulate a federation: the Python API's one function, and what every run goes through."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from fedast.algorithms.options import ALGORITHMS, AlgorithmOptions
from fedast.config.no_effect import notes
from fedast.config.notes import lines
from fedast.config.plan import plan
from fedast.config.schema import (
    Compute,
    Simulation,
)
from fedast.core.protocol import (
    Algorithm,
    FinishReason,
    Observer,
    Observers,
    Pool,
    TaskName,
    TaskSpec,
)
from fedast.core.streams import Stream
from fedast.learner.inference import inference
from fedast.learner.local import LocalLearner
from fedast.learner.profiling import ProfiledLearner, ProfiledTrainer, Profiler
from fedast.learner.protocol import Learner
from fedast.learner.replay import RecordingLearner
from fedast.parts.errors import ConfigError, ConfigWarning, nearest
from fedast.records.events import EventLog
from fedast.records.metrics import Point, RunMetrics
from fedast.records.run import RESULT, RunResult, UnusableFolder, write_result
from fedast.records.schedule import Schedule
from fedast.run.build import (
    build_algorithm,
    build_delay,
    build_pool,
    build_speeds,
    build_timers,
    centralize,
    resolve_compute,
)
from fedast.run.checkpointing import Checkpointer, Checkpointing
from fedast.sim.delays import Timing
from fedast.sim.simulator import Simulator
from fedast.tasks.dataset import Dataset
from fedast.tasks.task import Task, TrainingFailed
from fedast.training.choose import Kind, MixedTrainer, fastest_trainers
from fedast.training.kernels.net import Precision
from fedast.training.trainer import DeviceTask, Trainer

Watch: TypeAlias = Callable[[Algorithm, RunMetrics], Observer]
MakeAlgorithm: TypeAlias = Callable[[Sequence[TaskSpec], Pool, Stream], Algorithm]


@dataclass(frozen=True)
class Outcome:
    """What a simulation gives: numbers, curves, trained models."""

    result: RunResult
    models: Mapping[TaskName, torch.nn.Module]
    starved: bool
    """Whether it ended because no client would ever be available again."""
    compute: Compute
    """Where and how it was trained: what was left open is decided here."""

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
    algorithm: AlgorithmOptions | MakeAlgorithm | str = "fedast-d",
    simulation: Simulation | None = None,
    *,
    seed: int = 0,
    compute: Compute | None = None,
    events: Path | str | None = None,
    watch: Sequence[Watch] = (),
    stop: Callable[[], bool] | None = None,
    checkpointing: Checkpointing | None = None,
    profiler: Profiler | None = None,
    noted: bool = False,
) -> Outcome:
    """Train ``tasks`` over one pool of simulated clients until each has ended.

    ``algorithm`` is a name (``fedast list algorithms``), an options object such
    as ``FedASTDynamic(requests=64)``, or a callable of your own that makes an
    ``Algorithm`` from the tasks' specs, the pool and a random stream. ``simulation`` describes the
    clients; by default there are as many as the tasks' partitions have parts.
    ``compute`` says where and how it is trained, by default on a GPU if there is
    one. ``checkpointing`` asks for checkpoints; ``profiler`` is told where the time goes.
    ``events`` is a file for the log of every event. ``stop`` is asked before
    each step and ends the run early when it says so. A ``ConfigWarning`` names
    settings that have no effect, unless they have been ``noted`` before.
    """
    options = ALGORITHMS.parse(algorithm, "algorithm")
    if simulation is None:
        simulation = Simulation(clients=len(tasks[0].partition))
    for task in tasks:
        if len(task.partition) != simulation.clients:
            raise ConfigError(
                f"tasks.{task.name}",
                f"its partition has {len(task.partition)} parts for {simulation.clients} clients",
            )
    if not noted:
        for line in lines(notes(tasks, options, simulation), len(tasks)):
            warnings.warn(line, ConfigWarning, stacklevel=2)
    if options.pools_data:
        tasks, simulation = centralize(tasks, simulation)
    specs = plan(tasks, options, simulation)
    until = simulation.until
    if (
        until != "each"
    ):  # the algorithm knows of no targets then; the run_metrics notes when they are met
        goals, specs = specs, [replace(spec, target=None) for spec in specs]
    else:
        goals = specs
    present = [spec for spec, task in zip(specs, tasks, strict=True) if task.goal.join_time == 0]
    pool = build_pool(simulation)
    logic = build_algorithm(options, present, pool, seed)
    delay = build_delay(simulation, [task.name for task in tasks])
    compute = choose_trainers(resolve_compute(compute or Compute()), tasks, seed)
    with ExitStack() as stack:
        stack.enter_context(arithmetic(compute))
        began = time.monotonic()
        learner = LocalLearner(
            tasks,
            {spec.name: spec.server_lr for spec in specs},
            seed=seed,
            device=torch.device(compute.device),
            variance_window=logic.variance_window,
            trainer=partial(_make_trainer, compute, profiler),
            inference=partial(inference, precision=_settled(compute)),
        )
        stack.callback(learner.close)
        plane: Learner = learner
        run_metrics = RunMetrics(goals)
        observers: list[Observer] = [run_metrics]
        replaying = checkpointing is not None and checkpointing.resume is not None
        log = None if events is None else Path(events)
        draft = log  # what a replay writes takes the log's place when it has turned out right
        if log is not None and draft is not None:
            if replaying:
                draft = log.with_name(f"{log.name}.part")
                stack.callback(draft.unlink, missing_ok=True)
            file = stack.enter_context(draft.open("w", encoding="utf-8"))
            observers.append(EventLog(file, {task.name: task.metric.name for task in tasks}))

        def live() -> None:
            run_metrics.went_live()
            if log is not None and draft is not None:
                draft.replace(log)

        checkpointer: Checkpointer | None = None
        if checkpointing is not None:
            schedule = Schedule()
            observers.append(schedule)
            answers = None if checkpointing.resume is None else checkpointing.resume.answers
            plane = recording = RecordingLearner(learner, answers)
            # (Calibration changes its cache in place, so it cannot be gone back on.)
            fixed = any(task.server.calibration.use != "never" for task in tasks)
            forked = "processes" in compute.trainers.values()
            checkpointer = Checkpointer(
                checkpointing, learner, recording, schedule, careful=forked and not fixed, live=live
            )
        if profiler is not None:
            plane = ProfiledLearner(plane, profiler)
        observers.extend(make(logic, run_metrics) for make in watch)
        simulator = Simulator(
            logic,
            plane,
            pool,
            delay,
            build_speeds(simulation, seed),
            {
                task.name: Timing(task.name, task.training.local_steps, task.step_cost)
                for task in tasks
            },
            observers[0] if len(observers) == 1 else Observers(tuple(observers)),
            seed=seed,
            loss_rate=simulation.loss_rate,
            timers=build_timers(tasks, specs, simulation),
            enough=run_metrics.enough if until == "all" else lambda: False,
        )

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
        finals = {
            task.name: None if stopped else learner.final_evaluation(task.name) for task in tasks
        }
        result = RunResult.of(
            run_metrics,
            algorithm=options.name,
            seed=seed,
            metrics={task.name: task.metric.name for task in tasks},
            finals={name: (e.metric, e.loss) for name, e in finals.items() if e is not None},
            wall_seconds=time.monotonic() - began
            if checkpointer is None
            else checkpointer.wall_seconds,
            saturated=learner.saturated(),
        )
        return Outcome(
            result=result,
            models={task.name: learner.module(task.name).cpu() for task in tasks},
            starved=simulator.starved,
            compute=compute,
        )


def choose_trainers(compute: Compute, tasks: Sequence[Task], seed: int) -> Compute:
    """With a trainer for every task; on a CPU they are timed first, which takes a moment."""
    names = [task.name for task in tasks]
    for name in compute.trainers:
        if name not in names:
            raise ConfigError(
                f"compute.trainers.{name}", f"there is no such task{nearest(name, names)}"
            )
    if set(compute.trainers) >= set(names):
        return compute
    kinds: dict[str, Kind]
    if compute.trainer != "auto":
        kinds = dict.fromkeys(names, compute.trainer)
    elif compute.device == "cuda":
        kinds = dict.fromkeys(names, "batched")
    else:
        with arithmetic(compute):
            cpu = torch.device("cpu")
            moved: dict[int, Dataset] = {}
            device_tasks = {task.name: DeviceTask.build(task, seed, cpu, moved) for task in tasks}
            kinds = fastest_trainers(device_tasks, seed, workers=compute.workers or 1)
    return compute.model_copy(update={"trainers": kinds | compute.trainers})


def _make_trainer(
    compute: Compute,
    profiler: Profiler | None,
    device_tasks: Mapping[TaskName, DeviceTask],
    seed: int,
) -> Trainer:
    trainer = MixedTrainer(
        device_tasks,
        seed,
        {name: compute.trainers[name] for name in device_tasks},
        workers=compute.workers or 1,
        batch_limit=compute.batch_limit,
        precision=_settled(compute),
    )
    return trainer if profiler is None else ProfiledTrainer(trainer, profiler)


def _settled(compute: Compute) -> Precision:
    assert compute.precision != "auto"
    return compute.precision


@contextmanager
def arithmetic(compute: Compute) -> Iterator[None]:
    """Threads and precision as a run wants them, then as they were before."""
    threads = torch.get_num_threads()
    products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.set_num_threads(compute.threads)
    fast = compute.precision in ("tf32", "fp16", "bf16")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = products
        torch.backends.cudnn.allow_tf32 = convolutions
