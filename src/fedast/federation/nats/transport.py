"""The transport over NATS JetStream.

Three streams. REQUESTS is a work queue with a subject per request and a durable consumer per
client, which hands out one message at a time; a subject holds one message, so sending again what
is there is refused by NATS itself. UPDATES keeps uploads in order until the server has acknowledged
them; the message id makes an upload idempotent, and the server reads by sequence number, so that
it can start over from any sequence. MODELS holds published models, read directly by subject.
Heartbeats and control commands are plain messages. What is longer than ``PART`` travels in parts.

Who may do what is not decided here but by the server's configuration (``deploy.setup``): a client
may read its own queue and the models, and write its own uploads, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, final

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, ServiceUnavailableError

from fedast.core.protocol import ClientId
from fedast.federation.nats.connection import TROUBLE, Connection, Credentials, close, connect
from fedast.federation.reassembly import ChunkReassembly, count_of
from fedast.federation.transport import (
    ControlCommand,
    Delivery,
    Greeted,
    Incoming,
    TransportError,
    Uploaded,
)

log = logging.getLogger("fedast.nats")

PART = 4 * 2**20
REQUESTS, UPDATES, MODELS = "FEDAST_REQUESTS", "FEDAST_UPDATES", "FEDAST_MODELS"
_PER_SUBJECT = 10077  # JetStream's code for "maximum messages per subject exceeded"
_OTHER_OPTIONS = 10058  # ... for "stream name already in use with a different configuration"
_TOO_FEW_NODES = {10005, 10008, 10009, 10023}  # no peers, no leader, no resources
_NO_ROOM = 10047  # ... for "insufficient storage resources available"
_PARTS = "Fedast-Parts"
_LEAST_ROOM = 64 * 2**20
"""Bytes for uploads that are not acknowledged. A client has one at a time; while the server is away
they may pile up to two for each client, then clients wait. So nobody can fill the disk."""
_LOOKED_FOR = (0.1, 0.3, 1.0)
"""Waits before a model counts as gone: a node of a cluster may not have it yet."""
_ELECTION, _SOON = 10.0, 2.0
"""Seconds that a new consumer may take (where a node of a cluster is lost, the others may first
have to elect who leads it), and for how long everything else waits for one."""


def request_subject(client: ClientId, name: str) -> str:
    return f"fedast.request.{client}.{name}"


def upload_subject(client: ClientId | str, rest: str) -> str:
    return f"fedast.upload.{client}.{rest}"


def inbox(client: ClientId) -> str:
    return f"_INBOX_client_{client}"


SERVER_INBOX, CONTROL_INBOX = "_INBOX_server", "_INBOX_control"


def consumer(client: ClientId) -> str:
    return f"client-{client}"


def client_permissions(client: ClientId) -> tuple[list[str], list[str]]:
    """What a client may publish to and subscribe to."""
    return (
        [
            upload_subject(client, ">"),
            f"fedast.hello.{client}",
            f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.{consumer(client)}",
            f"$JS.ACK.{REQUESTS}.{consumer(client)}.>",
            f"$JS.API.DIRECT.GET.{MODELS}.fedast.model.>",
        ],
        [f"{inbox(client)}.>"],
    )


# --- the server's side --------------------------------------------------------------------------


@final
class NatsServer:
    def __init__(
        self,
        connection: Connection,
        clients: Sequence[ClientId],
        patience: float,
        replicas: int = 1,
    ) -> None:
        """``patience``: seconds until a request nobody works on is handed out again. ``replicas``:
        nodes of a cluster that keep what is to be kept."""
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream(timeout=4)
        self._clients = clients
        self._patience = patience
        self._replicas = replicas
        self._incoming: asyncio.Queue[Uploaded | None] = asyncio.Queue(maxsize=64)
        """Uploads; None wakes up whoever waits for something else."""
        self._greetings: dict[ClientId, bytes] = {}
        """The latest of each client: nobody can push out another's."""
        self._commands: deque[ControlCommand] = deque()
        """They do not wait behind uploads."""
        self._ready: set[ClientId] = set()
        """Clients that have a queue."""
        self._making: dict[ClientId, asyncio.Task[None]] = {}
        """Queues that are being made: one that takes long is not begun again meanwhile."""
        self._tasks: list[asyncio.Task[None]] = []
        self._clock = asyncio.get_running_loop().time
        self._tidied = 0.0
        self._reassembly = ChunkReassembly(PART, 0)
        self._read = 0
        self._purged = 1
        """What is before this sequence has been removed from the stream."""
        self._limit = 0
        self._room = 0

    async def start(self, after: int, limit: int) -> None:
        self._limit = limit
        while True:
            try:
                await self._prepare()
                break
            except (NoRespondersError, TimeoutError, OSError, ServiceUnavailableError) as error:
                log.warning("JetStream is not ready (%s); trying again", type(error).__name__)
                self._connection.check()
            except APIError as error:
                if error.err_code not in _TOO_FEW_NODES:
                    raise TransportError(
                        f"JetStream cannot be set up with federation.replicas = {self._replicas}: "
                        f"{error.description}"
                    ) from error
                log.warning("NATS has not enough nodes yet (%s); trying again", error.description)
            await asyncio.sleep(0.5)
        # It reads from the first that is kept: parts may have come before ``after``.
        self._reassembly = ChunkReassembly(PART, limit, after=after, room=self._room)
        await self._connection.subscribe("fedast.hello.*", cb=self._greeted)
        await self._connection.subscribe("fedast.order", cb=self._command_received)
        self._tasks.append(asyncio.create_task(self._read_uploads()))

    async def _prepare(self) -> None:
        """Streams, and a consumer for every client; all of it may be there already."""
        common: dict[str, Any] = {"storage": StorageType.FILE, "num_replicas": self._replicas}
        await self._stream(
            name=REQUESTS, subjects=["fedast.request.>"], retention=RetentionPolicy.WORK_QUEUE,
            max_msgs_per_subject=1, discard_new_per_subject=True, discard=DiscardPolicy.NEW,
            **common,
        )  # fmt: skip
        self._room = max(_LEAST_ROOM, 2 * len(self._clients) * self._limit)
        while True:
            try:
                await self._stream(
                    name=UPDATES, subjects=["fedast.upload.>"], duplicate_window=3600,
                    discard=DiscardPolicy.NEW, max_bytes=self._room, **common,
                )  # fmt: skip
                break
            except APIError as error:
                full = error.err_code == _NO_ROOM or "storage" in (error.description or "")
                if not full:
                    raise
                if self._room == _LEAST_ROOM:
                    raise TransportError(
                        "NATS's disk is full: there is no room for uploads"
                    ) from error
            log.warning("NATS cannot set %d MB aside for uploads: half of it", self._room >> 20)
            self._room = max(_LEAST_ROOM, self._room // 2)
        await self._stream(
            name=MODELS, subjects=["fedast.model.>"], allow_direct=True, max_msgs_per_subject=1,
            **common,
        )  # fmt: skip
        for client in self._clients:
            await self._add_consumer(client)

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

    async def _make_ready(self, client: ClientId, *, anew: bool = False) -> None:
        task = self._making.get(client)
        if task is None or task.done():
            task = self._making[client] = asyncio.create_task(self._make_queue(client, anew))
        await asyncio.wait({task}, timeout=_SOON)

    async def _make_queue(self, client: ClientId, anew: bool) -> None:
        if anew:
            with suppress(*TROUBLE):
                await self._js.delete_consumer(REQUESTS, consumer(client))
        try:
            await self._add_consumer(client)
        except TROUBLE as error:  # its next greeting is another chance
            log.warning("the queue of client %d: %s", client, error)

    async def _stream(self, **options: Any) -> None:
        config = StreamConfig(**options)
        try:
            await self._js.add_stream(config)
        except APIError as error:
            if error.err_code != _OTHER_OPTIONS:
                raise
            await self._js.update_stream(config)

    async def _greeted(self, message: Msg) -> None:
        client = message.subject.rpartition(".")[2]
        if client.isdecimal() and len(client) < 10:
            self._greetings[int(client)] = message.data
            self._wake()

    async def _command_received(self, message: Msg) -> None:
        if len(self._commands) < 64:
            self._commands.append(ControlCommand(message.data, message.reply))
            self._wake()

    def _wake(self) -> None:
        if self._incoming.empty():
            self._incoming.put_nowait(None)

    async def _read_uploads(self) -> None:
        """Read by sequence number; after any trouble, go on from where we were."""
        while True:
            with suppress(*TROUBLE):
                await self._js.delete_consumer(UPDATES, "server")
            try:
                await self._js.add_consumer(
                    UPDATES,
                    ConsumerConfig(
                        durable_name="server",
                        ack_policy=AckPolicy.NONE,
                        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                        opt_start_seq=self._read + 1,
                    ),
                    timeout=_ELECTION,
                )
                subscription = await self._js.pull_subscribe_bind("server", stream=UPDATES)
                await self._read_from(subscription)
            except (*TROUBLE, TransportError) as error:
                self._connection.check()
                log.warning("reading uploads: %s; trying again", error or type(error).__name__)
                await asyncio.sleep(0.5)

    async def _read_from(self, subscription: JetStreamContext.PullSubscription) -> None:
        last, delivered = self._read, 0
        while True:
            if self._clock() - self._tidied > 1.0:
                await self._tidy()
            try:
                messages = await subscription.fetch(32, timeout=2)
            except TimeoutError:
                info = await self._js.stream_info(UPDATES)
                if info.state.messages and info.state.last_seq > last:
                    raise TransportError("uploads are there that did not come") from None
                continue
            for message in messages:
                sequence = message.metadata.sequence.stream
                if message.metadata.sequence.consumer != delivered + 1:
                    raise TransportError("uploads were lost on their way; reading them again")
                delivered += 1
                if sequence <= last:
                    continue
                found = self._take(sequence, message)
                last = self._read = sequence
                if found is not None:
                    await self._incoming.put(found)

    def _take(self, sequence: int, message: Msg) -> Uploaded | None:
        """A whole upload, if this message was the last part that it lacked."""
        data = message.data
        try:
            _, _, client_text, name, part_text = message.subject.split(".")
            number, count = (int(text) for text in part_text.split("-"))
            client = int(client_text)
        except ValueError:
            # No client of ours writes to such a subject.
            self._reassembly.pass_over(sequence, len(data))
            return None
        whole = self._reassembly.take(sequence, (client, name), number, count, data, self._clock())
        if whole is None:
            return None
        return Uploaded(sequence, client, name, whole[: self._limit], len(whole) > self._limit)

    async def publish(self, name: str, data: bytes) -> None:
        count = count_of(len(data), PART)
        for number in range(count):
            part = data[number * PART : (number + 1) * PART]
            headers = {_PARTS: str(count)}
            await self._patiently(f"fedast.model.{name}.{number}", part, headers)

    async def retire(self, name: str) -> None:
        await self._purge(MODELS, f"fedast.model.{name}.>")

    async def send(self, client: ClientId, name: str, data: bytes, model: str) -> None:
        try:
            await self._patiently(request_subject(client, name), data)
        except APIError as error:
            if error.err_code != _PER_SUBJECT:
                raise TransportError(f"a request cannot be sent: {error}") from error

    async def withdraw(self, client: ClientId, name: str) -> None:
        await self._purge(REQUESTS, request_subject(client, name))

    async def hand_out_again(self, client: ClientId) -> None:
        # NATS waits for its own clock, which may have been set back by hours. A consumer that is
        # made anew has handed out nothing yet. If that fails, the client stays idle, and this is
        # tried again.
        await self._make_ready(client, anew=True)

    async def _purge(self, stream: str, subject: str) -> None:
        with suppress(*TROUBLE):  # what stays is found to be of no use later on
            await self._js.purge_stream(stream, subject=subject)

    async def _patiently(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None
    ) -> None:
        """Publish; while NATS is away, again and again."""
        wait = 0.2
        while True:
            try:
                await self._js.publish(subject, data, headers=headers)
                return
            except APIError as error:
                if error.err_code == _PER_SUBJECT or error.code == 400:
                    raise
                log.warning("publishing %s: %s; trying again", subject, error)
            except (*TROUBLE, NoRespondersError) as error:
                self._connection.check()
                log.warning("publishing %s: %s; trying again", subject, error or "no answer")
            await asyncio.sleep(wait)
            wait = min(3.0, wait * 2)

    async def receive(self, timeout: float) -> Incoming | None:
        self._connection.check()
        for task in self._tasks:
            if task.done():
                task.result()
        end = asyncio.get_running_loop().time() + timeout
        while True:
            if self._commands:
                return self._commands.popleft()
            if self._greetings:
                client = next(iter(self._greetings))
                if client not in self._ready:  # admitted since the start
                    await self._make_ready(client)
                return Greeted(client, self._greetings.pop(client))
            left = end - asyncio.get_running_loop().time()
            try:
                found = await asyncio.wait_for(self._incoming.get(), max(0.0, left))
            except TimeoutError:
                return None
            if found is not None:
                return found

    async def acknowledge(self, sequence: int) -> None:
        self._reassembly.acknowledge(sequence)
        await self._tidy()

    async def _tidy(self) -> None:
        """Purge what is not needed any more. Not only after an acknowledgement: messages of no use
        take room too, and the last purge may have failed."""
        self._tidied = self._clock()
        needed = self._reassembly.needed_from(self._tidied)
        if needed > self._purged:
            with suppress(*TROUBLE):
                await self._js.purge_stream(UPDATES, seq=needed)
                self._purged = needed

    async def answer(self, command: ControlCommand, data: bytes) -> None:
        if command.reply:
            await self._connection.publish(command.reply, data)

    async def close(self) -> None:
        for task in (*self._tasks, *self._making.values()):
            task.cancel()
        await close(self._connection)


# --- a client's side ----------------------------------------------------------------------------


@final
class _NatsDelivery:
    def __init__(self, message: Msg) -> None:
        self._message = message

    @property
    def data(self) -> bytes:
        return self._message.data

    async def working(self) -> None:
        with suppress(*TROUBLE):
            await self._message.in_progress()

    async def done(self) -> None:
        with suppress(*TROUBLE):  # not acknowledged: it comes again, and is known to be done
            await self._message.ack()

    async def give_back(self) -> None:
        with suppress(*TROUBLE):
            await self._message.nak()


@final
class NatsClient:
    def __init__(self, connection: Connection, client: ClientId, patience: float) -> None:
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream(timeout=4)
        self._client = client
        self._patience = patience
        self._subscription: JetStreamContext.PullSubscription | None = None

    @property
    def patience(self) -> float:
        return self._patience

    async def next(self, timeout: float) -> Delivery | None:
        self._connection.check()
        try:
            if self._subscription is None:
                self._subscription = await self._js.pull_subscribe_bind(
                    consumer(self._client), stream=REQUESTS
                )
            messages = await self._subscription.fetch(1, timeout=timeout)
        except TimeoutError:
            return None
        except TROUBLE as error:
            log.warning("waiting for a request: %s", error or type(error).__name__)
            self._subscription = None
            await asyncio.sleep(min(1.0, timeout))
            return None
        return _NatsDelivery(messages[0]) if messages else None

    async def fetch(self, name: str) -> bytes | None:
        parts: list[bytes] = []
        count = 1
        while len(parts) < count:
            subject = f"fedast.model.{name}.{len(parts)}"
            headers: dict[str, str] = {}
            for wait in (*_LOOKED_FOR, None):
                found = await self._patiently(f"$JS.API.DIRECT.GET.{MODELS}.{subject}")
                headers = found.headers or {}
                if "Status" not in headers:
                    break
                if wait is None:
                    return None
                await asyncio.sleep(wait)
            count = int(headers.get(_PARTS, "1"))
            parts.append(found.data)
        return b"".join(parts)

    async def _patiently(self, subject: str) -> Msg:
        wait = 0.2
        while True:
            try:
                return await self._connection.request(subject, b"", timeout=10)
            except TROUBLE as error:
                self._connection.check()
                log.warning("fetching a model: %s; trying again", error or type(error).__name__)
            await asyncio.sleep(wait)
            wait = min(3.0, wait * 2)

    async def upload(self, name: str, data: bytes) -> None:
        count = count_of(len(data), PART)
        for number in range(count):
            subject = upload_subject(self._client, f"{name}.{number}-{count}")
            headers = {"Nats-Msg-Id": f"{self._client}.{name}.{number}"}
            part = data[number * PART : (number + 1) * PART]
            wait = 0.2
            while True:
                try:
                    await self._js.publish(subject, part, headers=headers)
                    break
                except TROUBLE as error:
                    self._connection.check()
                    log.warning("uploading: %s; trying again", error or type(error).__name__)
                await asyncio.sleep(wait)
                wait = min(3.0, wait * 2)

    async def hello(self, data: bytes) -> None:
        with suppress(*TROUBLE):
            await self._connection.publish(f"fedast.hello.{self._client}", data)

    async def close(self) -> None:
        await close(self._connection)


@asynccontextmanager
async def send_command(
    servers: Sequence[str], credentials: Credentials, data: bytes, timeout: float = 10.0
) -> AsyncIterator[bytes]:
    """Send a control command to the server and wait for its answer."""
    connection = await connect(
        servers, credentials, name="control", inbox_prefix=CONTROL_INBOX, patience=timeout
    )
    try:
        try:
            message = await connection.request("fedast.order", data, timeout=timeout)
        except TROUBLE as error:
            raise TransportError("the FedAST server does not answer") from error
        yield message.data
    finally:
        await close(connection)
