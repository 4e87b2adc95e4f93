"""The server of a federation: the driver, a transport, and a write-ahead log that survives a crash.

Theory of operation. Whatever happens (a client joins, an update arrives, a lease ends, a control
command is given) becomes an *event*, is appended to the write-ahead log, and is applied to the
state (``state.apply``); the resulting effects go to the transport. About once a second the log is
committed, and only then are the uploads in it acknowledged. After a crash the events of the last
commit are applied again, without effects; uploads after it are read again, in the same order; then
every request that is still open is sent again, which changes nothing where it is still queued.

The parts, each in a module of its own: ``leases`` (who has been silent too long), ``membership``
(quarantine), ``publishing`` (models, requests, tokens), ``uploads`` (checks), ``evaluator``
(federated evaluation), ``control`` (control commands), ``commits``, ``resending``. This module
joins them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never, final

from fedast.core.protocol import ClientId, StopReason, TaskName, TaskSpec
from fedast.federation import wire
from fedast.federation.audit import AuditTrail
from fedast.federation.commits import Committer
from fedast.federation.control import ControlCommands
from fedast.federation.driver import Ask, Driver, Effect, LivePool, Send, Withdraw
from fedast.federation.evaluation import FederatedEvaluation
from fedast.federation.evaluator import Evaluator, Measured
from fedast.federation.event_file import EventFile
from fedast.federation.faults import ServerFault
from fedast.federation.leases import Leases
from fedast.federation.log_events import (
    ClientJoined,
    ClientLeft,
    Configured,
    Entry,
    LogEvent,
    ModelRolledBack,
    ModelsGuarded,
    RequestFailed,
    TasksEnded,
    TrainingBegan,
)
from fedast.federation.membership import Membership
from fedast.federation.metrics import ServerMetrics
from fedast.federation.model_store import ModelStore
from fedast.federation.norms import NORM_FACTOR, NormBound, Norms
from fedast.federation.notices import Notices, other_format
from fedast.federation.pooling import Pooling
from fedast.federation.publishing import Publisher
from fedast.federation.recovery import Recovery
from fedast.federation.resending import Resending
from fedast.federation.roll_back_events import described, roll_back_events
from fedast.federation.snapshots import ControlPlane
from fedast.federation.state import ServerLearner, ServerState
from fedast.federation.transport import (
    ControlCommand,
    Gone,
    Greeted,
    Incoming,
    ServerTransport,
    StorageLost,
    Uploaded,
)
from fedast.federation.uploads import Uploads
from fedast.federation.write_ahead_log import WriteAheadLog
from fedast.learner.replay import RecordingLearner
from fedast.records.schedule import Schedule, ScheduleChain
from fedast.training.trainer import Update

log = logging.getLogger("fedast.server")
_TICK = 0.25


@dataclass(frozen=True, slots=True)
class Deadline:
    """A task ends at this time, for this reason."""

    time: float
    task: TaskName
    reason: StopReason


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a federation is run; times in seconds."""

    min_clients: int = 1
    """Clients that must have joined before training begins."""
    lease: float = 30.0
    """A client without a heartbeat for this long has left."""
    request_timeout: float = 3600.0
    """In which a client that is here must answer a request."""
    redeliver_after: float = 30.0
    """After which a client that says it is idle is given its requests again."""
    commit_every: float = 1.0
    norm_bound: NormBound = "adaptive"
    """Updates with a larger norm are invalid; adaptive: see ``norms``."""
    norm_factor: float = NORM_FACTOR
    """How many medians long an update may be."""
    half: bool = False
    """Uploads in half precision."""
    evaluators: int = 5
    """Clients that evaluate a model in a federated evaluation."""
    pooling: Pooling = "mean"
    """How their answers become one."""
    strikes: int = 3
    """Invalid uploads after which a client is quarantined."""
    deadlines: tuple[Deadline, ...] = ()
    """When tasks end, whatever they have reached, in order."""


