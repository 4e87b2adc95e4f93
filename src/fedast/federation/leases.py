"""Who has been silent for too long.

A client without a heartbeat for ``lease`` seconds has left. A client that is connected has a
limited time for each request, counted from when it is the request's turn: clients work through
their queues in order, so from when the one before it ended. Answers to other requests do not
prolong it. The time allowed is a multiple of the client's own recent times (without any: of what is
usual among the others), at least ``lease + redeliver_after`` and at most ``request_timeout``, and
doubles when it was too short: at first a slow client cannot be told from a dead one.

A client that says it is idle although requests have been waiting for ``redeliver_after`` has
something wrong with its queue, which is then delivered again.

None of this is durable: after a restart all times start from zero.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import final

from fedast.core.protocol import ClientId, RequestId

_MAX_DOUBLINGS = 3
_STALL = 2.0
"""A longer gap between two ticks means that the server itself was held up."""
_MULTIPLE = 8.0
"""How many times its slowest recent answer a client may take."""
_RECENT = 8
_MISSED_KEPT = 16


@dataclass(frozen=True, slots=True)
class Overdue:
    client: ClientId
    request: RequestId
    allowed: float
    """Seconds that it had."""
    silent: bool
    """It had the longest time allowed, not for the first time, and did not answer, while others
    did."""


@final
class Leases:
    def __init__(
        self, *, lease: float, request_timeout: float, redeliver_after: float, now: float
    ) -> None:
        self._lease = lease
        self._longest = request_timeout
        self._shortest = min(lease + redeliver_after, request_timeout)
        self._redeliver_after = redeliver_after
        self._ticked = now
        self._seen: dict[ClientId, float] = {}
        """The last sign of life."""
        self._answered: dict[ClientId, float] = {}
        """The last answer, late ones included."""
        self._turns: dict[ClientId, tuple[RequestId, float]] = {}
        """The request that a client should be working on, and since when."""
        self._times: dict[ClientId, deque[float]] = {}
        """How long its latest answers took."""
        self._missed: dict[ClientId, dict[RequestId, float]] = {}
        """Requests that were taken from it, and when the turn of each had come."""
        self._in_a_row: Counter[ClientId] = Counter()
        """Time-outs since its last answer."""
        self._resting: dict[ClientId, float] = {}
        """When clients that rest may be asked again."""
        self._redelivered: dict[ClientId, tuple[float, int]] = {}
        """When an idle client's queue was last delivered again, and how often since its last
        answer."""

    def restart(self, clients: Iterable[ClientId], now: float) -> None:
        """The server has come back: every client gets its full time."""
        self._ticked = now
        self._turns.clear()
        for client in clients:
            self._seen[client] = now

    def tick(self, now: float) -> None:
        """Call this regularly. While the server was held up it could not hear anybody, so that time
        does not count."""
        stall = now - self._ticked
        if stall > _STALL:
            for times in (self._seen, self._answered, *self._missed.values()):
                for key in times:
                    times[key] = min(now, times[key] + stall)
            self._turns = {
                client: (request, min(now, since + stall))
                for client, (request, since) in self._turns.items()
            }
        self._ticked = now

    # --- signs of life ----------------------------------------------------------------------------

    def seen(self, client: ClientId, now: float) -> None:
        self._seen[client] = now

    @property
    def last_seen(self) -> Mapping[ClientId, float]:
        """When each client gave its last sign of life."""
        return self._seen

    def expired(self, clients: Iterable[ClientId], now: float) -> list[ClientId]:
        """Clients whose lease has ended."""
        return [c for c in clients if now - self._seen.get(c, now) > self._lease]

    # --- answers ----------------------------------------------------------------------------------

    def assigned(self, client: ClientId, request: RequestId, now: float) -> None:
        """Its turn has come if the client has nothing else."""
        self._turns.setdefault(client, (request, now))

    def answered(self, client: ClientId, request: RequestId, now: float) -> None:
        """The client has answered a request that was its own, perhaps after it was taken away."""
        self._seen[client] = self._answered[client] = now
        self._redelivered.pop(client, None)
        del self._in_a_row[client]
        turn, since = self._turns.get(client, (None, now))
        missed = self._missed.get(client, {}).pop(request, None)
        if missed is not None:
            since = missed
            self._resting[client] = now  # it is slow, not silent
        elif turn == request:
            del self._turns[client]
        else:
            return  # out of order: it says nothing about its pace
        self._times.setdefault(client, deque(maxlen=_RECENT)).append(now - since)

    def allowed(self, client: ClientId) -> float:
        """Seconds that it has for its next answer."""
        mine = self._times.get(client)
        if mine:
            usual = max(mine)
        elif self._times:
            usual = median(max(times) for times in self._times.values())
        else:
            return self._longest
        seconds = max(self._shortest, _MULTIPLE * usual) * 2.0 ** min(30, self._in_a_row[client])
        return min(self._longest, seconds)

    def overdue(self, oldest: Mapping[ClientId, RequestId], now: float) -> list[Overdue]:
        """Requests that take too long, given the oldest open request of each client.

        A client named here has lost its turn, and gets more time for the next."""
        for client in [c for c in self._turns if c not in oldest]:
            del self._turns[client]  # it has nothing to do
        late = []
        for client, request in oldest.items():
            turn, since = self._turns.get(client, (None, now))
            if turn != request:  # the one before it has ended
                self._turns[client] = request, now
            elif now - since > self._shortest:  # the least that anybody has
                allowed = self.allowed(client)
                if now - since > allowed:
                    late.append(self._time_out(client, request, since, allowed))
        return late

    def _time_out(
        self, client: ClientId, request: RequestId, since: float, allowed: float
    ) -> Overdue:
        del self._turns[client]
        missed = self._missed.setdefault(client, {})
        missed[request] = since
        while len(missed) > _MISSED_KEPT:
            del missed[next(iter(missed))]
        others = any(c != client and when > since for c, when in self._answered.items())
        silent = others and allowed >= self._longest and self._in_a_row[client] > 0
        if others:  # else it is not this client that has a problem
            self._in_a_row[client] += 1
        return Overdue(client, request, allowed, silent)

    # --- rests ------------------------------------------------------------------------------------

    def rest(self, client: ClientId, seconds: float, now: float) -> None:
        self._resting[client] = max(self._resting.get(client, now), now + seconds)

    def rested(self, resting: Collection[ClientId], now: float) -> list[ClientId]:
        """Those that may be asked again."""
        over = [client for client in resting if self._resting.get(client, now) <= now]
        for client in over:
            self._resting.pop(client, None)
        return over

    # --- idle clients with requests ---------------------------------------------------------------

    def to_redeliver(self, client: ClientId, waiting: Collection[RequestId], now: float) -> bool:
        """Whether an idle client's queue should be delivered again; if so, that is noted.

        The wait doubles each time it did not help: if creating a queue takes long, creating it
        again and again would mean that it never exists."""
        last, times = self._redelivered.get(client, (0.0, 0))
        since = max(self._turns.get(client, (0, now))[1], last)
        wait = self._redeliver_after * 2 ** min(times, _MAX_DOUBLINGS)
        if not waiting or now - since <= wait:
            return False
        self._redelivered[client] = now, times + 1
        return True
