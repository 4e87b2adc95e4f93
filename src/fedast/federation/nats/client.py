"""The client's side of the transport over NATS, and the sender of control commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import uniform
from typing import final

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from fedast.core.protocol import ClientId
from fedast.federation.backoff import retry
from fedast.federation.nats.connection import (
    TROUBLE,
    Connection,
    Credentials,
    NobodyThere,
    close,
    connect,
)
from fedast.federation.nats.names import (
    CHUNK,
    CHUNKS_HEADER,
    CONTROL_INBOX,
    CONTROL_SUBJECT,
    MODELS,
    OBSERVER_INBOX,
    REQUESTS,
    STATUS_SUBJECT,
    UPLOAD_HEADER,
    consumer,
    hello_subject,
    model_subject,
    upload_subject,
)
from fedast.federation.nats.pull import LongPull
from fedast.federation.reassembly import chunk_count
from fedast.federation.transport import CONTROL_KEY, OBSERVER_KEY, Delivery, TransportError

log = logging.getLogger("fedast.nats")
_PAUSES = (0.1, 0.3, 1.0)
"""Between looking for a model again: a node of a cluster may not have it yet."""
_PAUSE, _LONGEST_PAUSE = 1.0, 8.0
"""Seconds until asking for a request again if there is no queue, the first time and at most."""
_LONGEST_PULL = 30.0
"""Seconds for which NATS is asked for a request."""


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
        with suppress(*TROUBLE):  # not acknowledged: it comes again, and its upload counts once
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
        # (What NATS forgets with what we asked comes no later than what it forgets to deliver.)
        lasts = min(_LONGEST_PULL, patience)
        self._queue = LongPull(connection, REQUESTS, consumer(client), lasts)
        self._pause, self._wait_until = _PAUSE, 0.0

    @property
    def patience(self) -> float:
        return self._patience

    async def next(self, timeout: float) -> Delivery | None:
        self._connection.check()
        clock = asyncio.get_running_loop().time
        if clock() < self._wait_until:
            await asyncio.sleep(min(timeout, self._wait_until - clock()))
            return None
        try:
            message = await self._queue.next(timeout)
        except TROUBLE as error:
            log.warning("waiting for a request: %s", error or type(error).__name__)
            self._wait_until = clock() + self._pause * uniform(0.5, 1.5)
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
            return None
        self._pause = _PAUSE
        return None if message is None else _NatsDelivery(message)

    async def fetch(self, name: str) -> bytes | None:
        chunks: list[bytes] = []
        count = 1
        while len(chunks) < count:
            found = await self._fetch_chunk(name, len(chunks))
            if found is None:
                return None
            count = int((found.headers or {}).get(CHUNKS_HEADER, "1"))
            chunks.append(found.data)
        return b"".join(chunks)

    async def _fetch_chunk(self, name: str, number: int) -> Msg | None:
        subject = f"$JS.API.DIRECT.GET.{MODELS}.{model_subject(name, number)}"
        get = partial(self._connection.request, subject, b"", timeout=10)
        for pause in (*_PAUSES, None):
            found = await retry(get, partial(self._trouble, "fetching a model"), on=TROUBLE)
            if "Status" not in (found.headers or {}):
                return found
            if pause is not None:
                await asyncio.sleep(pause)
        return None

    async def upload(self, name: str, data: bytes) -> None:
        count = chunk_count(len(data), CHUNK)
        for number in range(count):
            # No message id: NATS would keep one table of them for all clients, so that one could
            # shadow another's upload. The server recognises what it gets twice.
            headers = {UPLOAD_HEADER: f"{name}.{number}-{count}"}
            chunk = data[number * CHUNK : (number + 1) * CHUNK]
            subject = upload_subject(self._client)
            publish = partial(self._js.publish, subject, chunk, headers=headers)
            await retry(publish, partial(self._trouble, "uploading"), on=TROUBLE)

    def _trouble(self, doing: str, error: Exception) -> None:
        """Raises if trying again is pointless."""
        self._connection.check()
        log.warning("%s: %s; trying again", doing, error or type(error).__name__)

    async def hello(self, data: bytes) -> None:
        with suppress(*TROUBLE):
            await self._connection.publish(hello_subject(self._client), data)

    async def close(self) -> None:
        await close(self._connection)


_ADDRESSES = {
    CONTROL_KEY: (CONTROL_SUBJECT, CONTROL_INBOX),
    OBSERVER_KEY: (STATUS_SUBJECT, OBSERVER_INBOX),
}


class NoFederation(TransportError):
    """Nobody answers where NATS should be."""


class NoServer(TransportError):
    """NATS answers, the FedAST server does not."""


async def send_command(
    servers: Sequence[str],
    credentials: Credentials,
    data: bytes,
    timeout: float = 10.0,
    *,
    key: str = CONTROL_KEY,
    patience: float = 2.0,
) -> bytes:
    """Send a control command to the FedAST server and wait for its answer. ``key``: the name of
    the credentials; the observer's may only ask for the status. Whatever is wrong, this ends: after
    ``patience`` seconds if nobody is there, ``timeout`` if nobody answers."""
    subject, inbox_prefix = _ADDRESSES[key]
    try:
        async with asyncio.timeout(patience + timeout):
            connection = await connect(
                servers, credentials, name=key, inbox_prefix=inbox_prefix, patience=patience
            )
    except NobodyThere as error:
        raise NoFederation(str(error)) from error
    except TimeoutError:
        raise NoFederation(f"{servers[0]}: takes connections but says nothing") from None
    try:
        message = await connection.request(subject, data, timeout=timeout)
        return message.data
    except TROUBLE as error:
        raise NoServer(f"{servers[0]}: NATS answers, but no FedAST server does") from error
    finally:
        await close(connection)
