"""The server of a real federation: the driver, a transport, and a diary that survives a crash.

Theory of operation. Whatever happens (a client greets, an update comes, a lease runs out, an
order is given) becomes an *entry*, is written into the diary, and is applied to the driver; the
effects go to the transport. About once a second the diary is committed, and only then are the
uploads in it settled. After a crash the entries of the last commit are applied again, without
effects; uploads after it are read again, in the same order; then every request that is still open
is sent again, which changes nothing where it is still queued.

An assignment (request, client, model) has a token. A request that was sent after the last commit
may be decided otherwise the second time: then its token is another, and an update with the old
one is passed over. So nothing counts twice, and nothing counts for what it is not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from fedast.core.protocol import (
    ClientId,
    Evaluated,
    Event,
    IllegalEvent,
    PoolChanged,
    RequestId,
    RequestLost,
    Started,
    StopReason,
    TaskAdded,
    TaskName,
    TaskSpec,
    TasksStopped,
    UpdateArrived,
    Version,
)
from fedast.federation import wire
from fedast.federation.driver import Ask, Driver, Effect, LivePool, Send, Withdraw
from fedast.federation.evaluation import Polls
from fedast.federation.metrics import Meters
from fedast.federation.transport import Gone, Greeted, Ordered, ServerTransport, Uploaded
from fedast.federation.write_ahead_log import Diary
from fedast.learner.remote import RemoteLearner
from fedast.learner.replay import RecordingLearner, ReplayFailed
from fedast.records.run import UnusableFolder
from fedast.records.schedule import Schedule
from fedast.training.trainer import Update
from fedast.version import __version__

log = logging.getLogger("fedast.server")
Entry = dict[str, Any]
_FAILURES = 10
"""Trainings in a row that a client may fail in."""
_DOUBLED = 3
"""So often the patience with an idle client is doubled."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a federation is run."""

    min_clients: int = 1
    """Clients that must be there before it begins."""
    lease: float = 30.0
    """Seconds without a sign of life after which a client counts as gone."""
    request_timeout: float = 3600.0
    """Seconds in which a client that is there must answer one request."""
    redeliver_after: float = 30.0
    """Seconds after which a client that says it is idle is handed its requests again."""
    commit_every: float = 1.0
    norm_bound: float | None = None
    """Longer updates are invalid."""
    half: bool = False
    """Uploads in half precision."""
    evaluators: int = 5
    """Clients that evaluate a model, where clients do."""
    strikes: int = 3
    """Invalid uploads after which a client is quarantined."""
    max_time: float | None = None
    """Seconds after which every task ends."""


