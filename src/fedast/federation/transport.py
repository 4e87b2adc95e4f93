"""The interface between a federation and whatever carries its messages.

What a transport promises. Every client has one queue of requests, first come first served.
Requests are delivered one at a time, and each stays in the queue until the client says that it is
done, so a client that dies gets it again. Sending a request that is already queued changes nothing.
Uploads are kept, in one order, until they are acknowledged; uploading twice under one name counts
once, and a restarted server reads again from wherever it says. A model is available from when it is
published until it is retired. Heartbeats (``hello``) may be lost.

What a transport promises when it loses something. If what it stores may be gone (its disk is empty
or older, somebody deleted a queue), it says so (``StorageLost``), and the server publishes and
sends again what is needed. The numbers of uploads only grow: whatever is read after a loss has a
higher one than before. What was not lost may be read a second time, under a new number.

Epochs. A server whose log went back (to a restored backup, for example) needs uploads again that an
earlier one has acknowledged, but under their old names they would count as duplicates. So the names
of requests, and with them those of uploads, end with the transport's *epoch*, which then changes.
Of two servers only the one that started last may continue; the other is ``Fenced``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from fedast.core.protocol import ClientId

CONTROL_KEY, OBSERVER_KEY = "control", "observer"
"""The key that may command, and the one that may only ask for the status."""


class TransportError(Exception):
    """The transport cannot do what it was asked to; the text says why."""


class Refused(TransportError):
    """The other side refuses the connection."""


class Fenced(TransportError):
    """Another server serves this federation."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """An upload; ``sequence`` numbers all uploads in the order of their arrival."""

    sequence: int
    client: ClientId
    name: str
    """Under which the client uploaded it."""
    data: bytes
    oversized: bool = False
    """It was longer than allowed, and ``data`` is truncated."""
    failed: str | None = None
    """Why there will be no upload, if the transport knows that there will be none."""
    blame: bool = False
    """... and that is the client's fault."""


@dataclass(frozen=True, slots=True)
class Greeted:
    client: ClientId
    data: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """The transport knows that a client has left."""

    client: ClientId


@dataclass(frozen=True, slots=True)
class StorageLost:
    """Models, queued requests and unread uploads may be gone."""

    why: str
    epoch: str | None = None
    """The new epoch, if there is one."""


@dataclass(slots=True)
class ControlCommand:
    """A control command; whoever sent it waits for ``answer``."""

    data: bytes
    reply: str
    key: str = CONTROL_KEY
    """The name of the key that it was given with, as the transport knows it."""


Incoming: TypeAlias = Uploaded | Greeted | Gone | ControlCommand | StorageLost


class ServerTransport(Protocol):
    async def start(self, after: int, limit: int) -> str | None:
        """Begin with the upload after number ``after``; each has at most ``limit`` bytes. The
        epoch: letters and digits, begins with an x; None or nothing if there never is another."""
        ...

    async def publish(self, name: str, data: bytes) -> None: ...

    async def retire(self, name: str) -> None: ...

    async def send(self, client: ClientId, name: str, data: bytes, model: str) -> None:
        """``model``: the name of the published model that the request is about."""
        ...

    async def withdraw(self, client: ClientId, name: str) -> None:
        """Remove a request from its queue, unless it was delivered already."""
        ...

    async def redeliver(self, client: ClientId) -> None:
        """Deliver again what was delivered to this client: it says that it has nothing."""
        ...

    async def receive(self, timeout: float) -> Incoming | None: ...

    async def acknowledge(self, sequence: int) -> None:
        """Everything up to this sequence number is done with and may be deleted."""
        ...

    async def answer(self, command: ControlCommand, data: bytes) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class Monitored(Protocol):
    """A server's transport that knows whether it has a connection; others are assumed to have
    one."""

    @property
    def connected(self) -> bool: ...


@runtime_checkable
class Telling(Protocol):
    """A server's transport that can put a message which is not a request into a client's queue."""

    async def tell(self, client: ClientId, data: bytes | None) -> None:
        """It replaces an earlier one; None takes it back. It may be lost."""
        ...


@runtime_checkable
class Discards(Protocol):
    """A server's transport that can discard uploads unread."""

    async def discard(self, client: ClientId, seconds: float) -> None:
        """For so long, what this client has uploaded and uploads need not arrive; 0: it is to
        arrive again."""
        ...


class Delivery(Protocol):
    """A request that was delivered to a client."""

    @property
    def data(self) -> bytes: ...

    async def working(self) -> None:
        """It is being worked on: do not deliver it again yet."""
        ...

    async def done(self) -> None: ...

    async def give_back(self) -> None:
        """It should be delivered again."""
        ...


class ClientTransport(Protocol):
    @property
    def patience(self) -> float:
        """Seconds after which a request is delivered again, unless ``working`` was called."""
        ...

    async def next(self, timeout: float) -> Delivery | None: ...

    async def fetch(self, name: str) -> bytes | None:
        """A published model; None if it was retired."""
        ...

    async def upload(self, name: str, data: bytes) -> None:
        """Return only when the upload is stored safely."""
        ...

    async def hello(self, data: bytes) -> None: ...

    async def close(self) -> None: ...
