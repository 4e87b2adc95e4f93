"""Which clients can be asked: the simulator's pools.

``active_cap`` is the paper's setting: only so many clients take part at a time.
For an asynchronous algorithm that means that at most ``cap`` distinct clients
hold requests: while that many do, a uniform pick of another client is skipped.
For a synchronous round it is ``cap`` fresh uniform clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal, Protocol, final

from pydantic import Field

from fedast.core.protocol import ClientId, Pool
from fedast.core.streams import Stream
from fedast.parts.options import Options
from fedast.parts.registry import Registry
from fedast.sim.tables import BadInputFile, read_rows, to_client, to_number


class SimulatedPool(Pool, Protocol):
    """A pool that the virtual clock drives."""

    def next_change(self) -> float | None:
        """When the set of clients that can be asked changes next, if it ever does."""
        ...

    def advance(self, now: float) -> list[ClientId]:
        """Carry out the changes due by ``now``; the clients that take their requests with them."""
        ...


@final
class AlwaysPool:
    """Every client, at any time."""

    def __init__(self, clients: int) -> None:
        self._clients = clients

    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        return stream.below(self._clients)

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        return range(self._clients)

    def everyone(self) -> Sequence[ClientId]:
        return range(self._clients)

    def next_change(self) -> float | None:
        return None

    def advance(self, now: float) -> list[ClientId]:
        return []


@final
class ActiveCapPool:
    """At most ``cap`` clients at a time."""

    def __init__(self, clients: int, cap: int) -> None:
        self._clients = clients
        self._cap = cap

    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        client = stream.below(self._clients)
        if len(holders) >= self._cap and client not in holders:
            return None
        return client

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        return stream.sample(self._clients, min(self._cap + extra, self._clients))

    def everyone(self) -> Sequence[ClientId]:
        return range(self._clients)

    def next_change(self) -> float | None:
        return None

    def advance(self, now: float) -> list[ClientId]:
        return []


@final
class BernoulliPool:
    """Each client independently with probability p, anew for every round.

    A uniform pick among clients that are available independently of who they
    are is a uniform pick, so asynchronous algorithms see no difference from
    ``always``. If none is available for a round, one at random is taken.
    """

    def __init__(self, clients: int, p: float) -> None:
        self._clients = clients
        self._p = p

    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        return stream.below(self._clients)

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        present = [i for i in range(self._clients) if stream.uniform() < self._p]
        return present or [stream.below(self._clients)]

    def everyone(self) -> Sequence[ClientId]:
        return range(self._clients)

    def next_change(self) -> float | None:
        return None

    def advance(self, now: float) -> list[ClientId]:
        return []


@final
class TracePool:
    """On/off intervals per client from a file.

    The file is a CSV with a header and the columns ``client``, ``on`` and
    ``off``, in simulated time; an empty ``off`` means forever. A client
    without a row never takes part. With ``lose`` a client that goes off takes
    its unfinished requests with it (they are lost); without, it finishes them.
    """

    def __init__(self, path: Path, clients: int, *, lose: bool = True) -> None:
        self._changes = _transitions(path, clients)
        self._next = 0
        self._lose = lose
        self._online: list[ClientId] = []
        self._place: dict[ClientId, int] = {}
        self.advance(0.0)

    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        return self._online[stream.below(len(self._online))] if self._online else None

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        return tuple(self._online)

    def everyone(self) -> Sequence[ClientId]:
        return tuple(self._online)

    def next_change(self) -> float | None:
        return self._changes[self._next][0] if self._next < len(self._changes) else None

    def advance(self, now: float) -> list[ClientId]:
        left = []
        while self._next < len(self._changes) and self._changes[self._next][0] <= now:
            _, joins, client = self._changes[self._next]
            self._next += 1
            if joins:
                self._place[client] = len(self._online)
                self._online.append(client)
            else:
                self._take_off(client)
                left.append(client)
        return left if self._lose else []

    def _take_off(self, client: ClientId) -> None:
        """Remove in O(1): the last one takes the free place."""
        place, last = self._place.pop(client), self._online.pop()
        if last != client:
            self._online[place], self._place[last] = last, place


class AvailabilityOptions(Options, ABC):
    """Options of an availability model."""

    @abstractmethod
    def build(self, clients: int) -> SimulatedPool: ...

    def complete(self, clients: int) -> AvailabilityOptions:
        """The same with defaults that depend on the number of clients written out."""
        return self

    def active_cap(self, clients: int) -> int | None:
        """How many clients may hold requests at a time, if there is a limit."""
        return None

    def clients_per_round(self, clients: int) -> float:
        """How many clients a synchronous round can expect to have, or has at most."""
        return float(self.active_cap(clients) or clients)


class ActiveCap(AvailabilityOptions):
    """At most cap clients hold requests at a time (the paper); default 30 % of the clients."""

    name: ClassVar[str] = "active_cap"
    cap: int | None = Field(None, ge=1)

    def build(self, clients: int) -> SimulatedPool:
        return ActiveCapPool(clients, self.active_cap(clients))

    def complete(self, clients: int) -> ActiveCap:
        return ActiveCap(cap=self.active_cap(clients))

    def active_cap(self, clients: int) -> int:
        return max(1, round(0.3 * clients)) if self.cap is None else self.cap


class Bernoulli(AvailabilityOptions):
    """Each client is available with probability p, anew for every synchronous round."""

    name: ClassVar[str] = "bernoulli"
    p: float = Field(0.3, gt=0, le=1)

    def build(self, clients: int) -> SimulatedPool:
        return BernoulliPool(clients, self.p)

    def clients_per_round(self, clients: int) -> float:
        return self.p * clients


class Always(AvailabilityOptions):
    """Every client is always available."""

    name: ClassVar[str] = "always"

    def build(self, clients: int) -> SimulatedPool:
        return AlwaysPool(clients)


class Trace(AvailabilityOptions):
    """On/off intervals per client from a CSV: client, on, off."""

    name: ClassVar[str] = "trace"
    files = ("file",)
    file: str
    leave: Literal["lose", "finish"] = "lose"
    """What a client that goes off does with its requests."""

    def build(self, clients: int) -> SimulatedPool:
        return TracePool(Path(self.file), clients, lose=self.leave == "lose")


AVAILABILITY: Registry[AvailabilityOptions] = Registry(
    "availability",
    AvailabilityOptions,  # type: ignore[type-abstract]
    [__name__],
)


def _transitions(path: Path, clients: int) -> list[tuple[float, bool, ClientId]]:
    intervals: dict[ClientId, list[tuple[float, float, int]]] = {}
    for line, row in read_rows(path, required=("client", "on"), optional=("off",)):
        client = to_client(path, line, row["client"])
        if client >= clients:
            raise BadInputFile(
                f"{path}, line {line}: client {client}, but the run has clients 0 to {clients - 1}"
            )
        on = to_number(path, line, "on", row["on"])
        off = to_number(path, line, "off", row["off"]) if row.get("off") else float("inf")
        if not 0.0 <= on < off:
            raise BadInputFile(f"{path}, line {line}: needs 0 <= on < off")
        intervals.setdefault(client, []).append((on, off, line))
    changes: list[tuple[float, bool, ClientId]] = []
    for client, spans in intervals.items():
        spans.sort()
        for (_, before, _), (after, _, line) in pairwise(spans):
            if after < before:
                raise BadInputFile(f"{path}, line {line}: overlaps an interval of client {client}")
        for on, off, _ in spans:
            changes.append((on, True, client))
            if off != float("inf"):
                changes.append((off, False, client))
    changes.sort()  # at equal times, off before on: intervals may touch
    return changes