@final
class FederationServer:
    def __init__(
        self,
        *,
        driver: Driver,
        pool: LivePool,
        learner: RemoteLearner,
        recording: RecordingLearner,
        wants_loss: bool,
        later: Mapping[TaskName, TaskSpec],
        tasks: tuple[TaskName, ...],
        transport: ServerTransport,
        diary: Diary,
        seed: int,
        config: Mapping[str, Any],
        schedule: Schedule,
        options: Options,
        meters: Meters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``later`` are tasks that can be added; ``tasks`` all of them, in a fixed order.
        ``config`` is written into the diary; ``schedule`` looks on at the driver."""
        self._driver = driver
        self._pool = pool
        self._learner = learner
        self._recording = recording
        self._wants_loss = wants_loss
        self._later = dict(later)
        self._numbers = {name: number for number, name in enumerate(tasks)}
        self._sizes = {name: learner.parameters(name).numel() for name in tasks}
        self._buffers = {name: learner.buffers(name) for name in tasks}
        self._transport = transport
        self._diary = diary
        self._seed = seed
        self._config = config
        self._schedule = schedule
        self._options = options
        self._meters = meters
        self._clock = clock
        self._offset = -clock()
        self._started = False
        self._names: dict[tuple[TaskName, Version], str] = {}
        """Models that are published."""
        self._retired: list[str] = []
        """Models to be taken away after the next commit."""
        self._seen: dict[ClientId, float] = {}
        self._heard: dict[ClientId, float] = {}
        """When a client last answered, or was first given something to do."""
        self._reminded: dict[ClientId, tuple[float, int]] = {}
        """When a client that was idle was last handed its requests again, and how often by then
        without an answer."""
        self._polls = Polls(seed, options.evaluators, options.lease)
        self._strikes: dict[ClientId, int] = {}
        self._failures: dict[ClientId, int] = {}
        self._quarantined: set[ClientId] = set()
        self._place = 0
        self._settled = 0
        self._committed = 0.0
        self._retry_at = 0.0
        self._resend = False
        self._stopping = False
        self._ticked = 0.0
        self._secret = b""
        self._due = 0.0

    @property
    def now(self) -> float:
        """Seconds of this federation, over all its lives."""
        return self._clock() + self._offset

    @property
    def finished(self) -> bool:
        return self._started and not self._driver.unfinished

    def stop(self) -> None:
        """End soon, with everything committed; a later start goes on."""
        self._stopping = True

    async def run(self) -> None:
        """Serve until every task has ended or ``stop`` was called, after ``recover``."""
        limit = 4 * max(self._sizes.values()) + 65536
        await self._transport.start(self._place, limit)
        self._ticked = self.now
        # Decided by the last commit and not published yet: now, before anything steps the model.
        for send in list(self._driver.open.values()):
            await self._publish(send.task, send.version)
        for task, version in list(self._driver.asked):
            await self._publish(task, version)
        while not self._stopping and not self.finished:
            incoming = await self._transport.receive(0.2)
            match incoming:
                case Uploaded():
                    await self._guarded(incoming)
                case Greeted():
                    await self._greeted(incoming)
                case Gone(client=client):
                    await self._gone(client, "it is not there any more")
                case Ordered():
                    await self._ordered(incoming)
                case None:
                    await self._send_again()
            if self.now >= self._due:
                self._due = self.now + 0.25
                await self._tick()
        await self._commit(force=True)

    # --- coming back ----------------------------------------------------------------------------

    def recover(self) -> None:
        """Be where the diary ends; ``UnusableFolder`` if what it says comes out otherwise now."""
        past = self._diary.open(log.warning)
        self._secret = self._diary.secret()
        if past is None:
            self._note({"e": "config", **self._config})
            return
        writer = past.fedast or "0.1.0"  # which did not say so
        if writer != __version__:
            log.warning("the diary is of fedast %s, this is %s", writer, __version__)
        self._recording.repeat(past.answers)
        try:
            for entry in past.entries:
                self._apply(entry)
            if past.schedule not in (None, self._schedule.digest()):
                raise ReplayFailed("other requests are sent")
            self._recording.go_live(past.tensors)
        except (
            ReplayFailed, IllegalEvent, LookupError, ValueError, TypeError, AssertionError
        ) as error:  # fmt: skip
            what = str(error) if isinstance(error, ReplayFailed) else repr(error)
            same = writer == __version__
            remedy = "restore the folder" if same else f"serve it with fedast {writer}"
            raise UnusableFolder(
                f"the server's diary is not what this server would have done ({what}); {remedy}, "
                "or serve to a new folder with --out"
            ) from error
        self._offset += past.time
        self._place = past.place
        for client in self._pool.here:
            self._seen[client] = self._heard[client] = self.now
        self._resend = True
        log.info(
            "taking up at %.1f s: %d entries, %d requests open",
            past.time, len(past.entries), len(self._driver.open),
        )  # fmt: skip

    async def _send_again(self) -> None:
        """When what was uploaded meanwhile has been read: whatever is still open."""
        if self._resend:
            self._resend = False
            for send in list(self._driver.open.values()):
                await self._send(send)
            for task, version in list(self._driver.asked):
                await self._ask(Ask(task, version))

    # --- what happens ---------------------------------------------------------------------------

    async def _happen(self, entry: Entry, update: Update | None = None) -> None:
        entry["t"] = round(self.now, 4)
        self._diary.write(entry)
        effects = await asyncio.to_thread(self._apply, entry, update)
        if effects and "place" not in entry:
            # An upload is read again after a crash, and decided in the same way; this will not
            # happen again by itself, so it must be durable before anybody is told.
            await self._commit(force=True)
        for effect in effects:
            match effect:
                case Send():
                    await self._send(effect)
                case Ask():
                    await self._ask(effect)
                case Withdraw(sent=gone):
                    await self._transport.withdraw(gone.client, self._request_name(gone))
        self._meters.after(self._driver, self._pool)

    def _apply(self, entry: Mapping[str, Any], update: Update | None = None) -> list[Effect]:
        """The one place where the diary becomes state, live and in replay alike."""
        now = entry["t"]
        self._place = max(self._place, entry.get("place", 0))
        match entry["e"]:
            case "join":
                self._pool.join(entry["c"])
                return self._changed(now)
            case "leave":
                return self._leave(entry["c"], now)
            case "quarantine":
                self._quarantined.add(entry["c"])
                return self._leave(entry["c"], now)
            case "start":
                self._started = True
                return self._driver.handle(Started(), now)
            case "arrive":
                send = self._driver.open.get(entry["r"])
                if send is not None:
                    self._failures.pop(send.client, None)
                    if update is not None:
                        self._learner.receive(entry["r"], update)
                loss = entry["l"] if self._wants_loss else None
                return self._driver.handle(UpdateArrived(entry["r"], entry["w"], loss), now)
            case "lost":
                return self._driver.handle(RequestLost(entry["r"], entry["invalid"]), now)
            case "evaluated":
                found = Evaluated(entry["task"], entry["round"], entry["metric"], entry["loss"])
                return self._driver.handle(found, now)
            case "add":
                return self._driver.handle(TaskAdded(self._later.pop(entry["task"])), now)
            case "stop":
                names = tuple(n for n in entry["tasks"] if n in self._driver.unfinished)
                event: Event = TasksStopped(names, StopReason(entry["reason"]))
                return self._driver.handle(event, now) if names else []
            case "pause":
                self._pool.paused = True
            case "resume":
                self._pool.paused = False
                return self._changed(now)
            case "model":
                self._names[entry["task"], entry["version"]] = entry["name"]
            case "retire":
                self._names.pop((entry["task"], entry["version"]), None)
            case "failure":
                self._failures[entry["c"]] = self._failures.get(entry["c"], 0) + 1
            case "strike":
                self._strikes[entry["c"]] = self._strikes.get(entry["c"], 0) + 1
            case _:
                pass
        return []

    def _changed(self, now: float) -> list[Effect]:
        return self._driver.handle(PoolChanged(), now) if self._started else []

    def _leave(self, client: ClientId, now: float) -> list[Effect]:
        self._pool.leave(client)
        held = [r for r, send in self._driver.open.items() if send.client == client]
        return [
            effect
            for request in held
            if request in self._driver.open
            for effect in self._driver.handle(RequestLost(request), now)
        ]

    # --- requests and models --------------------------------------------------------------------

    async def _send(self, send: Send) -> None:
        if send.request not in self._driver.open:
            return
        name = await self._publish(send.task, send.version)
        request = wire.Request(
            kind="train",
            id=send.request,
            token=self._token(send),
            task=send.task,
            version=send.version,
            model=name,
            size=self._sizes[send.task],
            half=self._options.half,
        )
        self._heard.setdefault(send.client, self.now)
        name = self._request_name(send)
        await self._transport.send(send.client, name, wire.encode(request), request.model)

    async def _publish(self, task: TaskName, version: Version) -> str:
        """Where a model is; it is put there if it has not been."""
        if (task, version) not in self._names:
            assert version == self._learner.version(task), f"{task}: version {version} is gone"
            vector = self._learner.parameters(task).detach().cpu().numpy()
            data = wire.encode(wire.Model(task, version, vector.astype(np.float32)))
            name = wire.model_name(data, self._numbers[task], version)
            await self._transport.publish(name, data)
            self._note({"e": "model", "task": task, "version": version, "name": name})
        return self._names[task, version]

    def _request_name(self, send: Send) -> str:
        """With the token: what was decided otherwise before a crash is another request."""
        return f"{send.request}-{self._token(send)}"

    def _token(self, send: Send) -> str:
        name = self._names.get((send.task, send.version), "")
        return wire.token(self._secret, send.request, send.client, name)

    def _note(self, entry: Entry) -> None:
        """Something that changes no decision."""
        entry["t"] = round(self.now, 4)
        self._diary.write(entry)
        self._apply(entry)

    # --- evaluation by clients -------------------------------------------------------------------

    async def _ask(self, ask: Ask) -> None:
        key = (ask.task, ask.round)
        if key not in self._driver.asked:
            return
        name = await self._publish(*key)
        here = self._pool.everyone()
        if not here:
            return  # it is asked again later
        token, chosen = self._polls.ask(key, here, self.now)
        request = wire.Request(
            kind="evaluate",
            id=ask.round,
            token=token,
            task=ask.task,
            version=ask.round,
            model=name,
            size=self._sizes[ask.task],
            half=False,
        )
        place = f"e{self._numbers[ask.task]}-{ask.round}-{token}"
        for client in chosen:
            await self._transport.send(client, place, wire.encode(request), name)

    async def _answered(self, upload: Uploaded) -> None:
        """A client's evaluation has come, or word that it will not."""
        client, token = upload.client, upload.name.rpartition("-")[2]
        key = self._polls.about(token)
        if key is None or not self._polls.waits_for(key, client):
            self._note({"e": "superseded", "place": upload.place})
            return
        why = upload.failed
        if why is None:
            try:
                if upload.oversized:
                    raise wire.WireError("it is longer than it may be")
                update: wire.Update = wire.decode(upload.data, wire.Update)
                if (update.task, update.request) != key or update.token != token:
                    raise wire.WireError("its name is that of another question")
            except wire.WireError as error:
                self._polls.give_up(key, client)
                await self._invalid(client, None, upload.place, str(error))
                return
            self._seen[client] = self.now
            metric, loss = update.metric, update.loss
            if metric is not None and math.isfinite(metric + loss) and update.samples > 0:
                self._polls.answer(key, client, metric, loss, update.samples)
            else:
                why = update.failed or "its answer is no number"
        self._note({"e": "answer", "place": upload.place})
        if why is not None:
            log.warning("client %d does not evaluate: %s", client, why)
            self._polls.give_up(key, client)
        if upload.blame:
            await self._failure(client)
        await self._count()

    async def _count(self) -> None:
        for verdict in self._polls.close(self.now):
            task, version = verdict.key
            await self._happen(
                {
                    "e": "evaluated",
                    "task": task,
                    "round": version,
                    "metric": verdict.metric,
                    "loss": verdict.loss,
                }
            )

    async def _chase(self) -> None:
        """Evaluations that nobody is at: their clients are gone or too slow, or none was there."""
        self._polls.pass_time(self.now, self._pool.here)
        await self._count()
        if not self._resend:
            for task, version in list(self._driver.asked):
                if self._polls.may_ask((task, version), self.now):
                    await self._ask(Ask(task, version))

    # --- what comes in --------------------------------------------------------------------------

    async def _guarded(self, upload: Uploaded) -> None:
        """Whatever a client sends, it must not end the server, now or when it is read again."""
        try:
            await self._uploaded(upload)
        except (ArithmeticError, ValueError, LookupError, TypeError) as error:
            log.exception("client %d uploaded what cannot be handled", upload.client)
            await self._invalid(upload.client, None, upload.place, type(error).__name__)

    async def _uploaded(self, upload: Uploaded) -> None:
        if upload.place <= self._place:
            return  # it is in the diary already
        if upload.client in self._quarantined:
            self._place = upload.place
            return
        if upload.name.startswith("e"):
            await self._answered(upload)
            return
        client, place = upload.client, upload.place
        number, _, word = upload.name.partition("-")
        request: RequestId = int(number) if number.isdecimal() and len(number) < 16 else -1
        send = self._driver.open.get(request)
        if send is None and upload.failed is not None:
            self._note({"e": "superseded", "place": place})  # nobody waits for it any more
            return
        if send is None and 0 <= request < self._driver.sent:
            # Late, or a second time: the algorithm says which.
            await self._happen({"e": "arrive", "r": request, "w": 0.0, "l": 0.0, "place": place})
            self._meters.ignored.inc()
            return
        if send is None or send.client != client or word != self._token(send):
            # Not what is open: of a decision that a crash undid, another's, or made up. Only who
            # has the token speaks for a request, so nobody is to blame for this.
            self._note({"e": "superseded", "place": place})
            self._meters.ignored.inc()
            log.info("client %d uploaded %r, which is not open", client, upload.name[:60])
            if send is not None and send.client == client:
                await self._send(send)
            return
        if upload.failed is not None:
            log.warning(
                "client %d: request %d comes to nothing: %s", client, request, upload.failed
            )
            await self._happen({"e": "lost", "r": request, "invalid": False, "place": place})
            if upload.blame:
                await self._failure(client)
            return
        try:
            if upload.oversized:
                raise wire.WireError("it is longer than it may be")
            update: wire.Update = wire.decode(upload.data, wire.Update)
            if update.request != request or update.token != word:
                raise wire.WireError("its name is that of another request")
        except wire.WireError as error:
            await self._invalid(client, request, place, str(error))
            return
        self._heard[client] = self._seen[client] = self.now
        self._reminded.pop(client, None)
        if update.vector is None and update.failed is not None:
            log.warning("client %d could not train request %d: %s", client, request, update.failed)
            await self._happen({"e": "lost", "r": request, "invalid": False, "place": place})
            if not update.failed.startswith(wire.MODEL_GONE):  # that would be our fault
                await self._failure(client)
            return
        size, buffers = self._sizes[send.task], self._buffers[send.task]
        wrong = wire.sound(update, size, self._options.norm_bound, buffers)
        if wrong is not None:
            await self._invalid(client, request, place, wrong)
            return
        assert update.vector is not None
        value = Update(
            torch.from_numpy(update.vector),
            torch.tensor(update.loss),
            None if update.buffers is None else torch.from_numpy(update.buffers),
        )
        entry = {"e": "arrive", "r": request, "w": update.work_seconds, "l": update.loss,
                 "place": place}  # fmt: skip
        await self._happen(entry, value)
        self._meters.updates.labels(send.task).inc()

    async def _invalid(
        self, client: ClientId, request: RequestId | None, place: int, why: str
    ) -> None:
        """Give the request up, if it was the client's own, and remember who sent it."""
        log.warning("client %d sent an invalid update (request %s): %s", client, request, why)
        self._meters.invalid.inc()
        if request is not None:
            await self._happen({"e": "lost", "r": request, "invalid": True, "place": place})
        await self._strike(client, place)

    async def _failure(self, client: ClientId) -> None:
        self._note({"e": "failure", "c": client})
        await self._quarantine(client)

    async def _strike(self, client: ClientId, place: int) -> None:
        self._note({"e": "strike", "c": client, "place": place})
        await self._quarantine(client)

    async def _quarantine(self, client: ClientId) -> None:
        """A client that keeps sending bad updates, or can train nothing, is let in no more."""
        strikes, failures = self._strikes.get(client, 0), self._failures.get(client, 0)
        if client in self._quarantined:
            return
        if strikes >= self._options.strikes or failures >= _FAILURES:
            log.error(
                "client %d is quarantined: %d invalid updates, %d failures in a row",
                client, strikes, failures,
            )  # fmt: skip
            await self._happen({"e": "quarantine", "c": client})

    async def _greeted(self, greeting: Greeted) -> None:
        client = greeting.client
        try:
            hello: wire.Hello = wire.decode(greeting.data, wire.Hello)
            if hello.client != client:
                raise wire.WireError("it says that it is another client")
        except wire.WireError as error:
            log.warning("client %d is not admitted: %s", client, error)
            return
        if client in self._quarantined:
            return
        self._seen[client] = self.now
        if hello.bye:
            await self._gone(client, "it says goodbye")
        elif client not in self._pool:
            missing = [name for name in self._numbers if name not in hello.tasks]
            if missing:
                log.warning("client %d is not admitted: it lacks %s", client, ", ".join(missing))
                return
            log.info("client %d is here (%s)", client, hello.software)
            self._heard.pop(client, None)
            await self._happen({"e": "join", "c": client})
        elif hello.idle:
            await self._remind(client)

    async def _gone(self, client: ClientId, why: str) -> None:
        if client in self._pool:
            log.info("client %d is gone: %s", client, why)
            await self._happen({"e": "leave", "c": client})

    async def _remind(self, client: ClientId) -> None:
        """It is idle: if requests have been waiting for it, something is wrong with its queue.

        Each time in vain doubles the patience: a queue that is made anew all the time would never
        be there, if what is wrong is that it takes long to make one.
        """
        last, times = self._reminded.get(client, (0.0, 0))
        since = max(self._heard.get(client, self.now), last)
        waiting = any(send.client == client for send in self._driver.open.values())
        if waiting and self.now - since > self._options.redeliver_after * 2 ** min(times, _DOUBLED):
            log.warning("client %d is idle though requests wait for it: handed out again", client)
            self._reminded[client] = self.now, times + 1
            await self._transport.hand_out_again(client)

    async def _ordered(self, order: Ordered) -> None:
        try:
            control: wire.Control = wire.decode(order.data, wire.Control)
            answer = await self._obey(control)
        except wire.WireError as error:
            answer = f"refused: {error}"
        await self._transport.answer(order, wire.encode(wire.Control("answer", answer=answer)))

    async def _obey(self, order: wire.Control) -> str:
        match order.verb:
            case "status":
                return self._meters.status(self._driver, self._pool, self._quarantined, self.now)
            case "pause":
                await self._happen({"e": "pause"})
                return "paused: no new requests go out"
            case "resume":
                await self._happen({"e": "resume"})
                return "resumed"
            case "stop" if order.argument in self._driver.unfinished:
                await self._happen({"e": "stop", "tasks": [order.argument], "reason": "removed"})
                return f"task {order.argument} is stopped"
            case "stop":
                return f"refused: no task {order.argument!r} is being trained"
            case "add" if order.argument in self._later and self._started:
                await self._happen({"e": "add", "task": order.argument})
                return f"task {order.argument} is added"
            case "add":
                waiting = ", ".join(self._later) or "none"
                return f"refused: no task {order.argument!r} waits to be added ({waiting})"
            case "halt":
                self.stop()
                return "the server commits and ends; starting it again goes on"
            case _:
                return f"refused: unknown order {order.verb!r}"

    # --- what time brings -----------------------------------------------------------------------

    async def _tick(self) -> None:
        options = self._options
        stall = self.now - self._ticked
        if stall > 2.0:  # while we did not listen, nobody could show signs of life
            for times in (self._seen, self._heard):
                for client in times:
                    times[client] = min(self.now, times[client] + stall)
        self._ticked = self.now
        if not self._started and len(self._pool) >= options.min_clients:
            log.info("beginning with %d clients", len(self._pool))
            await self._happen({"e": "start"})
        for client in self._pool.here:
            if self.now - self._seen.get(client, self.now) > options.lease:
                log.warning("client %d is gone: no sign of life for %g s", client, options.lease)
                await self._happen({"e": "leave", "c": client})
        await self._time_out()
        await self._chase()
        limit = options.max_time
        if self._started and limit is not None and self.now >= limit and self._driver.unfinished:
            tasks = list(self._driver.unfinished)
            await self._happen({"e": "stop", "tasks": tasks, "reason": "time"})
        await self._commit()

    async def _time_out(self) -> None:
        """A client that is there but does not answer loses the request that it is at."""
        oldest: dict[ClientId, RequestId] = {}
        for request, send in self._driver.open.items():
            oldest.setdefault(send.client, request)
        for client in [c for c in self._heard if c not in oldest]:
            del self._heard[client]  # it has nothing to do
        for client, request in oldest.items():
            since = self._heard.setdefault(client, self.now)
            if self.now - since > self._options.request_timeout and not self._resend:
                log.warning("client %d does not answer request %d", client, request)
                self._heard[client] = self.now
                await self._happen({"e": "lost", "r": request, "invalid": False})
                await self._strike(client, self._place)

    async def _commit(self, force: bool = False) -> None:
        if not self._diary.dirty:
            await self._settle()  # what changes nothing is in no commit
            return
        waits = self.now < self._retry_at or (
            self.now - self._committed < self._options.commit_every
        )
        if waits and not force:
            return
        began = time.perf_counter()
        idle = self._idle_models()
        for task, version in idle:
            self._note({"e": "retire", "task": task, "version": version})
        try:
            await asyncio.to_thread(
                self._diary.commit,
                self.now,
                self._learner.state(),
                self._recording.answers,
                self._schedule.digest(),
            )
        except Exception as error:  # a full disk, mostly; safetensors has errors of its own
            log.error("the diary cannot be committed (%s); trying again in 2 s", error)
            self._meters.commit_failures.inc()
            self._retry_at = self.now + 2.0
            self._retired += idle.values()
            return
        self._committed = self.now
        self._meters.commits.observe(time.perf_counter() - began)
        await self._settle()
        # Only now: before the commit, a crash would have made requests open again that need them.
        self._retired += idle.values()
        while self._retired:
            await self._transport.retire(self._retired.pop())

    async def _settle(self) -> None:
        if self._place > self._settled:
            await self._transport.settle(self._place)
            self._settled = self._place

    def _idle_models(self) -> dict[tuple[TaskName, Version], str]:
        """Models that no open request is about and that no new one will be."""
        wanted = {(send.task, send.version) for send in self._driver.open.values()}
        wanted |= set(self._driver.asked)
        newest: dict[TaskName, Version] = {}
        for task, version in self._names:
            newest[task] = max(version, newest.get(task, 0))
        return {
            key: name
            for key, name in self._names.items()
            if key not in wanted and key[1] < newest[key[0]]
        }
