"""Who has been silent for too long.

Three limits, all in seconds. A client without a heartbeat for ``lease`` has left. A client that is
here but has not answered for ``request_timeout`` loses its oldest request. A client that says it is
idle although requests have been waiting for ``redeliver_after`` has something wrong with its queue,
which is then delivered again. Nothing of this is durable: after a restart every clock starts anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import final

from fedast.core.protocol import ClientId, RequestId

_MAX_DOUBLINGS = 3
_STALL = 2.0
"""A longer gap between two ticks means that the server itself was held up."""


@final
class Leases:
    def __init__(
        self, *, lease: float, request_timeout: float, redeliver_after: float, now: float
    ) -> None:
        self._lease = lease
        self._request_timeout = request_timeout
        self._redeliver_after = redeliver_after
        self._ticked = now
        self._seen: dict[ClientId, float] = {}
        """The last sign of life."""
        self._answered: dict[ClientId, float] = {}
        """The last answer, or else when the client was first given something to do."""
        self._redelivered: dict[ClientId, tuple[float, int]] = {}
        """When an idle client's queue was last delivered again, and how often since its last
        answer."""

    def restart(self, clients: Iterable[ClientId], now: float) -> None:
        """The server has come back: every client gets its full time."""
        self._ticked = now
        for client in clients:
            self._seen[client] = self._answered[client] = now

    def tick(self, now: float) -> None:
        """Call this regularly. While the server was held up it could hear nobody, so that time
        is not counted."""
        stall = now - self._ticked
        if stall > _STALL:
            for times in (self._seen, self._answered):
                for client in times:
                    times[client] = min(now, times[client] + stall)
        self._ticked = now

    def seen(self, client: ClientId, now: float) -> None:
        self._seen[client] = now

    def joined(self, client: ClientId) -> None:
        self._answered.pop(client, None)

    def assigned(self, client: ClientId, now: float) -> None:
        self._answered.setdefault(client, now)

    def answered(self, client: ClientId, now: float) -> None:
        self._seen[client] = self._answered[client] = now
        self._redelivered.pop(client, None)

    @property
    def last_seen(self) -> Mapping[ClientId, float]:
        """When each client gave its last sign of life."""
        return self._seen

    def expired(self, clients: Iterable[ClientId], now: float) -> list[ClientId]:
        """Clients whose lease has ended."""
        return [c for c in clients if now - self._seen.get(c, now) > self._lease]

    def overdue(
        self, oldest: Mapping[ClientId, RequestId], now: float
    ) -> list[tuple[ClientId, RequestId]]:
        """Requests that take too long, given the oldest open request of each client.

        A client named here gets its full time again for its next request."""
        for client in [c for c in self._answered if c not in oldest]:
            del self._answered[client]  # it has nothing to do
        late = []
        for client, request in oldest.items():
            if now - self._answered.setdefault(client, now) > self._request_timeout:
                self._answered[client] = now
                late.append((client, request))
        return late

    def to_redeliver(self, client: ClientId, waiting: Collection[RequestId], now: float) -> bool:
        """Whether an idle client's queue should be delivered again; if so, that is noted.

        The wait doubles each time it did not help: if creating a queue takes long, creating it
        again and again would mean that it never exists."""
        last, times = self._redelivered.get(client, (0.0, 0))
        since = max(self._answered.get(client, now), last)
        wait = self._redeliver_after * 2 ** min(times, _MAX_DOUBLINGS)
        if not waiting or now - since <= wait:
            return False
        self._redelivered[client] = now, times + 1
        return True
