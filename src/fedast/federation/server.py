"""The server of a federation: the driver, a transport, and a write-ahead log that survives a crash.

Theory of operation. Whatever happens (a client joins, an update arrives, a lease ends, a control
command is given) becomes an *event*, is appended to the write-ahead log, and is applied to the
state (``state.apply``); the resulting effects go to the transport. About once a second the log is
committed, and only then are the uploads in it acknowledged. After a crash the events of the last
commit are applied again, without effects; uploads after it are read again, in the same order; then
every request that is still open is sent again, which changes nothing where it is still queued.

The parts, each in a module of its own: ``leases`` (who has been silent too long), ``membership``
(quarantine), ``conduct`` (what leads to it), ``publishing`` (models, requests, tokens), ``uploads``
(checks), ``evaluator`` (federated evaluation), ``control`` (control commands), ``commits``,
``resending``. This module joins them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import assert_never, final

from fedast.core.protocol import TaskName, TaskSpec
from fedast.federation.audit import AuditTrail
from fedast.federation.commits import Committer
from fedast.federation.conduct import Conduct
from fedast.federation.control import ControlCommands
from fedast.federation.driver import Ask, Driver, Effect, LivePool, Send, Withdraw
from fedast.federation.evaluation import FederatedEvaluation
from fedast.federation.evaluator import Evaluator, Measured
from fedast.federation.event_file import EventFile
from fedast.federation.faults import ServerFault
from fedast.federation.greetings import Greetings
from fedast.federation.leases import Leases
from fedast.federation.log_events import (
    Configured,
    Entry,
    LogEvent,
    ModelRolledBack,
    ModelsGuarded,
    TasksEnded,
    TrainingBegan,
)
from fedast.federation.membership import Membership
from fedast.federation.metrics import ServerMetrics
from fedast.federation.model_store import ModelStore
from fedast.federation.norms import Norms
from fedast.federation.notices import Notices
from fedast.federation.options import Options
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
_LONG, _LARGE = 0.05, 4 * 2**20
"""Seconds of an evaluation, and bytes of a model."""


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
        quarantine_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``later``: tasks that can be added; ``tasks``: all of them, in a fixed order.
        ``measured``: how they are evaluated; by default by their accuracy.
        ``configured`` starts a new log; ``schedule`` and ``decisions`` observe the driver.
        ``kept`` and ``outside``: what a snapshot has to hold beside the server's own state, and
        what it refers to. ``replay_all``: never start from a snapshot if the log is whole."""
        self._recording = recording
        self._learner = learner
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
            membership=Membership(options.strikes, options.forgive_after),
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
        self._publisher = Publisher(
            state=state,
            learner=learner,
            transport=transport,
            store=store,
            recorder=self,
            tasks=tasks,
            half=options.half,
        )
        self._conduct = Conduct(
            state=state,
            leases=self._leases,
            recorder=self,
            transport=transport,
            longest_rest=options.request_timeout,
            file=quarantine_file,
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
            conduct=self._conduct,
            recorder=self,
            metrics=metrics,
        )
        self._greetings = Greetings(
            state=state,
            leases=self._leases,
            conduct=self._conduct,
            evaluator=self._evaluator,
            notices=Notices(transport, lambda: self.now),
            transport=transport,
            recorder=self,
            tasks=tasks,
        )
        self._control = ControlCommands(
            state=state,
            metrics=metrics,
            recorder=self,
            stop=self.stop,
            audit=audit,
            pardon=self._conduct.pardon,
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
            effects = await self._apply(entry, update)
        except Exception as error:  # whoever sent it: it was decoded and validated before
            raise ServerFault(f"applying {event}", error) from error
        self._append(entry)
        for effect in effects:
            # Before a commit, which forgets the models that nobody needs any more: a request is
            # withdrawn by a name that depends on its model's. (After a crash it is sent again.)
            if isinstance(effect, Withdraw):
                await self._publisher.withdraw(effect.sent)
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
            if not isinstance(effect, Withdraw):
                await self._carry_out(effect)
        for client in self.state.driver.roll_backs.take_due():
            await self._conduct.strike(client, self.state.sequence, self._uploads.doubted(client))

    async def _apply(self, entry: Entry, update: Update | None) -> list[Effect]:
        """In a thread, because the server must go on listening during an evaluation, or a step of a
        large model; where both are known to be short, that would cost more than it is worth."""
        evaluation = self._recording.longest_evaluation
        if evaluation is None or evaluation > _LONG or self._publisher.upload_limit > _LARGE:
            return await asyncio.to_thread(self.state.apply, entry, update)
        return self.state.apply(entry, update)

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

    async def _carry_out(self, effect: Send | Ask) -> None:
        match effect:
            case Send():
                await self._send(effect)
            case Ask():
                await self._evaluator.ask(effect.task, effect.version)
            case _:
                assert_never(effect)

    async def _send(self, send: Send) -> None:
        if send.request in self.state.driver.open:
            self._leases.assigned(send.client, send.request, self.now)
            await self._publisher.send(send)

    # --- serving --------------------------------------------------------------------------------

    async def run(self) -> None:
        """After ``recover``: serve until every task has ended or ``stop`` was called."""
        epoch = await self._transport.start(self.state.sequence, self._publisher.upload_limit)
        self._publisher.epoch = epoch or ""
        self._leases.tick(self.now)
        await self._conduct.start(self._options.requests_per_client)
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
        self._metrics.update(self.state.pool)

    async def _handle(self, incoming: Incoming) -> None:
        match incoming:
            case Uploaded():
                await self._uploads.handle(incoming)
            case Greeted():
                await self._greetings.heard(incoming)
            case Gone():
                await self._greetings.left(incoming.client, "the transport says so")
            case ControlCommand():
                answer = await self._control.handle(incoming.data, incoming.key)
                await self._transport.answer(incoming, answer)
            case StorageLost():
                self._metrics.storage_losses.inc()
                await self._resending.storage_lost(incoming)
            case _:
                assert_never(incoming)

    async def _tick(self) -> None:
        options, state = self._options, self.state
        self._leases.tick(self.now)
        if not state.training and len(state.pool) >= options.min_clients:
            log.info("training begins with %d clients", len(state.pool))
            await self.record(TrainingBegan())
        for client in self._leases.expired(state.pool.here, self.now):
            await self._greetings.left(client, f"no heartbeat for {options.lease:g} s")
        self._evaluator.pass_time()
        await self._evaluator.close()
        if not self._resending.pending:
            await self._conduct.tick()
            await self._evaluator.ask_again()
        for deadline in options.deadlines if state.training else ():
            if self.now >= deadline.time and state.may_end(deadline.task, deadline.reason):
                await self.record(TasksEnded((deadline.task,), deadline.reason))
        await self._committer.commit()
        self._metrics.update(state.pool)
        self._metrics.take_snapshot(state, self._leases.last_seen, self.now)
