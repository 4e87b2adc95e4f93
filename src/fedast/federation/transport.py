"""The interface between a federation and whatever carries its messages.

What a transport promises. Every client has one queue of requests, first come first served.
Requests are delivered one at a time, and each stays in the queue until the client says that it is
done, so a client that dies gets it again. Sending a request that is already queued changes nothing.
Uploads are kept, in one order, until they are acknowledged; uploading twice under one name counts
once, and a restarted server reads again from wherever it says. A model is available from when it is
published until it is retired. Heartbeats (``hello``) may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from fedast.core.protocol import ClientId


class TransportError(Exception):
    """The transport cannot do what it was asked to; the text says why."""


class Refused(TransportError):
    """The other side refuses the connection."""


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


@dataclass(slots=True)
class ControlCommand:
    """A control command; whoever sent it waits for ``answer``."""

    data: bytes
    reply: str


Incoming: TypeAlias = Uploaded | Greeted | Gone | ControlCommand


class ServerTransport(Protocol):
    async def start(self, after: int, limit: int) -> None:
        """Begin with the upload after number ``after``; each has at most ``limit`` bytes."""
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
        """Deliver again what counts as delivered to this client: it says that it has nothing."""
        ...

    async def receive(self, timeout: float) -> Incoming | None: ...

    async def acknowledge(self, sequence: int) -> None:
        """Everything up to this sequence number is done with and may be deleted."""
        ...

    async def answer(self, command: ControlCommand, data: bytes) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class Discards(Protocol):
    """A server's transport may also be able to throw uploads away unread."""

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
