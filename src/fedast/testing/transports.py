"""What every transport must keep to: see ``fedast.federation.transport`` for the promises.

A transport is tried out in a *bed*: something that opens a server and clients of one federation,
with a real network behind them if the transport has one. A request that nobody works on must come
again after about a second there (``redeliver_after = 1.0``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedast.federation import wire
from fedast.federation.transport import (
    ClientTransport,
    ControlCommand,
    Fenced,
    Greeted,
    ServerTransport,
    StorageLost,
    Uploaded,
)
from fedast.testing.transport_bed import LIMIT as LIMIT
from fedast.testing.transport_bed import OpenBed
from fedast.testing.transport_bed import TransportBed as TransportBed


def transport_contract(
    open_bed: OpenBed, *, without: Mapping[str, str] | None = None
) -> type[TransportContract]:
    """The suite for a transport; ``without`` gives the reasons for tests that do not apply."""
    fields: dict[str, Any] = {"open_bed": staticmethod(open_bed)}
    for name, reason in (without or {}).items():
        if name not in vars(TransportContract):
            raise ValueError(f"the suite has no test {name!r}")
        fields[name] = _skipped(reason)
    return type("TestTransport", (TransportContract,), fields)


def _skipped(reason: str) -> Callable[..., None]:
    def test(self: TransportContract) -> None:
        pytest.skip(reason)

    return test


async def _answer(client: ClientTransport, data: bytes) -> None:
    """Take the next request and upload this, under the request's name."""
    delivery = await client.next(5.0)
    assert delivery is not None
    await client.upload(delivery.data.decode(), data)
    await delivery.done()


async def _upload_of(server: ServerTransport) -> Uploaded:
    async with asyncio.timeout(20):
        while True:
            found = await server.receive(1.0)
            if isinstance(found, Uploaded):
                return found


async def _read_all(server: ServerTransport) -> None:
    async with asyncio.timeout(20):
        while True:
            await server.receive(1.0)


async def _upload_within(server: ServerTransport, seconds: float) -> Uploaded | None:
    try:
        async with asyncio.timeout(seconds):
            return await _upload_of(server)
    except TimeoutError:
        return None


