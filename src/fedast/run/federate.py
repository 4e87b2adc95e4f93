"""Builds a federation's server, and a client's training, from a configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from filelock import FileLock, Timeout

from fedast.config.identity import describe, differences, identity, listed
from fedast.config.load import load
from fedast.config.plan import plan
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.core.protocol import (
    ClientId,
    Command,
    Evaluated,
    Observer,
    Observers,
    RequestId,
    TaskName,
)
from fedast.federation.driver import Driver, LivePool
from fedast.federation.log_events import Configured
from fedast.federation.metrics import ServerMetrics
from fedast.federation.server import FederationServer, Options
from fedast.federation.transport import ServerTransport
from fedast.federation.wire import Vector
from fedast.federation.write_ahead_log import FOLDER, WriteAheadLog, configuration
from fedast.learner.evaluation import measure
from fedast.learner.inference import ModuleInference
from fedast.learner.remote import RemoteLearner
from fedast.learner.replay import RecordingLearner
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.registry import load_object, make_importable
from fedast.records import toml
from fedast.records.events import EventLog
from fedast.records.files import write_atomically
from fedast.records.metrics import RunMetrics
from fedast.records.observers import Watched
from fedast.records.run import (
    CONFIG,
    EVENTS,
    RunResult,
    UnusableFolder,
    write_result,
)
from fedast.records.schedule import Schedule
from fedast.run.build import build_algorithm, build_tasks
from fedast.run.simulate import Watch
from fedast.tasks.task import BadTask, Task
from fedast.training.trainer import DeviceTask, Job, SerialTrainer


@final
class BestEffortEventLog:
    """The event log, which must not stop a federation when the disk is full.

    What is missing from it is in the write-ahead log, from which the next start writes it anew.
    """

    def __init__(self, inner: EventLog) -> None:
        self._inner = inner
        self._troubled = False

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
            self._troubled = False
        except OSError as error:
            if not self._troubled:
                logging.getLogger("fedast.server").error(
                    "events.jsonl cannot be written: %s", error
                )
            self._troubled = True

    def commanded(self, now: float, command: Command) -> None:
        self._try(lambda: self._inner.commanded(now, command))

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        self._try(lambda: self._inner.started(now, request, client))

    def evaluated(self, now: float, event: Evaluated) -> None:
        self._try(lambda: self._inner.evaluated(now, event))


@final
class Federation:
    """A server with everything around it: its folder, records and metrics."""

    def __init__(
        self,
        config: RunConfig,
        transport: ServerTransport,
        folder: Path,
        watch: Sequence[Watch] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``config`` is resolved; a folder with a write-ahead log is continued."""
        if config.algorithm.pools_data:
            raise ConfigError("algorithm.name", "centralized has no clients; choose another")
        if config.simulation.until != "each":
            raise ConfigError("simulation.until", "a federation ends each task at its target")
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.callback(_lock(folder).release)
            _check_begun_with(folder, config)
            self._stack = stack.pop_all()
        self._config = config
        self._folder = folder
        self._tasks = build_tasks(config)
        specs = plan(self._tasks, config.algorithm, config.simulation)
        joined = {task.name: task.goal.join_time for task in self._tasks}
        present = [spec for spec in specs if joined[spec.name] == 0]
        pool = LivePool()
        algorithm = build_algorithm(config.algorithm, present, pool, config.seed)
        self._learner = RemoteLearner(
            self._tasks,
            {spec.name: spec.server_lr for spec in specs},
            seed=config.seed,
            device=torch.device("cpu"),
            variance_window=algorithm.variance_window,
        )
        recording = RecordingLearner(self._learner)
        averaged = [
            task.name
            for task in self._tasks
            # (Clients are asked about the newest model.)
            if task.server.averaging.use == "always" and config.federation.evaluate == "server"
        ]
        self.run_metrics = RunMetrics(specs, averaged)
        table = config.model_dump(mode="json", exclude={"algorithms"})
        write_atomically(folder / CONFIG, toml.dumps(table))
        # It replaces the old event log once the write-ahead log has been replayed.
        self._draft = folder / f"{EVENTS}.part"
        self._stack.callback(self._draft.unlink, missing_ok=True)
        log = self._stack.enter_context(self._draft.open("w", encoding="utf-8"))
        schedule = Schedule()
        metrics = {task.name: task.metric.name for task in self._tasks}
        events = BestEffortEventLog(EventLog(log, metrics, averaged))
        observers: list[Observer] = [self.run_metrics, schedule, events]
        observers.extend(make(algorithm, self.run_metrics) for make in watch)
        watched = Watched(algorithm, self.run_metrics, metrics, folder, self._stack)
        observers.extend(options.build(watched) for options in config.observers)
        self.metrics = ServerMetrics(algorithm, self.run_metrics)
        wal = WriteAheadLog(folder / FOLDER)
        self._stack.callback(wal.close)
        how = config.federation
        extra = {} if clock is None else {"clock": clock}
        self.server = FederationServer(
            driver=Driver(
                algorithm,
                recording,
                Observers(tuple(observers)),
                ask_clients=how.evaluate == "clients",
            ),
            pool=pool,
            learner=self._learner,
            recording=recording,
            wants_loss=algorithm.wants_loss,
            later={spec.name: spec for spec in specs if joined[spec.name] > 0},
            tasks=tuple(task.name for task in self._tasks),
            transport=transport,
            wal=wal,
            seed=config.seed,
            configured=Configured(identity(config), describe(config)),
            schedule=schedule,
            options=Options(
                min_clients=how.min_clients,
                lease=how.lease,
                request_timeout=how.request_timeout,
                redeliver_after=how.redeliver_after,
                commit_every=how.commit_every,
                norm_bound=how.norm_bound,
                half=how.half_uploads,
                strikes=how.strikes,
                evaluators=how.evaluators,
                max_time=config.simulation.max_time,
            ),
            metrics=self.metrics,
            **extra,
        )
        if how.metrics_port is not None:
            self._stack.callback(self.metrics.serve(how.metrics_port))

    async def run(self) -> RunResult:
        """Serve to the end or until stopped; records are written either way."""
        try:
            self.server.recover()
            self.run_metrics.went_live()
            self._draft.replace(self._folder / EVENTS)
        except BaseException:
            self.close()
            raise
        try:
            await self.server.run()
        finally:
            result = self.result()
            write_result(self._folder, result)
            self.close()
        return result

    def close(self) -> None:
        """Release the folder; ``run`` does so at its end."""
        self._stack.close()

    def result(self) -> RunResult:
        return RunResult.of(
            self.run_metrics,
            algorithm=self._config.algorithm.name,
            seed=self._config.seed,
            metrics={task.name: task.metric.name for task in self._tasks},
            finals={},
            wall_seconds=self.server.now,
        )

    def model(self, task: TaskName) -> torch.Tensor:
        """A task's result, as a vector: the average of its models, if it has one, otherwise the
        newest."""
        return self._learner.result(task)


