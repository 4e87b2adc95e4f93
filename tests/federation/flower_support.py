"""A SuperLink's own state: Flower's Grid on one side, and on the other three nodes that we play."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from flwr.app import Message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fedast.federation.flower.client import OneRequest, reply
from fedast.federation.flower.server import FlowerServer
from fedast.federation.transport import ClientTransport, Delivery, ServerTransport

NODES = 3


class FlowerBed:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "flower"
        factory = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        self.state = factory.state()
        self.nodes = []
        for number in range(NODES):
            node = self.state.create_node(NOOP_FLWR_AID, "none", f"key {number}".encode(), 60.0)
            self.state.activate_node(node, 60.0)
            self.nodes.append(node)
        run = self.state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        TaskIdentity.task_id, TaskIdentity.run_id = 1, run
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        self.grid = InMemoryGrid(factory)
        self.grid.set_run(self.state.get_run_info(run_ids=[run])[0])

    async def server(self, after: int = 0, limit: int = 40 * 2**20) -> ServerTransport:
        server = FlowerServer(self.grid, self._folder, ttl=600.0, poll=0.05)
        for node in self.nodes:  # in this order, so that clients are who the tests say they are
            server._spool.number(node)
        await server.start(after, limit)
        return server

    async def started(self, after: int) -> tuple[ServerTransport, str]:
        return await self.server(after), ""  # a reply has no name that could be taken already

    async def lose(self) -> None:
        raise NotImplementedError

    async def client(self, number: int) -> ClientTransport:
        return FlowerNode(self, self.nodes[number])

    async def command(self, data: bytes) -> bytes:
        raise NotImplementedError


class FlowerNode:
    """What a SuperNode does: takes its messages one by one and has the ClientApp answer each."""

    def __init__(self, bed: FlowerBed, node: int) -> None:
        self._bed = bed
        self._node = node
        self._message: Message | None = None
        self._once: OneRequest | None = None

    @property
    def patience(self) -> float:
        return 3600.0

    async def next(self, timeout: float) -> Delivery | None:
        end = time.monotonic() + timeout
        while self._message is None and time.monotonic() < end:
            for message in self._bed.state.get_message_ins(self._node, limit=1):
                if message.metadata.message_type == "train":
                    self._message, self._once = message, OneRequest(message)
                    inner = await self._once.next(0.0)
                    assert inner is not None
                    return InHand(self, inner.data)
            await asyncio.sleep(0.02)
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        return None

    async def fetch(self, name: str) -> bytes | None:
        assert self._once is not None
        return await self._once.fetch(name)

    async def upload(self, name: str, data: bytes) -> None:
        assert self._once is not None
        assert self._once.name == name
        await self._once.upload(name, data)

    def finish(self) -> None:
        assert self._once is not None
        self._answer(self._message, self._once.answer or b"")
        self._message = self._once = None

    def _answer(self, message: Message | None, data: bytes) -> None:
        assert message is not None
        answer = reply(message, data)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        assert self._bed.state.store_message_res(answer) is not None

    async def hello(self, data: bytes) -> None:
        """It is asked for: by a message of its own."""

        async def say() -> None:
            while True:
                for message in self._bed.state.get_message_ins(self._node, limit=1):
                    assert message.metadata.message_type == "query"
                    self._answer(message, data)
                    return
                await asyncio.sleep(0.02)

        self._saying = asyncio.create_task(say())

    async def close(self) -> None:
        pass


class InHand:
    def __init__(self, node: FlowerNode, data: bytes) -> None:
        self._node = node
        self.data = data

    async def working(self) -> None:
        pass

    async def done(self) -> None:
        self._node.finish()

    async def give_back(self) -> None:
        raise NotImplementedError
