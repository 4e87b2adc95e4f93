"""What only the NATS transport has: parts of an upload on both sides of a server's crash."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.js.errors import APIError

from fedast.federation.nats.heartbeats import Heartbeats
from fedast.federation.nats.names import CHUNK, UPLOAD_HEADER, upload_subject
from fedast.federation.nats.server import NatsServer
from fedast.federation.nats.upkeep import Upkeep
from fedast.federation.transport import Uploaded
from tests.federation.nats_support import NatsBed


async def upload_of(server: object) -> Uploaded:
    async with asyncio.timeout(20):
        while True:
            found = await server.receive(1.0)  # type: ignore[attr-defined]
            if isinstance(found, Uploaded):
                return found


def test_an_upload_whose_parts_came_before_and_after_a_crash_is_whole(tmp_path: Path) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(60):
            server, client = await bed.server(), await bed.client(0)
            js = client._js
            await js.publish(upload_subject(0), b"x" * CHUNK, headers={UPLOAD_HEADER: "long.0-2"})
            await client.upload("short", b"whole")
            short = await upload_of(server)
            assert short.data == b"whole"
            await server.acknowledge(short.sequence)  # what is not whole yet is not acknowledged
            await server.close()
            again = await bed.server(after=short.sequence)
            await js.publish(upload_subject(0), b"second half", headers={UPLOAD_HEADER: "long.1-2"})
            long = await upload_of(again)
            assert (long.name, long.data) == ("long", b"x" * CHUNK + b"second half")
            assert long.sequence > short.sequence
            await again.acknowledge(long.sequence)
            info = await again._js.stream_info("FEDAST_UPDATES")
            assert info.state.messages == 0

    asyncio.run(go())


def test_a_server_waits_for_nats(tmp_path: Path) -> None:
    """NATS goes away between two starts; the server is patient, and so are clients."""

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(60):
            server, client = await bed.server(), await bed.client(0)
            await server.send(0, "1", b"one", "0.0.none")
            bed.kill()

            async def restart() -> None:
                await asyncio.sleep(1.5)
                bed.start()

            restarting = asyncio.create_task(restart())
            await server.send(0, "2", b"two", "0.0.none")
            await restarting
            seen: list[bytes] = []
            while len(seen) < 2:
                delivery = await client.next(2.0)
                if delivery is not None:
                    seen.append(delivery.data)
                    await delivery.done()
            assert seen == [b"one", b"two"]

    asyncio.run(go())


@pytest.mark.parametrize(
    "subject", ["{n}.0-1", "junk", "{n}.5-3", "{n}.0-2"], ids=["whole", "junk", "odd", "begun"]
)
def test_uploads_fill_their_own_room_only(tmp_path: Path, subject: str) -> None:
    """While the server is away, a client floods: it can fill neither the disk nor the way."""

    async def go() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(120):
            server, flood, honest = await bed.server(), await bed.client(0), await bed.client(1)
            await server.close()
            came = 0

            async def fill() -> None:
                nonlocal came
                while came < 100:
                    headers = {UPLOAD_HEADER: subject.format(n=came)}
                    await flood._js.publish(
                        upload_subject(0), b"x" * CHUNK, headers=headers, timeout=20
                    )
                    came += 1

            with pytest.raises(APIError, match="maximum messages per subject"):
                await fill()
            assert came == 64
            await honest.upload("mine", b"y" * CHUNK)  # there is room for others
            again = await bed.server()
            await again.send(1, "5", b"a request", "0.0.none")  # there is room for everything else
            while (found := await upload_of(again)).client != 1:
                await again.acknowledge(found.sequence)
            assert found.data == b"y" * CHUNK
            await again.acknowledge(found.sequence)

    asyncio.run(go())


def test_parts_that_do_not_fit_together_are_passed_over(tmp_path: Path) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(60):
            server, client = await bed.server(limit=9 * 2**20), await bed.client(0)
            for part in ("x.3-5", "x.0-2", "x.1-2", "y.7-3", "z.0-99999999", "w.a-b", "v"):
                await client._js.publish(upload_subject(0), b"", headers={UPLOAD_HEADER: part})
            await client.upload("good", b"fine")
            assert (await upload_of(server)).name == "good"

    asyncio.run(go())


def test_nothing_goes_on_after_a_server_has_ended(tmp_path: Path) -> None:
    """It is told to end while it creates streams again. What went on would fail for want of a
    connection, and asyncio would print that nobody noticed."""

    def ours() -> set[str]:
        known = (NatsServer, Heartbeats, Upkeep)
        names = [str(task.get_coro()) for task in asyncio.all_tasks()]
        return {name for name in names if any(kind.__name__ in name for kind in known)}

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(60):
            server, begun = await bed.server(), asyncio.Event()
            assert ours()

            async def slowly() -> int:
                begun.set()
                await asyncio.sleep(60)
                return 0

            server._upkeep._prepare = slowly
            await bed.lose()
            await begun.wait()
            await server.close()
            assert not ours()

    asyncio.run(go())
