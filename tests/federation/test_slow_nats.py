"""A NATS that is slow is not taken for one that has stopped storing anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext

from fedast.federation.nats import watch as watch_module
from fedast.federation.nats.names import MODELS, REQUESTS, SERVING, UPDATES
from fedast.federation.nats.watch import Watch
from tests.federation.nats_support import NatsBed


@pytest.mark.parametrize("stores", [True, False])
def test_only_a_stream_that_stores_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: bool
) -> None:
    """``stores``: NATS stores the probes, but its answers come too late."""
    monkeypatch.setattr(watch_module, "_STUCK_AFTER", 0.0)

    async def settled() -> bool:
        return True

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(60):
            server = await bed.server()
            js: JetStreamContext = server._js
            await server._upkeep.end()
            server._keeping.cancel()  # type: ignore[union-attr]
            publish = js.publish

            async def late(subject: str, *rest: Any, **options: Any) -> Any:
                if "probe" in subject:
                    if stores:
                        await publish(subject, *rest, **options)
                    raise TimeoutError
                return await publish(subject, *rest, **options)

            monkeypatch.setattr(js, "publish", late)
            watch = Watch(js, server._connection)
            for _ in range(4 if stores else 2):
                await watch.repair(settled)
            names = {info.config.name for info in await js.streams_info()}
            ours = {REQUESTS, UPDATES, MODELS, SERVING}
            assert ours & names == (ours if stores else set())

    asyncio.run(go())
