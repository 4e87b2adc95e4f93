"""Keeps the federation's streams, and the server's claim to them, alive while the server runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from math import inf
from typing import final

from nats.js import JetStreamContext

from fedast.federation.backoff import retry
from fedast.federation.nats.background import end
from fedast.federation.nats.connection import TROUBLE, Connection
from fedast.federation.nats.fence import Fence
from fedast.federation.nats.names import REQUESTS, UPDATES
from fedast.federation.nats.uploads import UploadStream
from fedast.federation.nats.watch import Watch
from fedast.federation.transport import Fenced, StorageLost, TransportError

log = logging.getLogger("fedast.nats")
_EVERY = 1.0
_SILENT, _SAY_EVERY = 60.0, 300.0
"""Seconds without an answer of JetStream after which we say so, and until we say so again."""
_LOCKED_UP = (
    "JetStream has not answered for %.0f s, though NATS is connected. If its disk was full, "
    "nats-server may have locked up (as 2.15.1 sometimes does): start it again"
)


@final
class Upkeep:
    def __init__(
        self,
        connection: Connection,
        *,
        where: str,
        prepare: Callable[[], Awaitable[int]],
        no_reading: Callable[[], AbstractAsyncContextManager[None]],
        tell: Callable[[StorageLost], None],
    ) -> None:
        """``where``: this server's machine and folder. ``prepare`` creates streams and queues that
        are missing; in the context of ``no_reading`` no uploads are read; ``tell`` is given what
        the server has to know."""
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream(timeout=4)
        self._prepare = prepare
        self._no_reading = no_reading
        self._tell = tell
        self._watch = Watch(self._js, connection)
        self._new_epoch: asyncio.Task[None] | None = None
        self._answered, self._said = time.monotonic(), -inf
        """When JetStream last answered, and when we last said that it does not."""
        self.fence = Fence(self._js, where)

    async def claim(self, after: int) -> bool:
        """Become the server; whether with a new epoch (``Fence.take``)."""
        try:
            back = await self.fence.take(after)
        except TimeoutError:  # perhaps the disk was full, and NATS has not recovered from it
            await self._watch.repair(_never)
            await self._prepare()
            raise
        if back:
            log.warning("the log ends before uploads that were acknowledged: a new epoch begins")
            await self._purge_requests()  # open ones are sent again
        return back

    async def begin(self, uploads: UploadStream, after: int, back: bool) -> None:
        """Find out whether the streams are as the last server left them."""
        as_we_left_it = await uploads.locate() and not back
        await self._watch.remember()
        if not as_we_left_it and (after or self.fence.term > 1):
            self._tell(StorageLost("NATS was started again, or the log went back"))

    async def run(self, uploads: UploadStream) -> None:
        """Run forever; ``Fenced`` if another server has taken over."""
        while True:
            await asyncio.sleep(_EVERY)
            try:
                if not self._connection.is_connected:
                    self._answered = time.monotonic()
                    continue
                why = await self._watch.look(uploads.settled)
                if why is not None:
                    await self._restore(uploads, why)
                await self.fence.renew()
                self._answered = time.monotonic()
            except Fenced:
                raise
            except (*TROUBLE, TransportError) as error:
                self._connection.check()
                log.warning("looking after the streams: %s", error or type(error).__name__)
                silent = time.monotonic() - self._answered
                if silent > _SILENT and time.monotonic() - self._said > _SAY_EVERY:
                    self._said = time.monotonic()
                    log.error(_LOCKED_UP, silent)

    async def may_purge(self, acknowledged: int) -> None:
        """Raises if another server has taken over, or if UPDATES does not store at the moment:
        nats-server 2.15.1 can lock up for good when a stream is purged that could not write."""
        if not self._watch.stores(UPDATES):
            raise TimeoutError
        await self.fence.renew(acknowledged)

    async def _restore(self, uploads: UploadStream, why: str) -> None:
        """Create the streams and queues that are missing, and read all uploads again."""
        log.warning("%s: creating what is missing", why)
        uploads.forget()
        async with self._no_reading():
            await self._prepare()
            await uploads.locate()
            await self._watch.remember()
        self._tell(StorageLost(why))

    def uploads_removed(self) -> None:
        """Somebody else has removed uploads: they must be trained again, under other names."""
        if self._new_epoch is None or self._new_epoch.done():
            self._new_epoch = asyncio.create_task(self._begin_epoch())

    async def _begin_epoch(self) -> None:
        def failed(error: Exception) -> None:
            self._connection.check()

        epoch = await retry(self.fence.begin_epoch, failed, on=TROUBLE)
        await self._purge_requests()
        self._tell(StorageLost("uploads were removed from NATS by somebody else", epoch))

    async def _purge_requests(self) -> None:
        with suppress(*TROUBLE):
            await self._js.purge_stream(REQUESTS)

    async def end(self) -> None:
        """Let another server begin at once."""
        await end(self._new_epoch)
        if self.fence.term:
            with suppress(*TROUBLE, Fenced):
                await asyncio.wait_for(self.fence.release(), 3)


async def _never() -> bool:
    return False
