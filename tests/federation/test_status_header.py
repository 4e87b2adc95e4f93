"""A header that means something to NATS's own client must not stop the server's reading."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest

from fedast.federation.nats.names import inbox
from fedast.federation.nats.setup import client_name
from fedast.federation.transport import Uploaded
from tests.federation.nats_support import NatsBed


@pytest.mark.parametrize("status", ["x", "409", "404", "503", "100"])
def test_an_upload_with_a_status_header_stops_nobody(tmp_path: Path, status: str) -> None:
    async def body() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(60):
            server, honest = await bed.server(), await bed.client(1)
            keys = bed.keys(client_name(0))
            evil = await nats.connect(bed.url, tls=keys.context(), inbox_prefix=inbox(0).encode())
            for subject in ("fedast.upload.0.chunk", "fedast.upload.0.0-x.0-1"):
                await evil.publish(subject, b"x", headers={"Status": status})
            await evil.flush()
            await evil.close()
            await honest.upload("1-fine", b"fine")
            async with asyncio.timeout(20):
                while True:
                    found = await server.receive(1.0)
                    if isinstance(found, Uploaded) and found.client == 1:
                        return

    asyncio.run(body())
