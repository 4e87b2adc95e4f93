"""A client with a valid key and bad intentions: a raw connection to NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, final

import numpy as np
from nats.aio.client import Client

from fedast.federation import wire
from fedast.federation.nats.client import NatsClient
from fedast.federation.nats.connection import TROUBLE, close, connect
from fedast.federation.nats.names import MODELS, REQUESTS, hello_subject, inbox
from fedast.federation.nats.setup import client_name
from tests.federation.nats_support import NatsBed


@final
class Hostile:
    def __init__(
        self, bed: NatsBed, number: int, tasks: Sequence[str], connection: Client, transport: Any
    ) -> None:
        self.bed = bed
        self.number = number
        self._tasks = tuple(tasks)
        self.connection = connection
        self.transport: NatsClient = transport
        """The same key as an honest client uses it."""

    @staticmethod
    @asynccontextmanager
    async def connected(bed: NatsBed, number: int, tasks: Sequence[str]) -> AsyncIterator[Hostile]:
        keys, name = bed.keys(client_name(number)), client_name(number)
        connection = await connect(
            [bed.url], keys, name=name, inbox_prefix=inbox(number), patience=30
        )
        one = Hostile(bed, number, tasks, connection, NatsClient(connection, number, 2.0))
        try:
            yield one
        finally:
            async with asyncio.timeout(10):
                await close(connection)

    # --- as an honest client would --------------------------------------------------------------

    async def greet(self, *, idle: bool = False, bye: bool = False, software: str = "x") -> None:
        hello = wire.Hello(self.number, software, self._tasks, bye=bye, idle=idle)
        await self.transport.hello(wire.encode(hello))

    async def requests(self, count: int, seconds: float = 8.0) -> list[wire.Request]:
        """Up to so many requests from its queue, each acknowledged so that the next one comes."""
        found: list[wire.Request] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(found) < count:
                    await self.greet()
                    delivery = await self.transport.next(0.5)
                    if delivery is not None:
                        with suppress(wire.WireError):  # a notice of what the server thinks of it
                            found.append(wire.decode(delivery.data, wire.Request))
                        await delivery.done()
        return found

    async def answer(self, request: wire.Request, **fields: Any) -> None:
        """Upload an update for this request; ``fields`` replace what an honest one would have."""
        honest: dict[str, Any] = {
            "request": request.id, "token": request.token, "task": request.task, "loss": 0.1,
            "work_seconds": 0.1, "samples": 10, "vector": np.zeros(request.size, np.float32),
        }  # fmt: skip
        kind = "e" if request.kind == "evaluate" else ""
        data = wire.encode(wire.Update(**{**honest, **fields}))
        await self.upload(f"{kind}{request.id}-{request.token}", data)

    async def upload(self, name: str, data: bytes) -> None:
        """Without waiting for ever where NATS refuses it."""
        with suppress(*TROUBLE):
            async with asyncio.timeout(5):
                await self.transport.upload(name, data)

    # --- as no client should --------------------------------------------------------------------

    def permitted(self) -> list[str]:
        """A subject of every kind that NATS lets a client publish to, now or in earlier versions;
        written out, because an attacker does not ask what was meant."""
        me = client_name(self.number)
        return [
            f"fedast.upload.{self.number}.chunk",
            f"fedast.upload.{self.number}.0-x.0-1",
            hello_subject(self.number),
            f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.{me}",
            f"$JS.ACK.{REQUESTS}.{me}.1.1.1.1.1",
            f"$JS.API.DIRECT.GET.{MODELS}.fedast.model.0.0.x.0",
            f"$JS.API.DIRECT.GET.{MODELS}.fedast.model.0.0.x",
        ]

    async def chunk(
        self, label: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """A chunk of an upload, with its label where this version and where earlier ones look."""
        now = {"Fedast-Upload": label, **(headers or {})}
        await self.publish(f"fedast.upload.{self.number}.chunk", data, reply, now)
        if " " not in label:
            await self.publish(f"fedast.upload.{self.number}.{label}", data, reply, headers)

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        with suppress(*TROUBLE, ValueError):  # NATS's client refuses some subjects by itself
            await self.connection.publish(
                subject, data, reply=reply, headers=dict(headers) if headers else None
            )

    async def flush(self) -> None:
        with suppress(*TROUBLE):
            await self.connection.flush(5)
