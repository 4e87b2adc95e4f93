"""Whether the streams are still there, still the same, and still store what they are given.

nats-server does not recover from a full disk by itself: a stream that could not write once refuses
everything until nats-server is started again (as of 2.15), but it can be read, and one that is
created anew writes. So a stream that does not store is deleted as soon as there is room and nothing
in it is needed any more; being missing, it is then created again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import final

from nats.js import JetStreamContext
from nats.js.api import StorageType
from nats.js.errors import NotFoundError

from fedast.federation.nats.connection import TROUBLE, Connection
from fedast.federation.nats.names import MODELS, REQUESTS, SERVER_SUBJECT, SERVING, UPDATES

log = logging.getLogger("fedast.nats")
_TRY_EVERY = 10.0
"""Seconds between two checks whether the streams store what they are given."""
_STUCK_AFTER = 12.0
"""Seconds after which a stream that has stored nothing meanwhile will not store anything more."""
_PROBES = {
    UPDATES: "fedast.upload.probe",
    REQUESTS: "fedast.request.probe",
    MODELS: "fedast.model.probe",
    SERVING: f"{SERVER_SUBJECT}.probe",
}
_ROOM, _ROOM_SUBJECT = "FEDAST_ROOM", "fedast.room"
_PATIENCE = 4.0
"""Seconds that storing something may take, where NATS is not known to be slow."""
_ENOUGH = 256 * 1024
"""Bytes that must fit on the disk before a stream is created anew."""


@final
class Watch:
    def __init__(self, js: JetStreamContext, connection: Connection) -> None:
        self._js = js
        self._connection = connection
        self._process = ""
        self._created: dict[str, datetime | None] = {}
        """When each stream was created."""
        self._tried = 0.0
        self._failed: dict[str, tuple[float, int]] = {}
        """Streams that did not confirm the last probe: since when, and their last message then."""

    async def remember(self) -> None:
        """The streams are as they should be now."""
        self._process = self._connection.process
        self._created = {name: await self._created_at(name) for name in _PROBES}
        self._tried = asyncio.get_running_loop().time()

    def stores(self, stream: str) -> bool:
        """Whether it confirmed the last probe."""
        return stream not in self._failed

    async def look(self, settled: Callable[[], Awaitable[bool]]) -> str | None:
        """What has happened to the streams; None if they are as they were. ``settled``: whether
        nothing in UPDATES is needed."""
        if self._connection.process != self._process:
            return "NATS was started again"
        now = asyncio.get_running_loop().time()
        if now - self._tried > _TRY_EVERY:
            self._tried = now
            await self.repair(settled)
        for name, created in self._created.items():
            found = await self._created_at(name)
            if found is None:
                return f"the stream {name} is gone"
            if found != created:
                return f"the stream {name} was created anew by somebody else"
        return None

    async def _created_at(self, stream: str) -> datetime | None:
        try:
            return (await self._js.stream_info(stream)).created
        except NotFoundError:
            return None

    async def repair(self, settled: Callable[[], Awaitable[bool]]) -> None:
        """Delete streams that have long not stored what they were given, if there is room."""
        stores = await asyncio.gather(*(self._stores(*probe) for probe in _PROBES.items()))
        stuck = set()
        for name, fine in zip(_PROBES, stores, strict=True):
            if fine:
                self._failed.pop(name, None)
                continue
            # It may only be slow. Then it stores the probe some time, and must not be deleted.
            now = asyncio.get_running_loop().time()
            last = (await self._js.stream_info(name)).state.last_seq
            since, last_then = self._failed.get(name, (now, last))
            self._failed[name] = (since, last) if last == last_then else (now, last)
            if last == last_then and now - since > _STUCK_AFTER:
                stuck.add(name)
        if self._failed and not stuck:
            self._tried -= _TRY_EVERY  # look again at once
        if not stuck:
            return
        seconds = await self._seconds_to_store()
        if seconds is None:
            log.error("NATS stores nothing any more: is its disk full? (%s)", ", ".join(stuck))
            return
        for name in stuck:
            # A NATS that is overloaded stores what it is given, if late, and elsewhere as late.
            if await self._stores(name, _PROBES[name], max(_PATIENCE, 10 * seconds)):
                self._failed.pop(name, None)
            elif name != UPDATES or await settled():
                log.warning("the stream %s stores nothing, though there is room: replaced", name)
                await self._js.delete_stream(name)

    async def _stores(self, stream: str, probe: str, patience: float = _PATIENCE) -> bool:
        try:
            await self._js.publish(probe, b"", timeout=patience)
        except TimeoutError:
            return not self._connection.is_connected
        except TROUBLE:
            return True  # it is not there, or it refuses for a reason of its own
        if stream != UPDATES:  # there it is passed over, and goes when it was read
            with suppress(*TROUBLE):
                await self._js.purge_stream(stream, subject=probe)
        return True

    async def _seconds_to_store(self) -> float | None:
        """How long it takes to create a stream and to store something in it; None if there is no
        room."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await self._js.add_stream(
                name=_ROOM, subjects=[_ROOM_SUBJECT], storage=StorageType.FILE, max_bytes=2**20
            )
            await self._js.publish(_ROOM_SUBJECT, bytes(_ENOUGH), timeout=_PATIENCE)
            return clock() - began
        except TROUBLE:
            return None
        finally:
            with suppress(*TROUBLE):
                await self._js.delete_stream(_ROOM)
