"""The driver of a real federation: the same control plane as in the simulator, without its clock.

Events come from the network. Each is passed to the algorithm; its commands are either executed at
once in the data plane (accept, aggregate, evaluate, measure) or become *effects* on the network
(send, withdraw, ask). The driver knows neither sockets nor files: the caller carries out the
effects and logs the events. A new driver that gets the same events reaches the same state and the
same effects; that is how a server recovers from a crash.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, assert_never, final

from fedast.core.delivery import deliver
from fedast.core.protocol import (
    Accept,
    Aggregate,
    Algorithm,
    ClientId,
    Command,
    Dispatch,
    Drop,
    Evaluate,
    Evaluated,
    Event,
    Finish,
    Ignore,
    MeasureVariances,
    Observer,
    Reallocate,
    RequestId,
    RequestLost,
    TaskName,
    VariancesMeasured,
    Version,
)
from fedast.core.streams import Stream
from fedast.federation.guard import Remedy
from fedast.federation.roll_back import RollBacks
from fedast.learner.protocol import Learner


@final
class LivePool:
    """The clients that are connected now. While paused, no client can be drawn.

    One client is given at most ``limit`` requests: otherwise one that never answers would in time
    hold all of them. A draw that falls on a client with enough is repeated among the others. If
    everybody has enough, one of those that hold the fewest is drawn: the number of requests in
    flight is the algorithm's to decide. A client that rests is given nothing; afterwards it is on
    trial, with one request at a time, until it has answered one.
    """

    def __init__(self, cap: int | None = None, limit: int | None = None) -> None:
        self._cap = cap
        self._here: list[ClientId] = []
        self._first: Counter[ClientId] = Counter()
        """Requests drawn while nobody held any: an initial dispatch does not say what it has given
        out."""
        self.paused = False
        self.limit = limit
        self.resting: set[ClientId] = set()
        self.on_trial: set[ClientId] = set()

    def __contains__(self, client: ClientId) -> bool:
        return client in self._here

    def __len__(self) -> int:
        return len(self._here)

    @property
    def here(self) -> list[ClientId]:
        """All clients, paused or not."""
        return list(self._here)

    def join(self, client: ClientId) -> None:
        if client not in self._here:
            self._here.append(client)
            self._here.sort()

    def leave(self, client: ClientId) -> None:
        if client in self._here:
            self._here.remove(client)

    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        able = self.everyone()
        if not able:
            return None
        client = able[stream.below(len(able))]
        if self.limit is not None or self.on_trial:
            client = self._within_limits(client, able, stream, holders)
        if self._cap is not None and len(holders) >= self._cap and client not in holders:
            return None
        return client

    def _within_limits(
        self,
        drawn: ClientId,
        able: Sequence[ClientId],
        stream: Stream,
        holders: Collection[ClientId],
    ) -> ClientId:
        if holders:
            self._first.clear()
            held = holders if isinstance(holders, Mapping) else dict.fromkeys(holders, 1)
        else:
            held = self._first
        if self._has_room(drawn, held):
            found = drawn
        else:
            others = [client for client in able if self._has_room(client, held)]
            if not others:
                proven = [client for client in able if client not in self.on_trial] or able
                fewest = min(held.get(client, 0) for client in proven)
                others = [client for client in proven if held.get(client, 0) == fewest]
            found = others[stream.below(len(others))]
        if not holders:
            self._first[found] += 1
        return found

    def _has_room(self, client: ClientId, held: Mapping[ClientId, int]) -> bool:
        limit = 1 if client in self.on_trial else self.limit
        return limit is None or held.get(client, 0) < limit

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        able = self.everyone()
        if self._cap is None or self._cap + extra >= len(able):
            return able
        return tuple(able[i] for i in stream.sample(len(able), self._cap + extra))

    def everyone(self) -> Sequence[ClientId]:
        if self.paused:
            return ()
        if not self.resting:
            return tuple(self._here)
        return tuple(client for client in self._here if client not in self.resting)


@dataclass(frozen=True, slots=True)
class Send:
    request: RequestId
    task: TaskName
    client: ClientId
    version: Version


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A request that was sent is not needed any more."""

    sent: Send


@dataclass(frozen=True, slots=True)
class Ask:
    """Have clients evaluate this model; ``Evaluated`` will follow."""

    task: TaskName
    version: Version


Effect: TypeAlias = Send | Withdraw | Ask


