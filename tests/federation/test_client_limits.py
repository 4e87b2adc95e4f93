"""What one key can make NATS hold is limited, and there may be many keys."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import nats
import pytest
from nats.js.errors import APIError

from fedast.federation.nats.connection import connect
from fedast.federation.nats.names import (
    MODELS,
    REQUESTS,
    SERVER_INBOX,
    UPDATES,
    UPLOAD_HEADER,
    inbox,
    upload_subject,
)
from fedast.federation.nats.server import NatsServer
from fedast.federation.nats.setup import SERVER, client_name, register_of
from fedast.federation.transport import Uploaded
from tests.federation.nats_support import NatsBed
from tests.federation.test_nats import upload_of


def test_a_key_has_few_connections(tmp_path: Path) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(60):
            context = bed.keys(client_name(0)).context()
            opened = []
            refusals = 0
            for _ in range(12):
                try:
                    connection = await nats.connect(
                        bed.url, tls=context, allow_reconnect=False, connect_timeout=10,
                        inbox_prefix=inbox(0).encode(),
                    )  # fmt: skip
                    await connection.flush(10)
                    opened.append(connection)
                except Exception:
                    refusals += 1
            assert (len(opened), refusals) == (3, 9)
            assert "maximum account active connections exceeded" in bed.log
            await bed.client(1)  # nobody else is affected
            for connection in opened:
                await connection.close()
            await (await bed.client(0)).hello(b"")  # and when they are gone, nor is the owner

    asyncio.run(go())


def test_a_key_has_few_subscriptions(tmp_path: Path) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(60):
            connection = await nats.connect(
                bed.url, tls=bed.keys(client_name(0)).context(), allow_reconnect=False,
                inbox_prefix=inbox(0).encode(),
            )  # fmt: skip
            with suppress(nats.errors.Error):
                for number in range(100):
                    await connection.subscribe(f"{inbox(0)}.{number}")
                await connection.flush(10)
            while connection.is_connected:
                await asyncio.sleep(0.05)
            assert "maximum subscriptions exceeded" in bed.log

    asyncio.run(go())


def test_a_message_id_shadows_no_upload_and_is_soon_forgotten(tmp_path: Path) -> None:
    """Ids are chosen by whoever sends, and NATS has one table of them for the whole stream."""

    async def go() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(60):
            server, evil, honest = await bed.server(), await bed.client(0), await bed.client(1)
            for name in ("1.5-token.0", "5-token", "5-token.0-1", "1.5-token.0-1"):
                await evil._js.publish(upload_subject(0), b"", headers={"Nats-Msg-Id": name})
            await honest.upload("5-token", b"honest")
            found = await upload_of(server)
            assert (found.client, found.name, found.data) == (1, "5-token", b"honest")
            info = await server._js.stream_info(UPDATES)
            assert 0 < (info.config.duplicate_window or 0) <= 0.1

    asyncio.run(go())


def test_only_so_many_uploads_of_a_client_wait(tmp_path: Path) -> None:
    """However small they are, and whatever they are called; others are not held up by them."""

    async def go() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(60):
            server, evil, honest = await bed.server(), await bed.client(0), await bed.client(1)
            await server.close()
            stored = 0

            async def flood() -> None:
                nonlocal stored
                while stored < 1000:
                    headers = {UPLOAD_HEADER: f"{stored}.0-1", "Nats-Msg-Id": "x" * 60_000}
                    headers["Nats-Msg-Id"] += str(stored)
                    await evil._js.publish(upload_subject(0), b"", headers=headers)
                    stored += 1

            with pytest.raises(APIError, match="maximum messages per subject"):
                await flood()
            assert stored == 64
            await honest.upload("1-mine", b"honest")
            again = await bed.server()
            seen: list[Uploaded] = []
            while not seen or seen[-1].client != 1:
                seen.append(await upload_of(again))
            assert len(seen) == 65
            await again.acknowledge(seen[-1].sequence)
            await evil.upload("more", b"")  # there is room again

    asyncio.run(go())


def test_an_upgraded_folder_goes_on_where_it_was(tmp_path: Path) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=2, separated=False) as bed, asyncio.timeout(60):
            server, client = await bed.server(), await bed.client(1)
            await server.publish("0.0.digest", b"the model")
            await server.send(1, "a", b"a request", "0.0.digest")
            await client.upload("1-token", b"an update")
            await server.close()
            await client.close()
            bed.kill()
            with register_of(bed.layout) as register:
                register.upgrade()
            bed.start()
            client = await bed.client(1)  # with the key that it had
            assert await client.fetch("0.0.digest") == b"the model"
            assert (await upload_of(await bed.server())).data == b"an update"
            delivery = await client.next(10.0)
            assert delivery is not None
            assert delivery.data == b"a request"

    asyncio.run(go())


def test_every_stream_is_limited(tmp_path: Path) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(60):
            server = await bed.server()
            for stream in (REQUESTS, UPDATES, MODELS):
                config = (await server._js.stream_info(stream)).config
                for limit in (config.max_bytes, config.max_msgs, config.max_msg_size):
                    assert limit is not None
                    assert limit > 0

    asyncio.run(go())


def test_more_than_a_thousand_clients_have_queues(tmp_path: Path) -> None:
    """nats-server 2.15 stops at 1,000 consumers of a stream unless it is told otherwise."""

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(300):
            keys = bed.keys(SERVER)
            connection = await connect(
                [bed.url], keys, name="server", inbox_prefix=SERVER_INBOX, patience=15
            )
            server = NatsServer(connection, range(1200), patience=1.0)
            await server.start(0, 2**20)
            info = await server._js.stream_info(REQUESTS)
            assert info.state.consumer_count == 1200
            await server.close()

    asyncio.run(go())
