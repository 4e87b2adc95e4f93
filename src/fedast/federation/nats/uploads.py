"""The stream of uploads: read by sequence number, reassembled, and purged when acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from fedast.core.protocol import ClientId
from fedast.federation.nats.connection import TROUBLE, Connection
from fedast.federation.nats.names import CHUNK, UPDATES, UPLOAD_HEADER
from fedast.federation.reassembly import ChunkReassembly
from fedast.federation.transport import TransportError, Uploaded

log = logging.getLogger("fedast.nats")
_CONSUMER = "server"
_PURGE_EVERY = 1.0
_BATCH = 8
"""Messages to fetch at once: together well below NATS's ``max_pending``."""
_LONGEST = 200
"""Characters of an upload's name."""
_REMEMBERED = 64
"""Names of each client's latest uploads, to recognise one that comes twice."""


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
        self._latest: dict[ClientId, deque[str]] = {}
        self._clock = asyncio.get_running_loop().time
        self._read = 0
        self._purged_at = 0.0
        self._purged_upto = 1
        """The first sequence number that has not been purged."""

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
            try:
                messages = await subscription.fetch(_BATCH, timeout=2)
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
        chunk = _chunk_of(message)
        if chunk is None or chunk.name in self._latest.get(chunk.client, ()):
            # No client of ours sends such a thing, or it was uploaded before.
            self._reassembly.pass_over(sequence, len(data))
            return None
        client, name = key = chunk.client, chunk.name
        whole = self._reassembly.take(sequence, key, chunk.number, chunk.count, data, self._clock())
        if whole is None:
            return None
        self._latest.setdefault(client, deque(maxlen=_REMEMBERED)).append(name)
        return Uploaded(sequence, client, name, whole[: self._limit], len(whole) > self._limit)

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


@dataclass(frozen=True, slots=True)
class _Chunk:
    client: ClientId
    name: str
    number: int
    count: int


def _chunk_of(message: Msg) -> _Chunk | None:
    """What a message says it is; None: nothing that a client of ours would send."""
    try:
        _, _, client, rest = message.subject.split(".", 3)
        # Clients of earlier versions have the name in the subject.
        label = (message.headers or {}).get(UPLOAD_HEADER, rest)
        name, part = label.split(".")
        number, count = (int(text) for text in part.split("-"))
        return _Chunk(int(client), name, number, count) if len(label) <= _LONGEST else None
    except ValueError:
        return None
