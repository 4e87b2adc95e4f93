"""The stream of uploads: read by sequence number, reassembled, and purged when acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from math import inf
from typing import final

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from fedast.core.protocol import ClientId
from fedast.federation.ignored import Allowance
from fedast.federation.nats.connection import TROUBLE, Connection
from fedast.federation.nats.names import CHUNK, UPDATES
from fedast.federation.reassembly import ChunkReassembly
from fedast.federation.transport import TransportError, Uploaded

log = logging.getLogger("fedast.nats")
_CONSUMER = "server"
_PURGE_EVERY = 1.0
_DISCARD_EVERY = 0.2
"""Seconds between two purges of the uploads of a client that floods."""


@final
class UploadStream:
    def __init__(
        self,
        connection: Connection,
        *,
        after: int,
        limit: int,
        room: int,
        new_consumer_timeout: float,
    ) -> None:
        """Uploads up to number ``after`` were acknowledged before; ``limit``: bytes of an upload;
        ``room``: bytes that the stream may have."""
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream(timeout=4)
        self._limit = limit
        self._new_consumer_timeout = new_consumer_timeout
        # The stream is read from its start: the first chunks of an upload may be before ``after``.
        self._reassembly = ChunkReassembly(CHUNK, limit, after=after, room=room)
        self._clock = asyncio.get_running_loop().time
        self._read = 0
        self._purged_at = 0.0
        self._purged_upto = 1
        """The first sequence number that has not been purged."""
        self._discarded: dict[ClientId, float] = {}
        """Until when uploads of these clients are thrown away."""
        self._to_discard: set[ClientId] = set()
        """Those of them of whom something was read since the last purge."""
        self._discarded_at = -inf
        self._odd = Allowance(burst=200.0, per_second=2.0)

    async def read(self) -> AsyncIterator[Uploaded]:
        """Every upload, in order, for ever; after any trouble from where it was."""
        while True:
            with suppress(*TROUBLE):
                await self._js.delete_consumer(UPDATES, _CONSUMER)
            try:
                await self._js.add_consumer(
                    UPDATES,
                    ConsumerConfig(
                        durable_name=_CONSUMER,
                        ack_policy=AckPolicy.NONE,
                        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                        opt_start_seq=self._read + 1,
                    ),
                    timeout=self._new_consumer_timeout,
                )
                subscription = await self._js.pull_subscribe_bind(_CONSUMER, stream=UPDATES)
                async for upload in self._read_from(subscription):
                    yield upload
            except (*TROUBLE, TransportError) as error:
                self._connection.check()
                log.warning("reading uploads: %s; trying again", error or type(error).__name__)
                await asyncio.sleep(0.5)

    async def _read_from(
        self, subscription: JetStreamContext.PullSubscription
    ) -> AsyncIterator[Uploaded]:
        delivered = 0
        while True:
            if self._clock() - self._purged_at > _PURGE_EVERY:
                await self._purge()
            if self._to_discard and self._clock() - self._discarded_at > _DISCARD_EVERY:
                await self._discard_all()
            try:
                messages = await subscription.fetch(32, timeout=2)
            except TimeoutError:
                info = await self._js.stream_info(UPDATES)
                if info.state.messages and info.state.last_seq > self._read:
                    raise TransportError("uploads in the stream were not delivered") from None
                continue
            for message in messages:
                numbers = message.metadata.sequence
                if numbers.consumer != delivered + 1:
                    raise TransportError("uploads were lost on the way; reading them again")
                delivered += 1
                if numbers.stream > self._read:
                    found = self._take(numbers.stream, message)
                    self._read = numbers.stream
                    if found is not None:
                        yield found

    def _take(self, sequence: int, message: Msg) -> Uploaded | None:
        """The whole upload, if this message was its last missing chunk."""
        data = message.data
        _, _, client_text, *rest = message.subject.split(".")
        client = int(client_text) if client_text.isdecimal() and client_text.isascii() else -1
        if self._discarded.get(client, 0.0) > self._clock():
            self._to_discard.add(client)
            self._reassembly.pass_over(sequence, len(data))
            return None
        try:
            name, part_text = rest
            number, count = (int(text) for text in part_text.split("-"))
        except ValueError:
            # No client of ours publishes to such a subject.
            self._reassembly.pass_over(sequence, len(data))
            return self._useless(sequence, client)
        refused = self._reassembly.refused
        whole = self._reassembly.take(sequence, (client, name), number, count, data, self._clock())
        if whole is None:
            return self._useless(sequence, client) if self._reassembly.refused > refused else None
        return Uploaded(sequence, client, name, whole[: self._limit], len(whole) > self._limit)

    def _useless(self, sequence: int, client: ClientId) -> Uploaded | None:
        """The server is to know of a message that is part of nothing, if there are many of them."""
        if client < 0 or self._odd.take(client, self._clock()):
            return None
        return Uploaded(sequence, client, "", b"")

    async def discard(self, client: ClientId, seconds: float) -> None:
        self._discarded[client] = self._clock() + seconds
        if seconds > 0:
            self._to_discard.add(client)
            await self._discard_all()
        else:
            self._to_discard.discard(client)

    async def _discard_all(self) -> None:
        """Purge what clients that are not listened to have uploaded: one call for each, however
        much it is, and the reader skips it."""
        while self._to_discard:
            with suppress(*TROUBLE):
                subject = f"fedast.upload.{self._to_discard.pop()}.>"
                await self._js.purge_stream(UPDATES, subject=subject)
        self._discarded_at = self._clock()

    async def acknowledge(self, sequence: int) -> None:
        self._reassembly.acknowledge(sequence)
        await self._purge()

    async def _purge(self) -> None:
        """Purge what is not needed any more. Not only after an acknowledgement: messages of no use
        take room too, and the last purge may have failed."""
        self._purged_at = self._clock()
        needed = self._reassembly.needed_from(self._purged_at)
        if needed > self._purged_upto:
            with suppress(*TROUBLE):
                await self._js.purge_stream(UPDATES, seq=needed)
                self._purged_upto = needed
