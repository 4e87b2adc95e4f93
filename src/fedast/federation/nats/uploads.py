"""The stream of uploads: read by sequence number, reassembled, and purged when acknowledged.

The number of an upload is its sequence number in the stream plus an offset, which is written down
in the stream's metadata, together with the process of NATS that was asked then. A NATS server that
was started again may have come back with fewer messages than it had (a loss of power, a restored
copy), and a stream may have been created anew. Then the sequence numbers say nothing about what the
server's log has, so the offset is raised: everything in the stream is read, with new numbers, and
the log's state tells what of it was known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import final

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from fedast.core.protocol import ClientId
from fedast.federation.ignored import Allowance
from fedast.federation.nats.connection import TROUBLE, Connection
from fedast.federation.nats.names import CHUNK, UPDATES, UPLOAD_HEADER
from fedast.federation.nats.pull import Pull
from fedast.federation.reassembly import ChunkReassembly
from fedast.federation.transport import Uploaded

log = logging.getLogger("fedast.nats")
_CONSUMER = "server"
_PURGE_EVERY = 1.0
_OFFSET, _PROCESS = "fedast-offset", "fedast-nats"
_BATCH = 8
"""Messages to fetch at once: together well below NATS's ``max_pending``."""
_LONGEST = 200
"""Characters of an upload's name."""
_REMEMBERED = 64
"""Names of each client's latest uploads, to recognise one that comes twice."""

_GAPS_FOR = 30.0
"""Seconds after such a purge in which messages may be missing."""
_DISCARD_EVERY = 0.2
"""Seconds between two purges of the uploads of a client that floods."""