class TransportContract:
    """The suite; ``transport_contract`` fills in the bed."""

    open_bed: ClassVar[OpenBed]

    def _check(
        self, folder: Path, body: Callable[[TransportBed], Coroutine[Any, Any, None]]
    ) -> None:
        async def go() -> None:
            async with type(self).open_bed(folder) as bed, asyncio.timeout(60):
                await body(bed)

        asyncio.run(go())

    def test_requests_are_first_come_first_served_one_at_a_time(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(0)
            for number in (3, 1, 2):
                await server.send(0, str(number), f"request {number}".encode(), "0.0.none")
            await server.send(1, "9", b"another's", "0.0.none")
            seen = []
            for _ in range(3):
                delivery = await client.next(5.0)
                assert delivery is not None
                seen.append(delivery.data)
                assert await client.next(0.3) is None  # one at a time
                await delivery.done()
            assert seen == [b"request 3", b"request 1", b"request 2"]
            assert await client.next(0.3) is None

        self._check(tmp_path, body)

    def test_sending_again_what_is_queued_changes_nothing(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(0)
            await server.send(0, "7", b"first", "0.0.none")
            await server.send(0, "7", b"second", "0.0.none")
            delivery = await client.next(5.0)
            assert delivery is not None
            assert delivery.data == b"first"
            await server.send(0, "7", b"third", "0.0.none")  # in the client's hands
            await delivery.done()
            assert await client.next(0.3) is None

        self._check(tmp_path, body)

    def test_a_request_that_nobody_finishes_is_handed_out_again(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server = await bed.server()
            await server.send(0, "1", b"work", "0.0.none")
            first = await (await bed.client(0)).next(5.0)
            assert first is not None  # and its client dies
            again = await (await bed.client(0)).next(6.0)
            assert again is not None
            assert again.data == b"work"

        self._check(tmp_path, body)

    def test_what_a_client_does_not_have_is_handed_out_again_at_once(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server = await bed.server()
            await server.send(0, "1", b"work", "0.0.none")
            await server.send(0, "2", b"more", "0.0.none")
            assert await (await bed.client(0)).next(5.0) is not None  # and its client dies
            await server.redeliver(0)
            client = await bed.client(0)
            for expected in (b"work", b"more"):
                delivery = await client.next(0.7)  # sooner than by patience
                assert delivery is not None
                assert delivery.data == expected
                await delivery.done()
            assert await client.next(1.5) is None

        self._check(tmp_path, body)

    def test_work_under_way_is_not_handed_out_again(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(0)
            await server.send(0, "1", b"long work", "0.0.none")
            delivery = await client.next(5.0)
            assert delivery is not None
            for _ in range(8):
                await asyncio.sleep(0.3)
                await delivery.working()
                assert await client.next(0.05) is None
            await delivery.done()
            assert await client.next(1.5) is None

        self._check(tmp_path, body)

    def test_what_is_given_back_comes_again_at_once(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(0)
            await server.send(0, "1", b"work", "0.0.none")
            delivery = await client.next(5.0)
            assert delivery is not None
            await delivery.give_back()
            again = await client.next(0.9)
            assert again is not None

        self._check(tmp_path, body)

    def test_a_withdrawn_request_is_not_handed_out(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(0)
            await server.send(0, "1", b"one", "0.0.none")
            await server.send(0, "2", b"two", "0.0.none")
            await server.withdraw(0, "1")
            await server.withdraw(0, "99")
            delivery = await client.next(5.0)
            assert delivery is not None
            assert delivery.data == b"two"

        self._check(tmp_path, body)

    def test_uploads_come_once_in_order_and_again_until_acknowledged(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server = await bed.server()
            clients = [await bed.client(number) for number in (0, 1)]
            found = []
            for name in ("a", "b", "c"):
                for number, client in enumerate(clients):
                    await server.send(number, name, name.encode(), "0.0.none")
                    await _answer(client, name.encode())
                    found.append(await _upload_of(server))
            said = [(upload.client, upload.name) for upload in found]
            assert said == [(0, "a"), (1, "a"), (0, "b"), (1, "b"), (0, "c"), (1, "c")]
            assert [upload.data for upload in found[:2]] == [b"a", b"a"]
            places = [upload.sequence for upload in found]
            assert places == sorted(set(places))
            assert await _upload_within(server, 0.3) is None
            await server.acknowledge(places[1])
            await server.close()
            again = await bed.server(
                after=places[1]
            )  # it was killed: unacknowledged uploads come again
            assert [(await _upload_of(again)).sequence for _ in range(4)] == places[2:]

        self._check(tmp_path, body)

    def test_what_a_log_that_went_back_needs_again_can_be_uploaded_again(
        self, tmp_path: Path
    ) -> None:
        async def body(bed: TransportBed) -> None:
            server, epoch = await bed.started(0)
            client = await bed.client(0)
            await server.send(0, f"a{epoch}", f"a{epoch}".encode(), "0.0.none")
            await _answer(client, b"first")
            found = await _upload_of(server)
            await server.acknowledge(found.sequence)
            await server.close()
            again, another = await bed.started(found.sequence)
            assert another == epoch, "nothing was lost: names stay as they are"
            await again.close()
            restored, new = await bed.started(0)
            await restored.send(0, f"a{new}", f"a{new}".encode(), "0.0.none")
            await _answer(client, b"second")
            assert (await _upload_of(restored)).data == b"second"

        self._check(tmp_path, body)

    def test_of_two_servers_the_first_is_fenced_off(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            first, client = await bed.server(), await bed.client(0)
            await first.send(0, "a", b"a", "0.0.none")
            await _answer(client, b"a")
            found = await _upload_of(first)
            second = await bed.server()
            with pytest.raises(Fenced):
                await first.acknowledge(found.sequence)
            with pytest.raises(Fenced):
                await _read_all(first)
            assert (await _upload_of(second)).data == b"a"

        self._check(tmp_path, body)

    def test_a_loss_is_noticed_and_what_comes_then_has_higher_numbers(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(0)
            await server.publish("0.1.abc", b"model")
            await server.send(0, "a", b"a", "0.1.abc")
            await _answer(client, b"a")
            found = await _upload_of(server)
            await server.acknowledge(found.sequence)
            await server.send(0, "b", b"b", "0.1.abc")
            await bed.lose()
            async with asyncio.timeout(20):
                while not isinstance(await server.receive(1.0), StorageLost):
                    pass
            await server.publish("0.1.abc", b"model")
            await server.send(0, "b", b"b", "0.1.abc")
            delivery = None
            while delivery is None:
                delivery = await client.next(2.0)
            assert await client.fetch("0.1.abc") == b"model"
            await client.upload("b", b"b")
            await delivery.done()
            later = await _upload_of(server)
            assert (later.data, later.sequence > found.sequence) == (b"b", True)
            await server.acknowledge(later.sequence)
            await server.close()
            again = await bed.server(after=later.sequence)
            await again.send(0, "c", b"c", "0.1.abc")
            delivery = None
            while delivery is None:
                delivery = await client.next(2.0)
            await client.upload("c", b"c")
            await delivery.done()
            assert (await _upload_of(again)).sequence > later.sequence

        self._check(tmp_path, body)

    def test_uploading_twice_is_uploading_once(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(0)
            await server.send(0, "a", b"a", "0.0.none")
            delivery = await client.next(5.0)
            assert delivery is not None
            await client.upload("a", b"first")
            await client.upload("a", b"second")
            await delivery.done()
            assert (await _upload_of(server)).data == b"first"
            assert await _upload_within(server, 0.5) is None

        self._check(tmp_path, body)

    def test_large_things_travel_whole(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(2)
            large = bytes(range(256)) * 40_000  # 10 MB
            await server.publish("0.5.large", large)
            await server.send(2, "large", b"large", "0.5.large")
            delivery = await client.next(5.0)
            assert delivery is not None
            assert await client.fetch("0.5.large") == large
            await client.upload("large", large)
            await delivery.done()
            assert (await _upload_of(server)).data == large

        self._check(tmp_path, body)

    def test_what_is_too_long_is_cut_and_said(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(limit=1000), await bed.client(0)
            found = []
            for name, data in (("short", b"x" * 1000), ("long", b"x" * 1001), ("after", b"y")):
                await server.send(0, name, name.encode(), "0.0.none")
                await _answer(client, data)
                found.append(await _upload_of(server))
            assert [(u.name, u.oversized) for u in found] == [
                ("short", False), ("long", True), ("after", False)
            ]  # fmt: skip
            assert all(len(upload.data) <= 1000 for upload in found)

        self._check(tmp_path, body)

    def test_models_are_there_until_they_are_retired(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(0)

            async def fetched(name: str, model: str) -> bytes | None:
                await server.send(0, name, name.encode(), model)
                delivery = await client.next(5.0)
                assert delivery is not None
                found = await client.fetch(model)
                await delivery.done()
                return found

            assert await fetched("a", "0.0.nothing") is None
            await server.publish("0.1.abc", b"model")
            await server.publish("0.1.abc", b"model")
            assert await fetched("b", "0.1.abc") == b"model"
            await server.retire("0.1.abc")
            assert await fetched("c", "0.1.abc") is None
            await server.retire("0.1.abc")

        self._check(tmp_path, body)

    def test_greetings_arrive(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server, client = await bed.server(), await bed.client(1)
            hello = wire.encode(wire.Hello(1, "test", ("a",)))
            await client.hello(hello)
            async with asyncio.timeout(10):
                while await server.receive(1.0) != Greeted(1, hello):
                    pass

        self._check(tmp_path, body)

    def test_control_commands_arrive_and_are_answered(self, tmp_path: Path) -> None:
        async def body(bed: TransportBed) -> None:
            server = await bed.server()
            asking = asyncio.create_task(bed.command(b"status?"))
            asked = await server.receive(5.0)
            assert isinstance(asked, ControlCommand)
            assert asked.data == b"status?"
            await server.answer(asked, b"fine")
            assert await asking == b"fine"

        self._check(tmp_path, body)