def _lock(folder: Path) -> FileLock:
    """Keep others from serving from this folder: two servers would count updates twice. The system
    releases the lock when the process ends, however it ends."""
    lock = FileLock(folder / "lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise UnusableFolder(f"{folder}: another server is using it") from None
    return lock


def _check_begun_with(folder: Path, config: RunConfig) -> None:
    """Check that the write-ahead log, if there is one, is of this configuration."""
    begun = configuration(folder / FOLDER)
    if begun is None or begun.digest == identity(config):
        return
    kept = begun.config
    try:
        # Version 0.1.0 recorded only a hash, of the keys of its time; config.toml says more.
        kept = kept or describe(resolve(load(folder / CONFIG), folder))
        changed = [text for text in differences(kept, config, folder)
                   if not text.startswith("compute.")]  # fmt: skip
    except (ConfigError, OSError):
        changed = [f"{folder / CONFIG} cannot be read"]
    if changed:
        raise UnusableFolder(
            f"{folder}: the configuration is another than when this federation began "
            f"({listed(changed)}); serve it to a new folder with --out"
        )


@final
class LocalTraining:
    """A client's training: its own data, with the models and settings of its configuration."""

    def __init__(self, config: RunConfig, client: ClientId) -> None:
        make_importable(config.path)
        names = [task.name or task.use for task in config.tasks]
        for name in config.federation.data:
            if name not in names:  # it would train on the task's own partition instead
                key = f"federation.data.{name}"
                raise ConfigError(key, f"there is no such task{nearest(name, names)}")
        tasks = [self._with_own_data(task, config, client) for task in build_tasks(config)]
        device = torch.device("cpu")
        self._device_tasks = {
            task.name: DeviceTask.build(task, config.seed, device) for task in tasks
        }
        self._held: dict[TaskName, torch.Tensor] = {}
        if config.federation.evaluate == "clients":
            for task in tasks:
                self._hold_out(task, config.federation.holdout, client)
        self._trainer = SerialTrainer(self._device_tasks, config.seed)
        self._places = {
            task.name: 0 if task.name in config.federation.data else client for task in tasks
        }

    def _hold_out(self, task: Task, share: float, client: ClientId) -> None:
        """Hold out every n-th sample for evaluation."""
        place = 0 if len(task.partition) == 1 else client
        mine = task.partition[place]
        every = max(2, round(1 / share))
        if len(mine) < 2:
            raise BadTask(
                f"task {task.name!r}: client {client} has too few samples to hold one out"
            )
        self._held[task.name] = torch.from_numpy(mine[every - 1 :: every] if len(mine) >= every
                                                 else mine[-1:])  # fmt: skip
        parts = list(task.partition)
        parts[place] = np.setdiff1d(mine, self._held[task.name].numpy())
        self._device_tasks[task.name] = replace(
            self._device_tasks[task.name], task=replace(task, partition=parts)
        )

    @property
    def tasks(self) -> Sequence[TaskName]:
        return tuple(self._device_tasks)

    def evaluate(self, task: TaskName, vector: Vector) -> tuple[float, float, int]:
        if task not in self._held:
            raise BadTask(
                f"task {task!r}: this client holds out no samples; set federation.evaluate"
            )
        device_task, held = self._device_tasks[task], self._held[task]
        model = ModuleInference(device_task)
        model.load(torch.from_numpy(vector))
        found = measure(device_task, model, device_task.train, 2000, held)
        return found.metric, found.loss, len(held)

    def size(self, task: TaskName) -> int:
        return self._device_tasks[task].model.read().numel()

    def buffers(self, task: TaskName) -> int:
        return self._device_tasks[task].model.buffer_count

    def train(self, task: TaskName, request: int, vector: Vector) -> tuple[Vector, float, int]:
        place = self._places[task]
        (update,) = self._trainer.train(task, [Job(request, place, torch.from_numpy(vector))])
        samples = len(self._device_tasks[task].task.partition[place])
        parts = [update.delta] if update.buffers is None else [update.delta, update.buffers]
        return torch.cat(parts).numpy(), float(update.loss), samples

    @staticmethod
    def _with_own_data(task: Task, config: RunConfig, client: ClientId) -> Task:
        named = config.federation.data.get(task.name)
        if named is None:
            if client >= len(task.partition):
                raise ConfigError(
                    f"federation.data.{task.name}",
                    f"is missing, and the task's own partition has {len(task.partition)} parts, "
                    f"none for client {client}",
                )
            return task
        read = load_object(named, f"federation.data.{task.name}")
        try:
            data = read(client)
            inputs, labels = data
        except Exception as error:  # whatever the user's own code raises
            raise BadTask(f"{named}: {type(error).__name__}: {error}") from error
        return replace(task, train=(inputs, labels), partition=[np.arange(len(inputs))])
