"""The bed in which a transport is tried out: it opens the two ends of one federation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from fedast.federation.transport import ClientTransport, ServerTransport

LIMIT = 40 * 2**20


class TransportBed(Protocol):
    """Opens the ends of one federation: clients 0 to 2, and a server that may be started again
    (then the one before is fenced off)."""

    async def server(self, after: int = 0, limit: int = LIMIT) -> ServerTransport:
        """A server, started with these arguments."""
        ...

    async def started(self, after: int) -> tuple[ServerTransport, str]:
        """... and the epoch that ``start`` returned."""
        ...

    async def client(self, number: int) -> ClientTransport: ...

    async def command(self, data: bytes) -> bytes:
        """Send the server a control command, and wait for its answer."""
        ...

    async def lose(self) -> None:
        """Delete everything that the transport stores, while it runs."""
        ...


OpenBed = Callable[[Path], AbstractAsyncContextManager[TransportBed]]
"""From an empty folder to a bed that is open while the context lasts."""
