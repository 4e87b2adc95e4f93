"""The seam between a federation and whatever carries its messages.

What a transport promises. Every client has one queue of requests, first come first served.
Requests are delivered one at a time, and each stays in the queue until the client says that it is
done, so a client that dies gets it again. Sending a request that is already queued changes nothing.
Uploads are kept, in one order, until they are acknowledged; uploading twice under one name counts
once, and a restarted server reads again from wherever it says. A model is available from when it is
published until it is retired. Heartbeats (``hello``) may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fedast.core.protocol import ClientId


class TransportError(Exception):
    """The transport cannot do what it was asked to; the text says why, for people."""


class Refused(TransportError):
    """The other side does not let us in."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """An upload; ``sequence`` numbers all uploads in the order of their arrival."""

    sequence: int
    client: ClientId
    name: str
    """Under which the client uploaded it."""
    data: bytes
    oversized: bool = False
    """It was longer than allowed: ``data`` is not all of it."""
    failed: str | None = None
    """There is no upload and will be none, and why, by what the transport knows."""
    blame: bool = False
    """... and that is the client's own doing."""


@dataclass(frozen=True, slots=True)
class Greeted:
    client: ClientId
    data: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """A client is not there any more, by what the transport knows."""

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
        """``model``: the published one that the request is about."""
        ...

    async def withdraw(self, client: ClientId, name: str) -> None:
        """Take a request out of its queue, if nobody has taken it yet."""
        ...

    async def hand_out_again(self, client: ClientId) -> None:
        """Whatever counts as being in this client's hands is in its queue again: it has nothing."""
        ...

    async def receive(self, timeout: float) -> Incoming | None: ...

    async def acknowledge(self, sequence: int) -> None:
        """Everything up to this sequence number is done with and may be deleted."""
        ...

    async def answer(self, command: ControlCommand, data: bytes) -> None: ...

    async def close(self) -> None: ...


class Delivery(Protocol):
    """A request in a client's hands."""

    @property
    def data(self) -> bytes: ...

    async def working(self) -> None:
        """It is being worked on: do not hand it out again yet."""
        ...

    async def done(self) -> None: ...

    async def give_back(self) -> None:
        """It shall be handed out again."""
        ...


class ClientTransport(Protocol):
    @property
    def patience(self) -> float:
        """Seconds after which a request is handed out again unless ``working`` was said."""
        ...

    async def next(self, timeout: float) -> Delivery | None: ...

    async def fetch(self, name: str) -> bytes | None:
        """A published model; None if it is there no more."""
        ...

    async def upload(self, name: str, data: bytes) -> None:
        """Return only when it is kept."""
        ...

    async def hello(self, data: bytes) -> None: ...

    async def close(self) -> None: ...
