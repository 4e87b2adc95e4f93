"""Telling a client why it is not admitted, so that its owner sees the reason there.

A client is admitted if it uses the same wire format (``wire.PROTOCOL``), whatever its version of
the software. A notice waits in the client's queue, as a request would, until the client reads it or
is admitted after all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from fedast.core.protocol import ClientId
from fedast.federation import wire
from fedast.federation.transport import ServerTransport, Telling
from fedast.version import __version__

log = logging.getLogger("fedast.server")
_EVERY = 60.0
"""Seconds between two notices, and two lines of the log, for one client."""
_MOST = 10_000
"""Clients that are remembered."""


@final
class Notices:
    def __init__(self, transport: ServerTransport, now: Callable[[], float]) -> None:
        self._transport = transport
        self._now = now
        self._told: dict[ClientId, float] = {}

    async def refuse(self, client: ClientId, why: str) -> None:
        """Log why a client is not admitted, and tell it; nothing if that was done recently."""
        now = self._now()
        if now - self._told.get(client, -_EVERY) < _EVERY:
            return
        if len(self._told) >= _MOST:
            self._told.pop(next(iter(self._told)))
        self._told.pop(client, None)  # to the end
        self._told[client] = now
        log.warning("client %d is not admitted: %s", client, why)
        if isinstance(self._transport, Telling):
            notice = wire.Notice(why[:500], f"fedast {__version__}", wire.PROTOCOL)
            await self._transport.tell(client, wire.encode(notice))

    async def admitted(self, client: ClientId) -> None:
        """What it was told is no longer true."""
        if self._told.pop(client, None) is not None and isinstance(self._transport, Telling):
            await self._transport.tell(client, None)


def other_format(data: bytes) -> str | None:
    """What is wrong with a heartbeat of another wire format, and what to do; None if it is of
    ours."""
    found = wire.protocol_of(data)
    if found is None or found == wire.PROTOCOL:
        return None
    older = found < wire.PROTOCOL
    install = f"install fedast {__version__} on the client"
    return (
        f"its wire format is {found}, the server's is {wire.PROTOCOL} (fedast {__version__}); "
        + (install if older else f"{install}, or its newer version on the server")
    )