@final
class Driver:
    def __init__(
        self,
        algorithm: Algorithm,
        learner: Learner,
        observer: Observer,
        *,
        ask_clients: bool = False,
        roll_backs: RollBacks | None = None,
    ) -> None:
        """``ask_clients``: clients evaluate models, not the learner. ``roll_backs``: what to do
        about bad models; by default nothing."""
        self._algorithm = algorithm
        self._learner = learner
        self._observer = observer
        self.open: dict[RequestId, Send] = {}
        """Requests in flight, as they were sent."""
        self._ask_clients = ask_clients
        self.asked: dict[tuple[TaskName, Version], Version] = {}
        """Evaluations that clients were asked for and that have no result yet: the model's version,
        and the round in which the algorithm asked."""
        self.sent = 0
        """The number of requests so far."""
        self.roll_backs = roll_backs or RollBacks()
        self._judged_in: dict[TaskName, Version] = {}
        """The latest round in which each task was to be evaluated."""
        self._next: deque[Event] = deque()
        """What follows from a roll-back, once the algorithm is done with the present event."""

    @property
    def unfinished(self) -> tuple[TaskName, ...]:
        return self._algorithm.unfinished

    def handle(
        self, event: Event, now: float, typical: tuple[float, float] | None = None
    ) -> list[Effect]:
        """Pass an event to the algorithm; the effects to carry out. An ``Evaluated`` that comes
        from clients has the model's version as its round; ``typical`` are then the medians of
        their metrics and losses."""
        effects: list[Effect] = []
        if isinstance(event, Evaluated):
            key = event.task, event.round
            if key not in self.asked:
                return []  # it has a result already
            round_ = self.asked.pop(key)
            event = self._judged(round_, event, typical or (event.metric, event.loss))
            self._observer.evaluated(now, event)
        self._deliver(event, now, effects)
        return effects

    def answered(self, send: Send, now: float, *, valid: bool, clients: int) -> list[Effect]:
        """A request was answered, by a valid update or by an invalid one for which the model may be
        to blame; ``clients``: how many there are."""
        effects: list[Effect] = []
        remedy = self.roll_backs.answered(
            send.task, send.version, send.client, valid=valid, clients=clients
        )
        if remedy is Remedy.ROLL_BACK:
            self._roll_back(send.task, "most clients could not train it")
        elif remedy is Remedy.END and send.task in self.unfinished:
            self._next.append(Evaluated(send.task, self._judged_in[send.task], math.nan, math.nan))
        self._follow_up(now, effects)
        return effects

    def _deliver(self, event: Event, now: float, effects: list[Effect]) -> None:
        execute = partial(self._execute, effects)
        deliver(event, now, self._algorithm, execute, self._observer)
        self._follow_up(now, effects)

    def _follow_up(self, now: float, effects: list[Effect]) -> None:
        execute = partial(self._execute, effects)
        while self._next:
            event = self._next.popleft()
            if isinstance(event, RequestLost) and event.request not in self.open:
                continue
            if isinstance(event, Evaluated):
                self._observer.evaluated(now, event)
            deliver(event, now, self._algorithm, execute, self._observer)

    def _judged(self, round_: Version, found: Evaluated, typical: tuple[float, float]) -> Evaluated:
        """The evaluation of a version as the algorithm, which counts rounds, gets it. If the model
        was bad, it is that of the version that replaces it."""
        task = found.task
        if self.roll_backs.judge(task, found.round, *typical):
            self._roll_back(task, f"its metric was {typical[0]:g}, its loss {typical[1]:g}")
            return Evaluated(task, round_, *self.roll_backs.good(task))
        return Evaluated(task, round_, found.metric, found.loss, found.raw)

    def _roll_back(self, task: TaskName, why: str) -> None:
        """Back to the last good version, as a new one. What was trained on later versions is
        useless; the algorithm, which does not know about roll-backs, is told that those requests
        are lost."""
        self.roll_backs.roll_back(task, why)
        self._next.extend(
            RequestLost(request) for request, send in self.open.items() if send.task == task
        )
        good = self.roll_backs.good(task)
        for key, round_ in list(self.asked.items()):
            if key[0] == task:
                del self.asked[key]
                self._next.append(Evaluated(task, round_, *good))

    def _execute(self, effects: list[Effect], command: Command) -> Event | None:
        match command:
            case Dispatch():
                version = self.roll_backs.version(command.task, command.version)
                send = Send(command.request, command.task, command.client, version)
                self.open[send.request] = send
                self.sent = max(self.sent, send.request + 1)
                self._learner.dispatch(send.request, send.task, send.client, send.version)
                effects.append(send)
            case Accept():
                self.open.pop(command.request, None)
                if command.counted:
                    self._learner.accept(command.request, command.task)
                    self.roll_backs.accepted(command.task, command.request, command.client)
            case Aggregate():
                self._learner.aggregate(command.task, command.requests, command.weights)
                self.roll_backs.aggregated(command.task, command.round, command.requests)
            case Evaluate() if self._ask_clients:
                self._judged_in[command.task] = command.round
                version = self.roll_backs.version(command.task, command.round)
                self.asked[command.task, version] = command.round
                self.roll_backs.keep(command.task)
                effects.append(Ask(command.task, version))
            case Evaluate():
                self._judged_in[command.task] = command.round
                self.roll_backs.keep(command.task)
                found = self._learner.evaluate(command.task)
                version = self.roll_backs.version(command.task, command.round)
                evaluated = Evaluated(command.task, version, found.metric, found.loss, found.raw)
                return self._judged(command.round, evaluated, (found.metric, found.loss))
            case MeasureVariances():
                return VariancesMeasured(
                    {name: self._learner.variance(name) for name in command.tasks}
                )
            case Drop():
                self._learner.drop(command.request, command.task)
                self.roll_backs.dropped(command.task, command.request)
                gone = self.open.pop(command.request, None)
                if gone is not None:
                    effects.append(Withdraw(gone))
            case Finish() | Ignore() | Reallocate():
                pass
            case _:
                assert_never(command)
        return None
