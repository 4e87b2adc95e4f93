"""The ledger of requests: every transition of a request's life is made here.

Theory of operation. A request is *opened* when it is sent and is then in
flight. It leaves the flight exactly once: by ``complete`` (its update arrived),
or by ``drop`` (lost, cancelled, a straggler). Ids are consecutive integers, so
the ledger needs to remember only what is open: an id below the next one that is
not open has ended. The ids that ended by a drop are kept, to tell an update
that comes *late* from one that comes *twice*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

from fedast.core.protocol import (
    ClientId,
    IgnoreReason,
    IllegalEvent,
    RequestId,
    TaskName,
    Version,
)


@dataclass(frozen=True, slots=True)
class Request:
    id: RequestId
    task: TaskName
    client: ClientId
    version: Version


@final
class Ledger:
    def __init__(self) -> None:
        self._next: RequestId = 0
        self._open: dict[RequestId, Request] = {}
        self._dropped: set[RequestId] = set()
        self._in_flight: dict[TaskName, int] = {}
        self._holding: dict[ClientId, int] = {}

    def open(self, task: TaskName, client: ClientId, version: Version) -> Request:
        request = Request(self._next, task, client, version)
        self._next += 1
        self._open[request.id] = request
        self._in_flight[task] = self._in_flight.get(task, 0) + 1
        self._holding[client] = self._holding.get(client, 0) + 1
        return request

    def check(self, request: RequestId) -> None:
        """Refuse an id that was never given out."""
        if not 0 <= request < self._next:
            raise IllegalEvent(f"request {request} was never sent")

    def complete(self, request: RequestId) -> Request | IgnoreReason:
        """An update arrived: take the request out of the flight, or say why it does not count."""
        self.check(request)
        found = self._open.get(request)
        if found is None:
            if request in self._dropped:
                self._dropped.remove(request)
                return IgnoreReason.LATE
            return IgnoreReason.DUPLICATE
        self._take_out(found)
        return found

    def drop(self, request: RequestId) -> Request | None:
        """Give a request up; None if it is not in flight any more."""
        self.check(request)
        found = self._open.get(request)
        if found is not None:
            self._take_out(found)
            self._dropped.add(request)
        return found

    def drop_all(self, task: TaskName) -> list[Request]:
        """Give up everything a task has in flight, in the order in which it was sent."""
        found = [request for request in self._open.values() if request.task == task]
        for request in found:
            self._take_out(request)
            self._dropped.add(request.id)
        return found

    def in_flight(self, task: TaskName) -> int:
        return self._in_flight.get(task, 0)

    @property
    def total_in_flight(self) -> int:
        return len(self._open)

    @property
    def holders(self) -> Mapping[ClientId, int]:
        """The clients that hold at least one request, and how many each holds."""
        return MappingProxyType(self._holding)

    def _take_out(self, request: Request) -> None:
        del self._open[request.id]
        self._in_flight[request.task] -= 1
        left = self._holding[request.client] - 1
        if left:
            self._holding[request.client] = left
        else:
            del self._holding[request.client]
