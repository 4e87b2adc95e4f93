"""A client that waits for requests asks NATS once in a long time, and yet gets one when it is sent.

What was asked here lasts ten minutes, longer than the test: a request comes because NATS or the
client noticed what happened, not because the client asked again after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fedast.federation.nats import client as client_module
from fedast.federation.nats.client import NatsClient
from fedast.federation.nats.names import REQUESTS
from fedast.federation.nats.server import NatsServer
from fedast.federation.nats.setup import register_of
from fedast.federation.transport import StorageLost
from tests.federation.nats_support import NatsBed

Happening = Callable[[NatsBed, NatsServer, NatsClient], Awaitable[None]]


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_LONGEST_PULL", 600.0)


async def _noticed(server: NatsServer) -> None:
    """Wait until the server has created again what NATS lost."""
    while not isinstance(await server.receive(1.0), StorageLost):
        pass


async def _nothing(bed: NatsBed, server: NatsServer, client: NatsClient) -> None:
    pass


async def _somebody_is_admitted(bed: NatsBed, server: NatsServer, client: NatsClient) -> None:
    with register_of(bed.layout) as register:
        register.admit(1)
    bed.reload()


async def _the_queue_is_made_anew(bed: NatsBed, server: NatsServer, client: NatsClient) -> None:
    await server.redeliver(0)


async def _the_stream_is_lost(bed: NatsBed, server: NatsServer, client: NatsClient) -> None:
    await bed.lose(REQUESTS)
    await _noticed(server)


async def _nats_is_killed(bed: NatsBed, server: NatsServer, client: NatsClient) -> None:
    bed.kill()
    bed.start()
    await _noticed(server)


@pytest.mark.parametrize(
    "happens",
    [
        _nothing,
        _somebody_is_admitted,
        _the_queue_is_made_anew,
        _the_stream_is_lost,
        _nats_is_killed,
    ],
)
def test_a_waiting_client_gets_a_request_whatever_happened(
    tmp_path: Path, happens: Happening
) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=1, patience=600) as bed, asyncio.timeout(120):
            server, client = await bed.server(), await bed.client(0)
            for name in ("1", "2"):
                assert await client.next(0.2) is None
                await happens(bed, server, client)
                await server.send(0, name, b"a request", "model")
                while (delivery := await client.next(1.0)) is None:
                    pass
                assert delivery.data == b"a request"
                await delivery.done()

    asyncio.run(go())


def test_a_waiting_client_asks_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=1, patience=600) as bed, asyncio.timeout(60):
            await bed.server()
            client = await bed.client(0)
            for _ in range(20):
                assert await client.next(0.05) is None
            assert client._connection.stats["out_msgs"] == 1

    asyncio.run(go())


def test_what_nats_forgot_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a node of a cluster that is lost forgets it, while the client is connected to another."""
    monkeypatch.setattr(client_module, "_LONGEST_PULL", 1.0)

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1, patience=600) as bed, asyncio.timeout(60):
            server, client = await bed.server(), await bed.client(0)
            right, client._queue._subject = client._queue._subject, "nobody.gets.this"
            assert await client.next(0.2) is None
            client._queue._subject = right
            await server.send(0, "1", b"a request", "model")
            while (delivery := await client.next(0.2)) is None:
                pass
            assert delivery.data == b"a request"

    asyncio.run(go())
