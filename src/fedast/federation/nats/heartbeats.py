"""Heartbeats, as NATS keeps them: the latest of each client.

A subscription would bring the server every heartbeat that is published, and 200,000 in a second
leave it no time for anything else (and NATS closes the connection of a subscriber that does not
keep up). So NATS stores them in a stream, in memory, with one message per subject: a newer one
replaces the older. The server looks a few times a second, and a flood costs it one message more.
If NATS loses the stream, it is created again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import final

from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from fedast.core.protocol import ClientId
from fedast.federation.backoff import retry
from fedast.federation.nats.connection import TROUBLE, Connection
from fedast.federation.nats.names import HELLOS, hello_subject
from fedast.federation.nats.pull import Pull

log = logging.getLogger("fedast.nats")
_LOOK_EVERY = 0.2
_BATCH = 500
_LONGEST, _MOST, _ROOM = 65536, 1_000_000, 256 * 2**20
_FORGOTTEN_AFTER = 60.0
"""Seconds after which NATS drops our consumer if we do not ask for anything."""


@final
class Heartbeats:
    def __init__(
        self, connection: Connection, replicas: int, greeted: Callable[[ClientId, bytes], None]
    ) -> None:
        """``greeted`` is called with each heartbeat that is found."""
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream(timeout=4)
        self._replicas = replicas
        self._greeted = greeted

    async def prepare(self) -> None:
        """Create the stream, unless it exists."""
        await self._js.add_stream(
            StreamConfig(
                name=HELLOS,
                subjects=[hello_subject("*")],
                storage=StorageType.MEMORY,
                num_replicas=self._replicas,
                max_msgs_per_subject=1,
                max_msg_size=_LONGEST,
                max_msgs=_MOST,
                max_bytes=_ROOM,
                max_age=600,
            )
        )

    async def read(self) -> None:
        """Run forever; after any error, start again."""
        while True:
            await retry(self._look, self._trouble, on=TROUBLE, first=0.5, longest=2.0)

    def _trouble(self, error: Exception) -> None:
        self._connection.check()
        log.warning("reading heartbeats: %s; trying again", error or type(error).__name__)

    async def _look(self) -> None:
        await self.prepare()
        info = await self._js.add_consumer(
            HELLOS,
            ConsumerConfig(
                ack_policy=AckPolicy.NONE,
                deliver_policy=DeliverPolicy.ALL,
                inactive_threshold=_FORGOTTEN_AFTER,
                mem_storage=True,
            ),
        )
        pull = Pull(self._connection, HELLOS, info.name)
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                messages = await pull.fetch(_BATCH, timeout=2)
            except TimeoutError:
                await self._js.consumer_info(HELLOS, info.name)  # is it still there?
                continue
            for message in messages:
                client = message.subject.rpartition(".")[2]
                if client.isascii() and client.isdecimal() and len(client) < 10:
                    self._greeted(int(client), message.data)
            await asyncio.sleep(max(0.0, began + _LOOK_EVERY - clock()))
