"""The server's side of the transport over NATS JetStream.

Three streams. REQUESTS is a work queue with a subject per request and a durable consumer per
client, which delivers one message at a time; a subject holds one message, so NATS itself refuses a
request that is already queued. UPDATES keeps uploads in order until the server has acknowledged
them (``uploads``); the message id makes an upload idempotent, and the server reads by sequence
number, so that it can start again from any upload. MODELS holds published models, read directly by
subject. Of heartbeats NATS keeps the latest of each client (``heartbeats``). Control commands are
plain messages. A further stream says who serves (``fence``).

NATS may lose all of this while we run: a stream is deleted, or NATS comes back with an older or an
empty disk. So the streams are checked about every second (``upkeep``), and what is missing is
created again; the server is then told to publish and send again what it needs (``StorageLost``).

Who may do what is decided by the configuration of nats-server (``setup``): a client may read its
own queue and the models, and write its own uploads, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, final

from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from fedast.core.protocol import ClientId
from fedast.federation.backoff import retry
from fedast.federation.nats.accounts import MESSAGE
from fedast.federation.nats.background import end
from fedast.federation.nats.commands import Commands
from fedast.federation.nats.connection import TROUBLE, Connection, close
from fedast.federation.nats.heartbeats import Heartbeats
from fedast.federation.nats.names import (
    CHUNK,
    CHUNKS_HEADER,
    MODELS,
    REQUESTS,
    SERVER_SUBJECT,
    SERVING,
    UPDATES,
    consumer,
    model_subject,
    request_subject,
)
from fedast.federation.nats.upkeep import Upkeep
from fedast.federation.nats.uploads import UploadStream
from fedast.federation.reassembly import chunk_count
from fedast.federation.transport import (
    ControlCommand,
    Greeted,
    Incoming,
    StorageLost,
    TransportError,
    Uploaded,
)

log = logging.getLogger("fedast.nats")

_PER_SUBJECT = 10077  # JetStream's code for "maximum messages per subject exceeded"
_TOO_FEW_NODES = {10005, 10008, 10009, 10023}  # no peers, no leader, no resources
_NO_ROOM = 10047  # ... for "insufficient storage resources available"
_LEAST_ROOM = 64 * 2**20
"""Bytes for unacknowledged uploads. A client has one at a time; while the server is away they may
pile up to two for each client, then clients wait. So nobody can fill the disk."""
_SMALL_DISK = (
    "NATS's disk is full, or too small: every stream reserves 64 MB or more. Make room there and "
    "start nats-server again (it takes three quarters of what is free when it starts)"
)
_LEAST_WAITING = 64
"""Messages of one client that may wait to be read and committed. NATS refuses more, so that a
flooding client is limited to the pace of our commits; there is room for as many beside what the
others need."""
_NO_DUPLICATES = 0.1
"""Seconds for which NATS remembers message ids; ours have none. It is the least that NATS allows:
a client can choose ids of 60 kB, and NATS would keep them in memory for that long."""
_MOST_REQUESTS, _REQUEST_ROOM, _LONGEST_REQUEST = 100_000, 64 * 2**20, 64 * 2**10
_MOST_CHUNKS = 1_000_000
_ELECTION, _SOON = 10.0, 2.0
"""Seconds that creating a consumer may take (after the loss of a node of a cluster, the others may
first have to elect its leader), and for how long everything else waits for it."""
_AT_ONCE = 16
"""Consumers to create at a time."""
T = TypeVar("T")
_NOTICE = "notice"


def _without_room(error: APIError) -> bool:
    return error.err_code == _NO_ROOM or "storage" in (error.description or "")


@final
class NatsServer:
    def __init__(
        self,
        connection: Connection,
        clients: Sequence[ClientId],
        patience: float,
        replicas: int = 1,
        where: str = "",
    ) -> None:
        """``patience``: seconds until a request that nobody works on is delivered again.
        ``replicas``: nodes of a cluster that store each stream. ``where``: this server's machine
        and folder; one at the same place takes over from us without waiting."""
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream(timeout=4)
        self._clients = clients
        self._patience = patience
        self._replicas = replicas
        self._incoming: asyncio.Queue[Uploaded | None] = asyncio.Queue(maxsize=64)
        """Uploads; None wakes ``receive`` for something else."""
        self._greetings: dict[ClientId, bytes] = {}
        """The latest of each client: nobody can crowd out another's."""
        self._commands = Commands(self._wake)
        self._ready: set[ClientId] = set()
        """Clients that have a queue."""
        self._creating: dict[ClientId, asyncio.Task[None]] = {}
        """Queues that are being created: one that takes long is not begun again meanwhile."""
        self._reading: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._uploads: UploadStream | None = None
        self._limit = 0
        self._upkeep = Upkeep(
            connection, where=where, prepare=self._prepare_again, no_reading=self._no_reading,
            tell=self._lost,
        )  # fmt: skip
        self._keeping: asyncio.Task[None] | None = None
        self._loss: StorageLost | None = None
        """What the server has to be told."""

    # --- setting up -----------------------------------------------------------------------------

    async def start(self, after: int, limit: int) -> str:
        self._limit = limit
        room = await self._when_ready(partial(self._prepare, limit))
        back = await self._when_ready(partial(self._upkeep.claim, after))
        self._uploads = UploadStream(
            self._connection, after=after, limit=limit, room=room, new_consumer_timeout=_ELECTION,
            may_purge=self._upkeep.may_purge, removed=self._upkeep.uploads_removed,
        )  # fmt: skip
        await self._when_ready(partial(self._upkeep.begin, self._uploads, after, back))
        heartbeats = Heartbeats(self._connection, self._replicas, self._greeted)
        self._hearing = asyncio.create_task(heartbeats.read())
        await self._commands.subscribe(self._connection)
        self._reading = asyncio.create_task(self._read_uploads(self._uploads))
        self._keeping = asyncio.create_task(self._upkeep.run(self._uploads))
        return self._upkeep.fence.epoch

    async def _when_ready(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await retry(
            attempt,
            self._not_ready,
            on=(NoRespondersError, TimeoutError, OSError, ServiceUnavailableError, APIError),
            first=0.5,
            longest=0.5,
        )

    def _not_ready(self, error: Exception) -> None:
        if isinstance(error, APIError) and not isinstance(error, ServiceUnavailableError):
            if _without_room(error):
                raise TransportError(_SMALL_DISK) from error
            if error.err_code not in _TOO_FEW_NODES:
                raise TransportError(
                    f"JetStream cannot be set up with federation.replicas = {self._replicas}: "
                    f"{error.description}"
                ) from error
            log.warning("NATS does not have enough nodes yet (%s); trying again", error.description)
            return
        log.warning("JetStream is not ready (%s); trying again", type(error).__name__)
        self._connection.check()

    async def _prepare(self, limit: int) -> int:
        """Create the streams, and a consumer for every client, unless they exist; the room for
        uploads, in bytes."""
        waiting = max(_LEAST_WAITING, 2 * chunk_count(limit, CHUNK))
        # A model is kept while a request needs it, and a client rarely has more than two.
        models = max(_LEAST_ROOM, 4 * len(self._clients) * limit)
        uploads = max(_LEAST_ROOM, 2 * len(self._clients) * limit) + waiting * MESSAGE
        while True:
            try:
                await self._prepare_streams(models, uploads, waiting)
                break
            except APIError as error:
                if models == uploads == _LEAST_ROOM or not _without_room(error):
                    raise
            models, uploads = max(_LEAST_ROOM, models // 2), max(_LEAST_ROOM, uploads // 2)
            log.warning("NATS cannot reserve enough room for models and uploads; trying half of it")
        missing = [client for client in self._clients if client not in self._ready]
        for first in range(0, len(missing), _AT_ONCE):
            await asyncio.gather(*map(self._add_consumer, missing[first : first + _AT_ONCE]))
        return uploads

    async def _prepare_streams(self, models: int, uploads: int, waiting: int) -> None:
        """With so much room, in bytes, and so many messages of a client that may wait."""
        await self._stream(
            name=REQUESTS, subjects=["fedast.request.>"], retention=RetentionPolicy.WORK_QUEUE,
            max_msgs_per_subject=1, discard_new_per_subject=True, discard=DiscardPolicy.NEW,
            max_msgs=_MOST_REQUESTS, max_bytes=_REQUEST_ROOM, max_msg_size=_LONGEST_REQUEST,
        )  # fmt: skip
        await self._stream(
            name=MODELS, subjects=["fedast.model.>"], allow_direct=True, max_msgs_per_subject=1,
            discard=DiscardPolicy.NEW, max_msgs=_MOST_CHUNKS, max_msg_size=MESSAGE,
            max_bytes=models,
        )  # fmt: skip
        await self._stream(
            name=UPDATES, subjects=["fedast.upload.>"], discard=DiscardPolicy.NEW,
            max_msgs_per_subject=waiting, discard_new_per_subject=True, max_msgs=_MOST_CHUNKS,
            max_msg_size=MESSAGE, duplicate_window=_NO_DUPLICATES, max_bytes=uploads,
        )  # fmt: skip
        await self._stream(
            name=SERVING, subjects=[SERVER_SUBJECT, f"{SERVER_SUBJECT}.>"],
            max_msgs_per_subject=1, max_bytes=_LEAST_ROOM,
            max_msg_size=_LONGEST_REQUEST,
        )  # fmt: skip

    async def _stream(self, **options: Any) -> None:
        config = StreamConfig(storage=StorageType.FILE, num_replicas=self._replicas, **options)
        # Looked up first: creating one that exists asks for its room a second time.
        try:
            found = await self._js.stream_info(config.name or "")
        except NotFoundError:
            await self._js.add_stream(config)
            return
        kept = found.config.metadata or {}
        ours = {key: value for key, value in kept.items() if key.startswith("fedast")}
        await self._js.update_stream(replace(config, metadata=ours))

    async def _add_consumer(self, client: ClientId) -> None:
        await self._js.add_consumer(
            REQUESTS,
            durable_name=consumer(client),
            filter_subject=request_subject(client, ">"),
            ack_policy=AckPolicy.EXPLICIT,
            max_ack_pending=1,
            ack_wait=self._patience,
            # On the disk, each delivery and each acknowledgement would be written and synced. It is
            # lost when NATS ends, and created again; what was delivered is then delivered again.
            mem_storage=True,
            timeout=_ELECTION,
        )
        self._ready.add(client)

    async def _create_queue(self, client: ClientId, *, anew: bool = False) -> None:
        """Create a client's queue; do not wait long for it."""
        task = self._creating.get(client)
        if task is None or task.done():
            task = self._creating[client] = asyncio.create_task(self._create(client, anew))
        await asyncio.wait({task}, timeout=_SOON)

    async def _create(self, client: ClientId, anew: bool) -> None:
        if anew:
            with suppress(*TROUBLE):
                await self._js.delete_consumer(REQUESTS, consumer(client))
        try:
            await self._add_consumer(client)
        except TROUBLE as error:  # its next heartbeat is another chance
            log.warning("the queue of client %d cannot be created: %s", client, error)

    @property
    def connected(self) -> bool:
        return self._connection.is_connected

    # --- losses ---------------------------------------------------------------------------------

    async def _prepare_again(self) -> int:
        self._ready.clear()  # queues of clients that were admitted later: at their heartbeats
        return await self._prepare(self._limit)

    @asynccontextmanager
    async def _no_reading(self) -> AsyncIterator[None]:
        assert self._uploads is not None
        await end(self._reading)
        try:
            yield
        finally:
            self._reading = asyncio.create_task(self._read_uploads(self._uploads))

    def _lost(self, loss: StorageLost) -> None:
        if self._loss is not None and loss.epoch is None:
            loss = replace(loss, epoch=self._loss.epoch)
        self._loss = loss
        self._wake()

    # --- receiving ------------------------------------------------------------------------------

    def _greeted(self, client: ClientId, data: bytes) -> None:
        self._greetings[client] = data
        self._wake()

    def _wake(self) -> None:
        if self._incoming.empty():
            self._incoming.put_nowait(None)

    async def _read_uploads(self, uploads: UploadStream) -> None:
        async for upload in uploads.read():
            await self._incoming.put(upload)

    async def receive(self, timeout: float) -> Incoming | None:
        self._connection.check()
        for task in (self._keeping, self._reading, self._hearing):
            if task is not None and task.done() and not task.cancelled():
                task.result()
        end = asyncio.get_running_loop().time() + timeout
        while True:
            if self._loss is not None:
                loss, self._loss = self._loss, None
                return loss
            if (command := self._commands.next()) is not None:
                return command
            if self._greetings:
                client = next(iter(self._greetings))
                if client not in self._ready:  # admitted since the start
                    await self._create_queue(client)
                return Greeted(client, self._greetings.pop(client))
            left = end - asyncio.get_running_loop().time()
            try:
                found = await asyncio.wait_for(self._incoming.get(), max(0.0, left))
            except TimeoutError:
                return None
            if found is not None:
                return found

    async def acknowledge(self, sequence: int) -> None:
        assert self._uploads is not None
        await self._uploads.acknowledge(sequence)

    async def discard(self, client: ClientId, seconds: float) -> None:
        assert self._uploads is not None
        await self._uploads.discard(client, seconds)

    # --- sending --------------------------------------------------------------------------------

    async def publish(self, name: str, data: bytes) -> None:
        count = chunk_count(len(data), CHUNK)
        for number in range(count):
            chunk = data[number * CHUNK : (number + 1) * CHUNK]
            await self._publish(model_subject(name, number), chunk, {CHUNKS_HEADER: str(count)})

    async def retire(self, name: str) -> None:
        await self._purge(MODELS, model_subject(name, ">"))

    async def send(self, client: ClientId, name: str, data: bytes, model: str) -> None:
        try:
            await self._publish(request_subject(client, name), data)
        except APIError as error:
            if error.err_code != _PER_SUBJECT:
                raise TransportError(f"a request cannot be sent: {error}") from error

    async def tell(self, client: ClientId, data: bytes | None) -> None:
        await self._purge(REQUESTS, request_subject(client, _NOTICE))
        if data is not None:
            with suppress(*TROUBLE):
                await self._js.publish(request_subject(client, _NOTICE), data)

    async def withdraw(self, client: ClientId, name: str) -> None:
        await self._purge(REQUESTS, request_subject(client, name))

    async def redeliver(self, client: ClientId) -> None:
        # NATS goes by its wall clock, which may have been set back by hours. A new consumer has
        # delivered nothing yet. If creating it fails, the client stays idle, and this is repeated.
        await self._create_queue(client, anew=True)

    async def _purge(self, stream: str, subject: str) -> None:
        with suppress(*TROUBLE):  # what stays is recognised as useless later
            await self._js.purge_stream(stream, subject=subject)

    async def _publish(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None
    ) -> None:
        def failed(error: Exception) -> None:
            if isinstance(error, APIError):
                if error.err_code == _PER_SUBJECT or error.code == 400:
                    raise error
            else:
                self._connection.check()
            log.warning("publishing %s: %s; trying again", subject, error or "no answer")

        await retry(partial(self._js.publish, subject, data, headers=headers), failed, on=TROUBLE)

    async def answer(self, command: ControlCommand, data: bytes) -> None:
        if command.reply:
            await self._connection.publish(command.reply, data)

    async def close(self) -> None:
        await end(self._keeping)  # first: where it creates streams again, it begins to read anew
        await end(self._reading, self._hearing, *self._creating.values())
        await self._upkeep.end()
        await close(self._connection)
