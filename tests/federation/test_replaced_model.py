"""A client trains on the model that its request names, or on none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from fedast.federation import wire
from fedast.federation.memory import Hub, MemoryServer
from tests.federation.support import agent, two_tasks


def test_a_model_that_was_replaced_on_its_way_is_not_trained_on(tmp_path: Path) -> None:
    hub = Hub()
    server = MemoryServer(hub)
    client = agent(hub, two_tasks(tmp_path), 0)
    size = client._training.size("second")
    ours, theirs = (
        wire.encode(wire.Model("second", 1, np.full(size, value, np.float32)))
        for value in (0.0, 1.0)
    )
    name = wire.model_name(ours, 1, 1)

    async def answers(request: int, model: bytes) -> wire.Update:
        await server.publish(name, model)
        asked = wire.Request("train", request, "token", "second", 1, name, size, half=False)
        await server.send(0, f"{request}", wire.encode(asked), name)
        delivery = await client._transport.next(30.0)
        assert delivery is not None
        await client.serve(delivery)
        while (found := await server.receive(30.0)) is None:
            pass
        return wire.decode(found.data, wire.Update)  # type: ignore[union-attr]

    async def go() -> None:
        await server.start(0, 2**20)
        refused = await answers(1, theirs)
        assert refused.vector is None
        assert "does not match the digest" in (refused.failed or "")
        trained = await answers(2, ours)
        assert trained.failed is None
        assert trained.vector is not None

    asyncio.run(go())
