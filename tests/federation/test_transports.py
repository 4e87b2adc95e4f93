"""The contract of transports, for the in-memory fake, the real nats-server with TLS, and (in
``make flower``, where flwr is installed) Flower's Grid over its own state of a SuperLink."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fedast.federation.memory import Hub, MemoryClient, MemoryServer, send_command
from fedast.federation.transport import ClientTransport, ServerTransport
from fedast.testing import transport_contract
from fedast.testing.transports import LIMIT, TransportBed
from tests.federation.nats_support import NatsBed


class MemoryBed:
    def __init__(self) -> None:
        self._hub = Hub(patience=1.0)

    async def server(self, after: int = 0, limit: int = LIMIT) -> ServerTransport:
        server = MemoryServer(self._hub)
        await server.start(after, limit)
        return server

    async def started(self, after: int) -> tuple[ServerTransport, str]:
        server = MemoryServer(self._hub)
        return server, await server.start(after, LIMIT)

    async def lose(self) -> None:
        self._hub.lose()

    async def client(self, number: int) -> ClientTransport:
        return MemoryClient(self._hub, number)

    async def command(self, data: bytes) -> bytes:
        return await send_command(self._hub, data)


@asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[TransportBed]:
    yield MemoryBed()


@asynccontextmanager
async def nats(folder: Path) -> AsyncIterator[TransportBed]:
    async with NatsBed(folder, clients=3) as found:
        yield found


@asynccontextmanager
async def flower(folder: Path) -> AsyncIterator[TransportBed]:
    from tests.federation.flower_support import FlowerBed

    yield FlowerBed(folder)


NOT_WITH_FLOWER = (
    "test_a_request_that_nobody_finishes_is_handed_out_again",
    "test_what_a_client_does_not_have_is_handed_out_again_at_once",
    "test_what_is_given_back_comes_again_at_once",
    "test_a_withdrawn_request_is_not_handed_out",
    "test_control_commands_arrive_and_are_answered",
    "test_of_two_servers_the_first_is_fenced_off",
    "test_a_loss_is_noticed_and_what_comes_then_has_higher_numbers",
)

TestMemory = transport_contract(memory)
TestNats = transport_contract(nats)
TestFlower = pytest.mark.flower(
    transport_contract(
        flower,
        without=dict.fromkeys(NOT_WITH_FLOWER, "Flower does not: docs/flower.md, What differs"),
    )
)
