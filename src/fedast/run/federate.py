"""Builds a federation's server, and a client's training, from a configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from filelock import FileLock, Timeout

from fedast.config.identity import (
    as_begun,
    describe,
    differences,
    identity,
    listed,
    said_otherwise,
)
from fedast.config.load import load
from fedast.config.plan import complete_server, plan
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.core.protocol import (
    Observer,
    Observers,
    StopReason,
    TaskName,
)
from fedast.federation.audit import AuditTrail
from fedast.federation.driver import Driver, LivePool
from fedast.federation.evaluator import Measured
from fedast.federation.event_file import EventFile
from fedast.federation.faults import ServerFault
from fedast.federation.guard import Guard
from fedast.federation.health import Monitor
from fedast.federation.http import serve_http
from fedast.federation.log_events import Configured, ModelRolledBack
from fedast.federation.metrics import ServerMetrics
from fedast.federation.model_store import ModelStore
from fedast.federation.options import Deadline, Options
from fedast.federation.roll_back import RollBacks
from fedast.federation.server import FederationServer
from fedast.federation.transport import ServerTransport
from fedast.federation.write_ahead_log import FOLDER, WriteAheadLog, configuration
from fedast.learner.remote import RemoteLearner
from fedast.learner.replay import RecordingLearner
from fedast.parts.errors import ConfigError
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
from fedast.records.schedule import Schedule, ScheduleChain
from fedast.records.series_writer import SeriesWriter, header
from fedast.records.toml import flat
from fedast.run.build import build_algorithm, build_tasks
from fedast.run.models import data_of, save_models
from fedast.run.simulate import Watch
from fedast.tasks.task import Task

QUARANTINE = "quarantine.jsonl"
"""Which clients were quarantined, when and why; one line for each time."""


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
        said: Mapping[str, Any] | None = None,
        credentials: Path | None = None,
    ) -> None:
        """``config`` is resolved; a folder with a write-ahead log is continued. ``said``: what the
        configuration said before it was resolved (``identity.said``). ``credentials``: the
        server's, to see when they expire."""
        if config.algorithm.pools_data:
            raise ConfigError("algorithm.name", "centralized has no clients; choose another")
        if config.simulation.until != "each":
            raise ConfigError("simulation.until", "a federation ends each task at its target")
        for options in config.observers:
            options.check()
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.callback(_lock(folder).release)
            config = _continued(folder, config, said)
            self._stack = stack.pop_all()
        self._config = config
        self._folder = folder
        tasks = build_tasks(config)
        specs = plan(tasks, config.algorithm, config.simulation)
        self._tasks = [
            replace(task, server=complete_server(task.server, spec))
            for task, spec in zip(tasks, specs, strict=True)
        ]
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
        self._events = EventFile(folder / EVENTS)
        self._stack.callback(self._events.close)
        schedule, decisions = Schedule(), ScheduleChain()
        metrics = {task.name: task.metric.name for task in self._tasks}
        event_log = EventLog(self._events, metrics, averaged)
        observers: list[Observer] = [self.run_metrics, schedule, decisions, event_log]

        def rolled_back(now: float, event: ModelRolledBack) -> None:
            event_log.rolled_back(
                now, event.task, version=event.version, back_to=event.back_to, why=event.why,
                suspects=event.suspects,
            )  # fmt: skip

        head = header(
            self.run_metrics,
            algorithm=config.algorithm.name,
            synchronous=config.algorithm.synchronous,
            seed=config.seed,
            clients=config.simulation.clients,
            metrics=metrics,
            simulated=False,
        )
        self._series = SeriesWriter(folder, head, algorithm, self.run_metrics, averaged)
        self._stack.callback(self._series.close)
        observers.append(self._series)
        observers.extend(make(algorithm, self.run_metrics) for make in watch)
        self._live = False
        watched = Watched(
            algorithm=algorithm,
            run_metrics=self.run_metrics,
            metrics=metrics,
            folder=folder,
            cleanup=self._stack,
            name=f"{config.algorithm.name}-seed-{config.seed}",
            parameters=dict(flat(table)),
            live=lambda: self._live,
        )
        observers.extend(options.build(watched) for options in config.observers)
        self.metrics = ServerMetrics(algorithm, self.run_metrics, config.federation.min_clients)
        wal = WriteAheadLog(folder / FOLDER, snapshot_every=config.federation.snapshot_every)
        self._stack.callback(wal.close)
        how = config.federation
        observer = Observers(tuple(observers))
        extra = {} if clock is None else {"clock": clock}
        self.server = FederationServer(
            driver=Driver(
                algorithm,
                recording,
                observer,
                ask_clients=how.evaluate == "clients",
                roll_backs=RollBacks(
                    Guard({spec.name: spec.higher_is_better for spec in specs}), self._learner
                ),
            ),
            pool=pool,
            learner=self._learner,
            recording=recording,
            wants_loss=algorithm.wants_loss,
            later={spec.name: spec for spec in specs if joined[spec.name] > 0},
            tasks=tuple(task.name for task in self._tasks),
            transport=transport,
            wal=wal,
            store=ModelStore(folder / FOLDER / "models"),
            seed=config.seed,
            configured=Configured(identity(config), describe(config), said),
            schedule=schedule,
            decisions=decisions,
            kept={"algorithm": algorithm, "run_metrics": self.run_metrics},
            outside={"observer": observer},
            events=self._events,
            replay_all=any(options.sees_past for options in config.observers),
            options=Options(
                min_clients=how.min_clients,
                lease=how.lease,
                request_timeout=how.request_timeout,
                requests_per_client=how.requests_per_client,
                redeliver_after=how.redeliver_after,
                commit_every=how.commit_every,
                norm_bound=how.norm_bound,
                norm_factor=how.norm_factor,
                pooling=how.evaluation_aggregate,
                half=how.half_uploads,
                strikes=how.strikes,
                forgive_after=how.forgive_after,
                evaluators=how.evaluators,
                deadlines=_deadlines(self._tasks, config.simulation.max_time),
            ),
            metrics=self.metrics,
            measured={
                task.name: Measured(
                    task.metric,
                    spec.reached,
                    () if task.name in how.data else tuple(map(len, task.partition)),
                )
                for task, spec in zip(self._tasks, specs, strict=True)
            },
            rolled_back=rolled_back,
            audit=AuditTrail(folder),
            quarantine_file=folder / QUARANTINE,
            **extra,
        )
        self._monitor = Monitor(
            metrics=self.metrics,
            transport=transport,
            wal=wal,
            folder=folder,
            min_clients=how.min_clients,
            credentials=credentials,
        )
        if how.metrics_port is not None:
            self._stack.callback(self._serve_http(how.metrics_port, how.metrics_host))

    def _serve_http(self, port: int, address: str) -> Callable[[], None]:
        try:
            return serve_http(self._monitor, self.metrics.registry, port, address)
        except OSError as error:
            self.close()
            raise ConfigError(
                "federation.metrics_port", f"{address}:{port} cannot be used: {error.strerror}"
            ) from None

    async def run(self) -> RunResult:
        """Serve to the end or until stopped; records are written either way."""
        try:
            self.recover()
        except BaseException:
            self.close()
            raise
        self._stack.callback(asyncio.create_task(self._monitor.run()).cancel)
        try:
            await self.server.run()
        except ServerFault:
            self._events.undo()  # the records stay as they were at the last commit
            self.close()
            raise
        except BaseException:
            self._finish()
            raise
        return self._finish()

    def recover(self) -> None:
        """Continue from the end of the write-ahead log, and with the records up to there."""
        self.server.recover()
        self.run_metrics.went_live()
        self._events.publish()
        self._series.go_on()
        self._live = True

    def _finish(self) -> RunResult:
        self._series.end("ended" if self.server.finished else "interrupted")
        result = self.result()
        names = [task.name for task in self._tasks]
        found = {name: self._learner.raw_module(name) for name in names}
        raw = {name: module for name, module in found.items() if module is not None}
        modules = {name: self._learner.module(name) for name in names}
        save_models(self._folder, modules, result, data_of(self._config), raw)
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