@final
class FederationServer:
    def __init__(
        self,
        *,
        driver: Driver,
        pool: LivePool,
        learner: ServerLearner,
        recording: RecordingLearner,
        wants_loss: bool,
        later: Mapping[TaskName, TaskSpec],
        tasks: tuple[TaskName, ...],
        transport: ServerTransport,
        wal: WriteAheadLog,
        store: ModelStore,
        seed: int,
        configured: Configured,
        schedule: Schedule,
        decisions: ScheduleChain,
        kept: Mapping[str, object],
        outside: Mapping[str, object],
        events: EventFile,
        replay_all: bool,
        options: Options,
        metrics: ServerMetrics,
        measured: Mapping[TaskName, Measured] | None = None,
        rolled_back: Callable[[float, ModelRolledBack], None] = lambda now, event: None,
        audit: AuditTrail | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``later``: tasks that can be added; ``tasks``: all of them, in a fixed order.
        ``measured``: how they are evaluated; by default by their accuracy.
        ``configured`` starts a new log; ``schedule`` and ``decisions`` observe the driver.
        ``kept`` and ``outside``: what a snapshot has to hold beside the server's own state, and
        what it refers to. ``replay_all``: never start from a snapshot if the log is whole."""
        self._recording = recording
        self._learner = learner
        self._tasks = tasks
        self._transport = transport
        self._wal = wal
        self._configured = configured
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._offset = -clock()
        self._stopping = False
        self.state = state = ServerState(
            driver=driver,
            pool=pool,
            learner=learner,
            membership=Membership(options.strikes),
            norms=Norms(options.norm_bound, options.norm_factor),
            later=later,
            wants_loss=wants_loss,
            rolled_back=rolled_back,
        )
        plane = ControlPlane(
            {"state": state, "driver": driver, "pool": pool, "decisions": decisions, **kept},
            {"learner": learner, "recording": recording, **outside},
            learner,
        )
        self._recovery = Recovery(
            wal=wal,
            state=state,
            plane=plane,
            recording=recording,
            schedule=schedule,
            chain=decisions,
            events=events,
            replay_all=replay_all,
        )
        self._leases = Leases(
            lease=options.lease,
            request_timeout=options.request_timeout,
            redeliver_after=options.redeliver_after,
            now=self.now,
        )
        self._notices = Notices(transport, lambda: self.now)
        self._publisher = Publisher(
            state=state,
            learner=learner,
            transport=transport,
            store=store,
            recorder=self,
            tasks=tasks,
            half=options.half,
        )
        self._evaluator = Evaluator(
            evaluation=FederatedEvaluation(seed, options.evaluators, options.lease),
            state=state,
            publisher=self._publisher,
            leases=self._leases,
            recorder=self,
            measured=measured or {name: Measured() for name in tasks},
            pooling=options.pooling,
        )
        self._resending = Resending(
            state=state,
            publisher=self._publisher,
            evaluator=self._evaluator,
            leases=self._leases,
            recorder=self,
            send=self._send,
        )
        self._uploads = Uploads(
            state=state,
            learner=learner,
            publisher=self._publisher,
            evaluator=self._evaluator,
            leases=self._leases,
            recorder=self,
            metrics=metrics,
        )
        self._control = ControlCommands(
            state=state, metrics=metrics, recorder=self, stop=self.stop, audit=audit
        )
        self._committer = Committer(
            wal=wal,
            state=state,
            learner=learner,
            plane=plane,
            decisions=decisions,
            events=events,
            transport=transport,
            recorder=self,
            metrics=metrics,
            every=options.commit_every,
        )

    @property
    def now(self) -> float:
        """Seconds since the federation began, not counting the time that the server was down."""
        return self._clock() + self._offset

    @property
    def finished(self) -> bool:
        return self.state.finished

    def stop(self) -> None:
        """End soon, with everything committed; a later start continues."""
        self._stopping = True

    # --- recovery -------------------------------------------------------------------------------

    def recover(self) -> None:
        """Continue from the end of the log; ``UnusableFolder`` if that is not possible."""
        past = self._recovery.run()
        self._publisher.secret = self._wal.secret()
        if past is None:
            self.note(self._configured)
            self.note(ModelsGuarded())
            return
        self._offset += past.time
        self._leases.restart(self.state.pool.here, self.now)
        roll_backs = self.state.driver.roll_backs
        roll_backs.take_notices(), roll_backs.take_due()  # they were carried out at the time
        if not roll_backs.on:
            self.note(ModelsGuarded())  # the log was begun by an earlier version
        self._resending.soon()

    # --- recording ------------------------------------------------------------------------------

    async def record(self, event: LogEvent, update: Update | None = None) -> None:
        """Log an event, apply it, and carry out what follows from it."""
        entry = self._entry(event)
        try:
            effects = await asyncio.to_thread(self.state.apply, entry, update)
        except Exception as error:  # whoever sent it: it was decoded and validated before
            raise ServerFault(f"applying {event}", error) from error
        self._append(entry)
        if effects and entry.sequence is None:
            # An upload is read again after a crash, and leads to the same decisions. Other events
            # do not happen again by themselves: they must be durable before anybody is told.
            await self._committer.commit_at_last(lambda: self._stopping)
            if self._wal.dirty:
                return  # told to stop while the disk is full
        for rolled_back in roll_back_events(self._learner, self.state.driver.roll_backs):
            log.error("%s", described(rolled_back))
            self._metrics.roll_backs.labels(rolled_back.task).inc()
            self.note(rolled_back)
        for effect in effects:
            await self._carry_out(effect)
        for client in self.state.driver.roll_backs.take_due():
            await self._uploads.strike(client, self.state.sequence)
        self._metrics.update(self.state.pool)

    def note(self, event: LogEvent) -> None:
        """Log and apply an event from which nothing follows."""
        entry = self._entry(event)
        try:
            self.state.apply(entry)
        except Exception as error:
            raise ServerFault(f"applying {event}", error) from error
        self._append(entry)

    def _entry(self, event: LogEvent) -> Entry:
        return Entry(round(self.now, 4), event)

    def _append(self, entry: Entry) -> None:
        """Log what has been applied, with what the data plane answered."""
        self._wal.append(replace(entry, answers=self._recording.take()))

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                await self._send(effect)
            case Ask():
                await self._evaluator.ask(effect.task, effect.version)
            case Withdraw():
                await self._publisher.withdraw(effect.sent)
            case _:
                assert_never(effect)

    async def _send(self, send: Send) -> None:
        if send.request in self.state.driver.open:
            self._leases.assigned(send.client, self.now)
            await self._publisher.send(send)

    # --- serving --------------------------------------------------------------------------------

    async def run(self) -> None:
        """After ``recover``: serve until every task has ended or ``stop`` was called."""
        epoch = await self._transport.start(self.state.sequence, self._publisher.upload_limit)
        self._publisher.epoch = epoch or ""
        self._leases.tick(self.now)
        await self._resending.publish()
        due = self.now
        while not self._stopping and not self.finished:
            incoming = await self._transport.receive(0.2)
            if incoming is not None:
                await self._handle(incoming)
            await self._resending.go_on(idle=incoming is None)
            if self.now >= due:
                due = self.now + _TICK
                await self._tick()
        await self._committer.commit(force=True)

    async def _handle(self, incoming: Incoming) -> None:
        match incoming:
            case Uploaded():
                await self._uploads.handle(incoming)
            case Greeted():
                await self._greeted(incoming)
            case Gone():
                await self._left(incoming.client, "the transport says so")
            case ControlCommand():
                answer = await self._control.handle(incoming.data, incoming.key)
                await self._transport.answer(incoming, answer)
            case StorageLost():
                self._metrics.storage_losses.inc()
                await self._resending.storage_lost(incoming)
            case _:
                assert_never(incoming)

    async def _greeted(self, greeting: Greeted) -> None:
        """A heartbeat; the first one makes a client join."""
        client, state = greeting.client, self.state
        try:
            hello = wire.decode(greeting.data, wire.Hello)
            if hello.client != client:
                raise wire.WireError(f"it says that it is client {hello.client}")
        except wire.WireError as error:
            await self._notices.refuse(client, other_format(greeting.data) or str(error))
            return
        if client in state.membership.quarantined:
            await self._notices.refuse(client, "it is quarantined; the server's log says why")
            return
        self._leases.seen(client, self.now)
        self._evaluator.greeted(hello)
        if hello.bye:
            await self._left(client, "it said goodbye")
        elif client not in state.pool:
            missing = [name for name in self._tasks if name not in hello.tasks]
            if missing:
                lacks = (
                    f"it lacks the tasks {', '.join(missing)}; give it the server's configuration"
                )
                await self._notices.refuse(client, lacks)
                return
            await self._notices.admitted(client)
            log.info("client %d joined (%s)", client, hello.software)
            self._leases.joined(client)
            await self.record(ClientJoined(client))
        elif hello.idle and self._leases.to_redeliver(client, state.requests_of(client), self.now):
            log.warning("client %d is idle but has requests; delivering them again", client)
            await self._transport.redeliver(client)

    async def _left(self, client: ClientId, why: str) -> None:
        if client in self.state.pool:
            log.info("client %d left: %s", client, why)
            await self.record(ClientLeft(client))

    async def _tick(self) -> None:
        options, state = self._options, self.state
        self._leases.tick(self.now)
        if not state.training and len(state.pool) >= options.min_clients:
            log.info("training begins with %d clients", len(state.pool))
            await self.record(TrainingBegan())
        for client in self._leases.expired(state.pool.here, self.now):
            await self._left(client, f"no heartbeat for {options.lease:g} s")
        self._evaluator.pass_time()
        await self._evaluator.close()
        if not self._resending.pending:
            await self._time_out()
            await self._evaluator.ask_again()
        for deadline in options.deadlines if state.training else ():
            if self.now >= deadline.time and state.may_end(deadline.task, deadline.reason):
                await self.record(TasksEnded((deadline.task,), deadline.reason))
        await self._committer.commit()
        self._metrics.take_snapshot(state, self._leases.last_seen, self.now)

    async def _time_out(self) -> None:
        """A client that is here but does not answer loses its oldest request."""
        for client, request in self._leases.overdue(self.state.oldest_requests(), self.now):
            if request in self.state.driver.open:
                log.warning("client %d did not answer request %d in time", client, request)
                await self.record(RequestFailed(request, invalid=False))
                await self._uploads.strike(client, self.state.sequence)