class _Disturbed(Exception):
    """Reading has to begin again from where it was."""


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
        may_purge: Callable[[int], Awaitable[None]],
        removed: Callable[[], None],
    ) -> None:
        """Uploads up to number ``after`` were acknowledged before; ``limit``: bytes of an upload;
        ``room``: bytes that the stream may have. ``may_purge`` is asked before each purge, with the
        number that was acknowledged, and raises if we may not; ``removed`` is called when somebody
        else has removed messages."""
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream(timeout=4)
        self._limit = limit
        self._new_consumer_timeout = new_consumer_timeout
        # The stream is read from its start: the first chunks of an upload may be before ``after``.
        self._reassembly = ChunkReassembly(CHUNK, limit, after=after, room=room)
        self._latest: dict[ClientId, deque[str]] = {}
        self._clock = asyncio.get_running_loop().time
        self._may_purge = may_purge
        self._removed = removed
        self._offset = 0
        self._process: str | None = None
        """Of NATS, when we last looked which numbers the messages have."""
        self._read: int | None = None
        """The last sequence number in the stream that was read."""
        self._highest = after
        """The last number of an upload."""
        self._acknowledged = after
        self._settled_at = 0
        """What had been read before the last loss must be acknowledged before anything is purged:
        it may still be in the stream, under another number."""
        self._purged_at = 0.0
        self._purged_upto = 0
        """The first number that has not been purged."""
        self._discarded: dict[ClientId, float] = {}
        """Until when uploads of these clients are discarded."""
        self._to_discard: set[ClientId] = set()
        """Those of them of whom something was read since the last purge."""
        self._discarded_at = -inf
        self._odd = Allowance(burst=200.0, per_second=2.0)

    async def locate(self) -> bool:
        """Find out which numbers the messages have; whether the stream is as we left it. To be
        called before ``read``, which then begins at the start of the stream."""
        process = self._connection.process
        info = await self._js.stream_info(UPDATES)
        written = info.config.metadata or {}
        self._offset = int(written.get(_OFFSET, "0"))
        as_we_left_it = (
            written.get(_PROCESS) == process and self._offset + info.state.last_seq >= self._highest
        )
        if not as_we_left_it:
            self._offset = self._settled_at = self._highest
            marks = {_OFFSET: str(self._offset), _PROCESS: process}
            await self._js.update_stream(replace(info.config, metadata=marks))
            self._reassembly.renumber(self._offset)
        self._process = process
        self._read = None
        self._purged_upto = 0
        return as_we_left_it

    async def settled(self) -> bool:
        """Whether everything in the stream was read and acknowledged."""
        state = (await self._js.stream_info(UPDATES)).state
        read = state.messages == 0 or state.last_seq <= (self._read or 0)
        return read and self._acknowledged >= self._highest

    async def read(self) -> AsyncIterator[Uploaded]:
        """Every upload, in order, forever; after any error, from where it was."""
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
                        opt_start_seq=(self._read or 0) + 1,
                        mem_storage=True,
                    ),
                    timeout=self._new_consumer_timeout,
                )
                pull = Pull(self._connection, UPDATES, _CONSUMER)
                async for upload in self._read_from(pull):
                    yield upload
            except (*TROUBLE, _Disturbed) as error:
                self._connection.check()
                log.warning("reading uploads: %s; trying again", error or type(error).__name__)
                await asyncio.sleep(0.5)

    async def _read_from(self, pull: Pull) -> AsyncIterator[Uploaded]:
        delivered = 0
        while True:
            if self._clock() - self._purged_at > _PURGE_EVERY:
                await self._purge()
            if self._to_discard and self._clock() - self._discarded_at > _DISCARD_EVERY:
                await self._discard_all()
            try:
                messages = await pull.fetch(_BATCH, timeout=2)
            except TimeoutError:
                state = (await self._js.stream_info(UPDATES)).state
                if self._read is not None and state.first_seq > self._read + 1:
                    self._gap()
                    self._read = state.first_seq - 1
                if state.messages and state.last_seq > (self._read or 0):
                    raise _Disturbed("uploads in the stream were not delivered") from None
                continue
            for message in messages:
                numbers = message.metadata.sequence
                if numbers.consumer != delivered + 1:
                    raise _Disturbed("uploads were lost on the way; reading them again")
                delivered += 1
                if self._read is None or numbers.stream > self._read:
                    found = self._take(self._offset + numbers.stream, message)
                    if self._read is not None and numbers.stream > self._read + 1:
                        self._gap()
                    self._read = numbers.stream
                    if found is not None:
                        self._highest = max(self._highest, found.sequence)
                        yield found

    def _take(self, sequence: int, message: Msg) -> Uploaded | None:
        """The whole upload, if this message was its last missing chunk."""
        data = message.data
        sender = message.subject.split(".")[2]
        client = int(sender) if sender.isascii() and sender.isdecimal() else -1
        if self._discarded.get(client, 0.0) > self._clock():
            self._to_discard.add(client)
            self._reassembly.pass_over(sequence, len(data))
            return None
        chunk = _chunk_of(message)
        if chunk is None or chunk.name in self._latest.get(chunk.client, ()):
            # No client of ours sends such a thing, or it was uploaded before.
            self._reassembly.pass_over(sequence, len(data))
            return self._useless(sequence, client)
        name, key = chunk.name, (chunk.client, chunk.name)
        refused = self._reassembly.refused
        whole = self._reassembly.take(sequence, key, chunk.number, chunk.count, data, self._clock())
        if whole is None:
            return self._useless(sequence, client) if self._reassembly.refused > refused else None
        self._latest.setdefault(client, deque(maxlen=_REMEMBERED)).append(name)
        return Uploaded(sequence, client, name, whole[: self._limit], len(whole) > self._limit)

    def _gap(self) -> None:
        """Messages are missing in the stream. We purge those of a client that is not listened to;
        otherwise somebody else has removed them."""
        if self._clock() - self._discarded_at > _GAPS_FOR:
            self._removed()

    def _useless(self, sequence: int, client: ClientId) -> Uploaded | None:
        """Tell the server about messages that belong to no upload, if there are many of them."""
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
        self._discarded_at = self._clock()
        while self._to_discard:
            with suppress(*TROUBLE):
                subject = f"fedast.upload.{self._to_discard.pop()}.>"
                await self._js.purge_stream(UPDATES, subject=subject)
        self._discarded_at = self._clock()

    async def acknowledge(self, sequence: int) -> None:
        self._acknowledged = max(self._acknowledged, sequence)
        self._reassembly.acknowledge(sequence)
        await self._purge()

    async def _purge(self) -> None:
        """Purge what is not needed any more. Not only after an acknowledgement: messages of no use
        take room too, and the last purge may have failed."""
        self._purged_at = self._clock()
        needed = self._reassembly.needed_from(self._purged_at)
        first = needed - self._offset
        # Never in a stream whose numbers we do not know: what is newer than ours would go too.
        # (And a sequence number of 0 would mean everything.)
        known = self._process == self._connection.process
        settled = self._acknowledged >= self._settled_at
        if known and settled and first > 1 and needed > self._purged_upto:
            with suppress(*TROUBLE):
                await self._may_purge(self._acknowledged)
                await self._js.purge_stream(UPDATES, seq=first)
                self._purged_upto = needed

    def forget(self) -> None:
        """The stream may be another one now: nothing is purged until ``locate``."""
        self._process = None
        self._latest.clear()  # what is read again is not a repetition


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