def _deadlines(tasks: Sequence[Task], last: float | None) -> tuple[Deadline, ...]:
    """When tasks end, whatever they have reached; ``last`` is for all of them."""
    found = []
    for task in tasks:
        for limit, reason in (
            (task.goal.leave_time, StopReason.REMOVED),
            (task.goal.max_time, StopReason.TIME),
            (last, StopReason.TIME),
        ):
            if limit is not None:
                found.append(Deadline(limit, task.name, reason))
    return tuple(sorted(found, key=lambda deadline: deadline.time))


def _continued(folder: Path, config: RunConfig, said: Mapping[str, Any] | None) -> RunConfig:
    """The configuration to continue with, if there is a write-ahead log: what the file leaves out
    stays as it was when the federation began. ``UnusableFolder`` if it began with another."""
    begun = configuration(folder / FOLDER)
    if begun is None or begun.digest == identity(config):
        return config
    kept = begun.config
    try:
        # Version 0.1.0 recorded only a hash, of the keys of its time; config.toml says more.
        kept = kept or describe(resolve(load(folder / CONFIG), folder))
        changed = [text for text in differences(kept, config, folder)
                   if not text.startswith("compute.")]  # fmt: skip
        if changed and begun.said is not None and said is not None:
            contents = [text for text in changed if text.endswith("has other content")]
            changed = [*contents, *said_otherwise(begun.said, said)]
            if not changed:  # defaults are others in this version
                found = as_begun(kept, config, folder)
                begun_with: RunConfig = found.model_copy(update={"compute": config.compute})
                return begun_with
    except (ConfigError, OSError):
        changed = [f"{folder / CONFIG} cannot be read"]
    if changed:
        raise UnusableFolder(
            f"{folder}: the configuration differs from the one that this federation began with "
            f"({listed(changed)}); serve it to a new folder with --out"
        )
    return config
