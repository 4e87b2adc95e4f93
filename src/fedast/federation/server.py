"""The server of a federation: the driver, a transport, and a write-ahead log that survives a crash.

Theory of operation. Whatever happens (a client joins, an update arrives, a lease ends, a control
command is given) becomes an *event*, is appended to the write-ahead log, and is applied to the
state (``state.apply``); the resulting effects go to the transport. About once a second the log is
committed, and only then are the uploads in it acknowledged. After a crash the events of the last
commit are applied again, without effects; uploads after it are read again, in the same order; then
every request that is still open is sent again, which changes nothing where it is still queued.

The parts, each in a module of its own: ``leases`` (who has been silent too long), ``membership``
(quarantine), ``publishing`` (models, requests, tokens), ``uploads`` (checks), ``evaluator``
(federated evaluation), ``control`` (control commands), ``commits``. This module joins them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never, final

from fedast.core.protocol import ClientId, IllegalEvent, StopReason, TaskName, TaskSpec
from fedast.federation import wire
from fedast.federation.commits import Committer
from fedast.federation.control import ControlCommands
from fedast.federation.driver import Ask, Driver, LivePool, Send, Withdraw
from fedast.federation.evaluation import FederatedEvaluation
from fedast.federation.evaluator import Evaluator
from fedast.federation.leases import Leases
from fedast.federation.log_events import (
    ClientJoined,
    ClientLeft,
    Configured,
    Entry,
    LogEvent,
    RequestFailed,
    TasksEnded,
    TrainingBegan,
)
from fedast.federation.membership import Membership
from fedast.federation.metrics import ServerMetrics
from fedast.federation.publishing import Publisher
from fedast.federation.state import ServerLearner, ServerState
from fedast.federation.transport import (
    ControlCommand,
    Gone,
    Greeted,
    Incoming,
    ServerTransport,
    Uploaded,
)
from fedast.federation.uploads import Uploads
from fedast.federation.write_ahead_log import WriteAheadLog, remedy
from fedast.learner.replay import RecordingLearner, ReplayFailed
from fedast.records.run import UnusableFolder
from fedast.records.schedule import Schedule
from fedast.training.trainer import Update
from fedast.version import __version__

log = logging.getLogger("fedast.server")
_TICK = 0.25


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
    norm_bound: float | None = None
    """Updates with a larger norm are invalid."""
    half: bool = False
    """Uploads in half precision."""
    evaluators: int = 5
    """Clients that evaluate a model in a federated evaluation."""
    strikes: int = 3
    """Invalid uploads after which a client is quarantined."""
    max_time: float | None = None
    """After which every task ends."""


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
        seed: int,
        configured: Configured,
        schedule: Schedule,
        options: Options,
        metrics: ServerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``later``: tasks that can be added; ``tasks``: all of them, in a fixed order.
        ``configured`` starts a new log; ``schedule`` observes the driver."""
        self._recording = recording
        self._tasks = tasks
        self._transport = transport
        self._wal = wal
        self._configured = configured
        self._schedule = schedule
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._offset = -clock()
        self._resend = False
        """Open requests have to be sent again: the server has come back."""
        self._stopping = False
        self.state = state = ServerState(
            driver=driver,
            pool=pool,
            learner=learner,
            membership=Membership(options.strikes),
            later=later,
            wants_loss=wants_loss,
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
        )
        self._uploads = Uploads(
            state=state,
            learner=learner,
            publisher=self._publisher,
            evaluator=self._evaluator,
            leases=self._leases,
            recorder=self,
            metrics=metrics,
            norm_bound=options.norm_bound,
        )
        self._control = ControlCommands(state=state, metrics=metrics, recorder=self, stop=self.stop)
        self._committer = Committer(
            wal=wal,
            state=state,
            learner=learner,
            recording=recording,
            schedule=schedule,
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
        """Continue from the end of the log; ``UnusableFolder`` if replaying it gives something
        else than what was recorded."""
        past = self._wal.open(log.warning)
        self._publisher.secret = self._wal.secret()
        if past is None:
            self.note(self._configured)
            return
        writer = past.fedast or "0.1.0"  # which did not record its version
        if writer != __version__:
            log.warning("the write-ahead log is of fedast %s, this is %s", writer, __version__)
        self._recording.repeat(past.answers)
        try:
            for entry in past.entries:
                self.state.apply(entry)
            if past.schedule not in (None, self._schedule.digest()):
                raise ReplayFailed("other requests are sent")
            self._recording.go_live(past.tensors)
        except (
            ReplayFailed, IllegalEvent, LookupError, ValueError, TypeError, AssertionError
        ) as error:  # fmt: skip
            what = str(error) if isinstance(error, ReplayFailed) else repr(error)
            raise UnusableFolder(
                f"replaying the server's write-ahead log gives something else than what was "
                f"recorded ({what}); {remedy(writer)}"
            ) from error
        self._offset += past.time
        self.state.sequence = past.sequence
        self._leases.restart(self.state.pool.here, self.now)
        self._resend = True
        log.info(
            "continuing at %.1f s: %d events replayed, %d requests open",
            past.time, len(past.entries), len(self.state.driver.open),
        )  # fmt: skip

    async def _send_again(self) -> None:
        """Send what is still open, once the uploads since the last commit have been read."""
        self._resend = False
        for send in list(self.state.driver.open.values()):
            await self._send(send)
        for task, version in list(self.state.driver.asked):
            await self._evaluator.ask(task, version)

    # --- recording ------------------------------------------------------------------------------

    async def record(self, event: LogEvent, update: Update | None = None) -> None:
        """Log an event, apply it, and carry out what follows from it."""
        entry = self._append(event)
        effects = await asyncio.to_thread(self.state.apply, entry, update)
        for effect in effects:
            # Before a commit, which forgets the models that nobody needs any more: a request is
            # withdrawn by a name that depends on its model's. (After a crash it is sent again.)
            if isinstance(effect, Withdraw):
                await self._publisher.withdraw(effect.sent)
        if effects and entry.sequence is None:
            # An upload is read again after a crash, and leads to the same decisions. Other events
            # do not happen again by themselves: they must be durable before anybody is told.
            await self._committer.commit(force=True)
        for effect in effects:
            if not isinstance(effect, Withdraw):
                await self._carry_out(effect)
        self._metrics.update(self.state.pool)

    def note(self, event: LogEvent) -> None:
        """Log and apply an event from which nothing follows."""
        self.state.apply(self._append(event))

    def _append(self, event: LogEvent) -> Entry:
        entry = Entry(round(self.now, 4), event)
        self._wal.append(entry)
        return entry

    async def _carry_out(self, effect: Send | Ask) -> None:
        match effect:
            case Send():
                await self._send(effect)
            case Ask():
                await self._evaluator.ask(effect.task, effect.round)
            case _:
                assert_never(effect)

    async def _send(self, send: Send) -> None:
        if send.request in self.state.driver.open:
            self._leases.assigned(send.client, self.now)
            await self._publisher.send(send)

    # --- serving --------------------------------------------------------------------------------

    async def run(self) -> None:
        """After ``recover``: serve until every task has ended or ``stop`` was called."""
        await self._transport.start(self.state.sequence, self._publisher.upload_limit)
        self._leases.tick(self.now)
        # Models that the last commit decided on and nobody published, before they are replaced.
        for send in list(self.state.driver.open.values()):
            await self._publisher.publish(send.task, send.version)
        for task, version in list(self.state.driver.asked):
            await self._publisher.publish(task, version)
        due = self.now
        while not self._stopping and not self.finished:
            incoming = await self._transport.receive(0.2)
            if incoming is not None:
                await self._handle(incoming)
            elif self._resend:
                await self._send_again()
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
                answer = await self._control.handle(incoming.data)
                await self._transport.answer(incoming, answer)
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
            log.warning("client %d is not admitted: %s", client, error)
            return
        if client in state.membership.quarantined:
            return
        self._leases.seen(client, self.now)
        if hello.bye:
            await self._left(client, "it said goodbye")
        elif client not in state.pool:
            missing = [name for name in self._tasks if name not in hello.tasks]
            if missing:
                log.warning("client %d is not admitted: it lacks %s", client, ", ".join(missing))
                return
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
        if not self._resend:
            await self._time_out()
            await self._evaluator.ask_again()
        late = options.max_time is not None and self.now >= options.max_time
        if state.training and late and state.driver.unfinished:
            await self.record(TasksEnded(state.driver.unfinished, StopReason.TIME))
        await self._committer.commit()

    async def _time_out(self) -> None:
        """A client that is here but does not answer loses its oldest request."""
        for client, request in self._leases.overdue(self.state.oldest_requests(), self.now):
            if request in self.state.driver.open:
                log.warning("client %d did not answer request %d in time", client, request)
                await self.record(RequestFailed(request, invalid=False))
                await self._uploads.strike(client, self.state.sequence)
