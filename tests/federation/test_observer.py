"""The read-only key, with the real nats-server."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import nats
import pytest

from fedast.federation import wire
from fedast.federation.nats.client import NoFederation, NoServer, send_command
from fedast.federation.nats.names import CONTROL_SUBJECT, MODELS, OBSERVER_INBOX, STATUS_SUBJECT
from fedast.federation.nats.setup import CONTROL, OBSERVER
from fedast.run.federate import Federation
from tests.federation.nats_support import NatsBed
from tests.federation.support import two_tasks


def test_the_observer_may_ask_and_nothing_else(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, clients=1)

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(120):
            connection = await bed.server()
            federation = Federation(config, connection, tmp_path / "run")
            serving = asyncio.create_task(federation.run())

            async def ask(verb: str, key: str) -> str:
                data = wire.encode(wire.Control(verb))
                answer = await send_command([bed.url], bed.keys(key), data, 30, key=key)
                return wire.decode(answer, wire.Control).answer

            assert json.loads(await ask("status", OBSERVER))["client_count"] == 0
            assert (await ask("halt", OBSERVER)).startswith("refused: ")  # the server says so
            assert not federation.server._stopping
            errors: list[str] = []

            async def failed(error: Exception) -> None:
                errors.append(str(error).lower())

            raw = await nats.connect(
                bed.url, tls=bed.keys(OBSERVER).context(), error_cb=failed,
                inbox_prefix=OBSERVER_INBOX.encode(),
            )  # fmt: skip
            order = wire.encode(wire.Control("halt"))
            forbidden = (
                CONTROL_SUBJECT, "fedast.hello.0", "fedast.upload.0.1-x.0-1",
                "fedast.model.0.0.x.0", f"$JS.API.STREAM.INFO.{MODELS}",
                f"$JS.API.DIRECT.GET.{MODELS}.fedast.model.0",
            )  # fmt: skip
            for subject in forbidden:  # NATS says so
                with pytest.raises(Exception):  # noqa: B017, PT011 - a time-out, mostly
                    await raw.request(subject, order, timeout=0.3)
            hidden = ("fedast.>", ">", "_INBOX_control.>", STATUS_SUBJECT)
            for subject in hidden:
                await raw.subscribe(subject)
            await raw.flush()
            async with asyncio.timeout(30):
                while not all(f'"{s.lower()}"' in " ".join(errors) for s in (*forbidden, *hidden)):
                    await asyncio.sleep(0.05)
            # A flood of questions does not keep the server from its work, nor commands from it.
            for _ in range(3000):
                await raw.publish(STATUS_SUBJECT, order, reply=f"{OBSERVER_INBOX}.x")
            await raw.flush()
            assert (await ask("pause", CONTROL)).startswith("paused")
            assert "the server commits" in await ask("halt", CONTROL)
            await serving
            await raw.close()
        written = (tmp_path / "run" / "audit.jsonl").read_text().splitlines()
        assert len(written) < 1000  # of 3,000: a flood does not fill the disk
        last = [json.loads(line) for line in written[-2:]]
        assert [line["who"] for line in last if line["command"] == "halt"][-1] == "control"

    asyncio.run(go())


def test_asking_ends_whatever_is_wrong(tmp_path: Path) -> None:
    async def go() -> None:
        bed = NatsBed(tmp_path, clients=1)
        data = wire.encode(wire.Control("status"))
        async with asyncio.timeout(60):
            with pytest.raises(NoFederation, match="nobody answers"):
                await send_command([bed.url], bed.keys(CONTROL), data, patience=0.1)
            with socket.socket() as mute:  # it takes the connection and says nothing
                mute.bind(("127.0.0.1", bed.port))
                mute.listen()
                with pytest.raises(NoFederation):
                    await send_command([bed.url], bed.keys(CONTROL), data, 1.0, patience=0.1)
        async with bed, asyncio.timeout(60):
            with pytest.raises(NoServer, match="no FedAST server does"):
                await send_command([bed.url], bed.keys(CONTROL), data)

    asyncio.run(go())


def test_a_client_is_told_over_nats_why_it_is_not_admitted(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, clients=2)

    async def go() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(120):
            federation = Federation(config, await bed.server(), tmp_path / "run")
            serving = asyncio.create_task(federation.run())
            client = await bed.client(0)
            hello = wire.encode(wire.Hello(0, "fedast 7", ("digits-mlp", "second")))
            await client.hello(hello[:4] + b"\x07" + hello[5:])
            while (delivery := await client.next(1.0)) is None:
                pass
            notice = wire.decode_notice(delivery.data)
            assert notice is not None
            assert "its wire format is 7" in notice.text
            # It has been mended and is admitted: nothing is left for it to read.
            await delivery.give_back()
            await client.hello(hello)
            while 0 not in federation.server.state.pool:
                await asyncio.sleep(0.05)
            info = await federation.server._transport._js.stream_info("FEDAST_REQUESTS")  # type: ignore[attr-defined]
            assert info.state.messages == 0
            federation.server.stop()
            await serving

    asyncio.run(go())
