"""The server's side of the transport over NATS JetStream.

Three streams. REQUESTS is a work queue with a subject per request and a durable consumer per
client, which delivers one message at a time; a subject holds one message, so NATS itself refuses a
request that is already queued. UPDATES keeps uploads in order until the server has acknowledged
them (``uploads``); the message id makes an upload idempotent, and the server reads by sequence
number, so that it can start again from any upload. MODELS holds published models, read directly by
subject. Of heartbeats NATS keeps the latest of each client (``heartbeats``). Control commands are
plain messages.

Who may do what is decided by the configuration of nats-server (``setup``): a client may read its
own queue and the models, and write its own uploads, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, final

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, ServiceUnavailableError

from fedast.core.protocol import ClientId
from fedast.federation.backoff import retry
from fedast.federation.nats.connection import TROUBLE, Connection, close
from fedast.federation.nats.heartbeats import Heartbeats
from fedast.federation.nats.names import (
    CHUNK,
    CHUNKS_HEADER,
    CONTROL_SUBJECT,
    MODELS,
    REQUESTS,
    UPDATES,
    consumer,
    model_subject,
    request_subject,
)
from fedast.federation.nats.uploads import UploadStream
from fedast.federation.reassembly import chunk_count
from fedast.federation.transport import (
    ControlCommand,
    Greeted,
    Incoming,
    TransportError,
    Uploaded,
)

log = logging.getLogger("fedast.nats")

_PER_SUBJECT = 10077  # JetStream's code for "maximum messages per subject exceeded"
_OTHER_OPTIONS = 10058  # ... for "stream name already in use with a different configuration"
_TOO_FEW_NODES = {10005, 10008, 10009, 10023}  # no peers, no leader, no resources
_NO_ROOM = 10047  # ... for "insufficient storage resources available"
_LEAST_ROOM = 64 * 2**20
"""Bytes for unacknowledged uploads. A client has one at a time; while the server is away they may
pile up to two for each client, then clients wait. So nobody can fill the disk."""
_ELECTION, _SOON = 10.0, 2.0
"""Seconds that creating a consumer may take (after the loss of a node of a cluster, the others may
first have to elect its leader), and for how long everything else waits for it."""
_MOST_COMMANDS = 64


@final
class NatsServer:
    def __init__(
        self,
        connection: Connection,
        clients: Sequence[ClientId],
        patience: float,
        replicas: int = 1,
    ) -> None:
        """``patience``: seconds until a request that nobody works on is delivered again.
        ``replicas``: nodes of a cluster that store each stream."""
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream(timeout=4)
        self._clients = clients
        self._patience = patience
        self._replicas = replicas
        self._incoming: asyncio.Queue[Uploaded | None] = asyncio.Queue(maxsize=64)
        """Uploads; None wakes ``receive`` for something else."""
        self._greetings: dict[ClientId, bytes] = {}
        """The latest of each client: nobody can crowd out another's."""
        self._commands: deque[ControlCommand] = deque()
        """Separate, so that they do not wait behind uploads."""
        self._ready: set[ClientId] = set()
        """Clients that have a queue."""
        self._creating: dict[ClientId, asyncio.Task[None]] = {}
        """Queues that are being created: one that takes long is not begun again meanwhile."""
        self._reading: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._uploads: UploadStream | None = None

    # --- setting up -----------------------------------------------------------------------------

    async def start(self, after: int, limit: int) -> None:
        room = await retry(
            partial(self._prepare, limit),
            self._not_ready,
            on=(NoRespondersError, TimeoutError, OSError, ServiceUnavailableError, APIError),
            first=0.5,
            longest=0.5,
        )
        self._uploads = UploadStream(
            self._connection, after=after, limit=limit, room=room, new_consumer_timeout=_ELECTION
        )
        heartbeats = Heartbeats(self._connection, self._replicas, self._greeted)
        self._hearing = asyncio.create_task(heartbeats.read())
        await self._connection.subscribe(CONTROL_SUBJECT, cb=self._command_received)
        self._reading = asyncio.create_task(self._read_uploads(self._uploads))

    def _not_ready(self, error: Exception) -> None:
        if isinstance(error, APIError) and not isinstance(error, ServiceUnavailableError):
            if error.err_code not in _TOO_FEW_NODES:
                raise TransportError(
                    f"JetStream cannot be set up with federation.replicas = {self._replicas}: "
                    f"{error.description}"
                ) from error
            log.warning("NATS has not enough nodes yet (%s); trying again", error.description)
            return
        log.warning("JetStream is not ready (%s); trying again", type(error).__name__)
        self._connection.check()

    async def _prepare(self, limit: int) -> int:
        """Create the streams, and a consumer for every client, unless they exist; the room for
        uploads, in bytes."""
        common: dict[str, Any] = {"storage": StorageType.FILE, "num_replicas": self._replicas}
        await self._stream(
            name=REQUESTS, subjects=["fedast.request.>"], retention=RetentionPolicy.WORK_QUEUE,
            max_msgs_per_subject=1, discard_new_per_subject=True, discard=DiscardPolicy.NEW,
            **common,
        )  # fmt: skip
        room = max(_LEAST_ROOM, 2 * len(self._clients) * limit)
        while True:
            try:
                await self._stream(
                    name=UPDATES, subjects=["fedast.upload.>"], duplicate_window=3600,
                    discard=DiscardPolicy.NEW, max_bytes=room, **common,
                )  # fmt: skip
                break
            except APIError as error:
                full = error.err_code == _NO_ROOM or "storage" in (error.description or "")
                if not full:
                    raise
                if room == _LEAST_ROOM:
                    raise TransportError(
                        "NATS's disk is full: there is no room for uploads"
                    ) from error
            log.warning("NATS cannot reserve %d MB for uploads; trying half of it", room >> 20)
            room = max(_LEAST_ROOM, room // 2)
        await self._stream(
            name=MODELS, subjects=["fedast.model.>"], allow_direct=True, max_msgs_per_subject=1,
            **common,
        )  # fmt: skip
        for client in self._clients:
            await self._add_consumer(client)
        return room

    async def _stream(self, **options: Any) -> None:
        config = StreamConfig(**options)
        try:
            await self._js.add_stream(config)
        except APIError as error:
            if error.err_code != _OTHER_OPTIONS:
                raise
            await self._js.update_stream(config)

    async def _add_consumer(self, client: ClientId) -> None:
        await self._js.add_consumer(
            REQUESTS,
            durable_name=consumer(client),
            filter_subject=request_subject(client, ">"),
            ack_policy=AckPolicy.EXPLICIT,
            max_ack_pending=1,
            ack_wait=self._patience,
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

    # --- receiving ------------------------------------------------------------------------------

    def _greeted(self, client: ClientId, data: bytes) -> None:
        self._greetings[client] = data
        self._wake()

    async def _command_received(self, message: Msg) -> None:
        if len(self._commands) < _MOST_COMMANDS:
            self._commands.append(ControlCommand(message.data, message.reply))
            self._wake()

    def _wake(self) -> None:
        if self._incoming.empty():
            self._incoming.put_nowait(None)

    async def _read_uploads(self, uploads: UploadStream) -> None:
        async for upload in uploads.read():
            await self._incoming.put(upload)

    async def receive(self, timeout: float) -> Incoming | None:
        self._connection.check()
        for task in (self._reading, self._hearing):
            if task is not None and task.done():
                task.result()
        end = asyncio.get_running_loop().time() + timeout
        while True:
            if self._commands:
                return self._commands.popleft()
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
        for task in (self._reading, self._hearing, *self._creating.values()):
            if task is not None:
                task.cancel()
        await close(self._connection)
