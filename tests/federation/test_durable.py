"""NATS loses what it has while the server runs, or the server's log goes back, or there are two
servers: training goes on to its end, and nobody is blamed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fedast.federation.nats import upkeep
from fedast.federation.nats.connection import connect
from fedast.federation.nats.names import MODELS, REQUESTS, SERVER_INBOX, UPDATES
from fedast.federation.nats.setup import SERVER
from fedast.federation.transport import Fenced, StorageLost, TransportError, Uploaded
from tests.federation.disks import filled, mounted
from tests.federation.field import FEDAST, Field
from tests.federation.nats_support import NatsBed

chaos = pytest.mark.chaos


def finish(field: Field) -> None:
    counts = field.finish()
    said = (field.folder / "server.log").read_text()
    assert "is quarantined" not in said
    assert "did not answer" not in said
    assert counts["drop invalid"] == 0


@chaos
def test_streams_deleted_while_it_trains(tmp_path: Path) -> None:
    with Field(tmp_path, rounds=80) as field:
        field.start_all()
        for entries, streams in ((40, (MODELS, REQUESTS, UPDATES)), (120, ())):
            field.wait_for_entries(entries)
            field.faults["streams deleted"] += 1
            asyncio.run(field.bed.lose(*streams))
        finish(field)
        assert "is gone" in (tmp_path / "server.log").read_text()


def wait_until_created_again(field: Field, times: int) -> None:
    log = field.folder / "server.log"
    field.wait(lambda: log.read_text().count("creating what is missing") >= times)


@chaos
@pytest.mark.parametrize("stream", [MODELS, REQUESTS, UPDATES])
def test_one_stream_deleted_again_and_again(tmp_path: Path, stream: str) -> None:
    with Field(tmp_path, rounds=120) as field:
        field.start_all()
        for times in (1, 2, 3):
            field.wait_for_entries(field.entries() + 40)
            field.faults[f"{stream} deleted"] += 1
            asyncio.run(field.bed.lose(stream))
            wait_until_created_again(field, times)
        finish(field)


@chaos
@pytest.mark.parametrize("server_too", [True, False])
def test_nats_comes_back_empty_or_older(tmp_path: Path, server_too: bool) -> None:
    data = "data"
    with Field(tmp_path, rounds=150) as field:
        field.start_all()
        folder = field.bed.layout.nats / data
        for entries, older in ((60, False), (120, True), (200, True), (260, False)):
            field.wait_for_entries(entries)
            field.bed.kill()
            shutil.copytree(folder, tmp_path / f"copy-{entries}")
            if older:
                field.bed.start()
                field.wait_for_entries(field.entries() + 30)
                field.bed.kill()
            field.faults["nats older" if older else "nats empty"] += 1
            killed = server_too and not field.ended
            if killed:
                field.kill("server")
            shutil.rmtree(folder)
            if older:
                shutil.copytree(tmp_path / f"copy-{entries}", folder)
            field.bed.start()
            if killed:
                field.start_server()
        finish(field)


@chaos
def test_a_log_restored_from_a_backup_goes_on(tmp_path: Path) -> None:
    with Field(tmp_path, rounds=200) as field:
        field.start_all()
        for entries in (60, 140):
            field.wait_for_entries(entries)
            field.kill("server")
            shutil.copytree(field.run, tmp_path / f"backup-{entries}")
            field.start_server()
            field.wait_for_entries(field.entries() + 60)
            field.kill("server")
            field.faults["log restored"] += 1
            shutil.rmtree(field.run)
            shutil.copytree(tmp_path / f"backup-{entries}", field.run)
            field.start_server()
        finish(field)
        assert "a new epoch begins" in (tmp_path / "server.log").read_text()


@chaos
def test_a_second_server_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with Field(tmp_path, rounds=250) as field:
        field.start_all()
        field.wait_for_entries(60)
        field.faults["second server"] += 1
        second = subprocess.run(
            [*FEDAST, "serve", str(field.config), "--creds",
             str(field.bed.layout.credentials(SERVER)), "--out", str(tmp_path / "second"),
             "--server", field.bed.url],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert second.returncode == 1
        said = second.stdout + second.stderr
        assert "another server is serving this federation" in said
        assert str(field.run) in said
        assert "Traceback" not in said
        assert not field.ended
        field.kill("server")
        field.start_server()  # at once: it is at the same place
        finish(field)


@chaos
def test_a_server_that_was_cut_off_is_fenced_off(tmp_path: Path) -> None:
    """It hangs, another takes over, and then it goes on: it must not touch anything."""
    with Field(tmp_path, rounds=60) as field:
        field.start_all()
        field.wait_for_entries(60)
        field.kill("server", signal.SIGSTOP)
        old = field.processes["server"]
        old_log = (tmp_path / "server.log").rename(tmp_path / "old.log")
        field.run = tmp_path / "second"
        field.start_server()
        field.wait_for_entries(40)
        old.send_signal(signal.SIGCONT)
        assert old.wait(60) == 1
        assert "another server has taken over this federation" in old_log.read_text()
        field.wait(lambda: field.ended, 240)
        assert field.processes["server"].returncode == 0


def test_uploads_that_somebody_removed_are_made_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(90):
            server, client = await bed.server(), await bed.client(0)
            await client.upload("a", b"a")
            found = await server.receive(20)
            assert isinstance(found, Uploaded)
            await server.acknowledge(found.sequence)
            server._reading.cancel()  # type: ignore[union-attr]  # it is slow for a moment
            await client.upload("b", b"b")
            vandal = await connect(
                [bed.url], bed.keys(SERVER), name="vandal", inbox_prefix=SERVER_INBOX
            )
            await vandal.jetstream().purge_stream(UPDATES)
            await vandal.close()
            assert server._uploads is not None
            server._reading = asyncio.create_task(server._read_uploads(server._uploads))
            while not isinstance(lost := await server.receive(20), StorageLost):
                pass
            assert lost.epoch
            await client.upload(f"b{lost.epoch}", b"b again")
            later = await server.receive(20)
            assert isinstance(later, Uploaded)
            assert later.data == b"b again"

    asyncio.run(go())


def test_a_server_elsewhere_waits_for_a_sign_of_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(90):
            first = await bed.server(where="machine a")
            with pytest.raises(Fenced, match=r"since .*: machine a; stop it first"):
                await bed.server(where="machine b")
            assert await first.receive(2.0) is None
            assert "is it still there?" in caplog.text
            caplog.clear()
            await first.close()
            await bed.server(where="machine b")
            assert "is it still there?" not in caplog.text  # it has said that it ended

    asyncio.run(go())


def test_a_server_that_ends_while_it_says_that_it_serves_still_says_that_it_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(90):
            first = await bed.server(where="machine a")
            fence = first._upkeep.fence
            before = fence._sequence
            await fence.renew()
            fence._sequence = before  # as if it had been cancelled before the answer came
            await first.close()
            await bed.server(where="machine b")
            assert "is it still there?" not in caplog.text

    asyncio.run(go())


@chaos
@pytest.mark.parametrize("log_too", [True, False])
def test_a_disk_of_nats_that_was_full_is_used_again(tmp_path: Path, log_too: bool) -> None:
    """Without starting nats-server again."""
    with (
        mounted(tmp_path / "small", 400) as disk,  # NATS takes three quarters, in 64 MB a stream
        Field(tmp_path, rounds=120, nats_on=disk, server_on=disk if log_too else None) as field,
    ):
        field.start_all()
        field.wait_for_entries(60)
        field.faults["disk of NATS full"] += 1
        with filled(disk):
            field.wait(lambda: "no space left" in field.bed.log)
            time.sleep(5)
        finish(field)


@pytest.mark.parametrize("room", ["50MB", "150MB", "220MB", "300MB"])
def test_a_disk_of_nats_that_is_too_small_is_named(tmp_path: Path, room: str) -> None:
    """Whichever of the streams has no room. If there is enough for all, if little, it is shared."""

    async def go() -> None:
        bed = NatsBed(tmp_path, clients=1)
        config = bed.layout.nats / "nats.conf"
        limit = f'store_dir: "data"\n  max_file_store: {room}'
        config.write_text(config.read_text().replace('store_dir: "data"', limit))
        async with bed, asyncio.timeout(60):
            if room == "300MB":
                await bed.server()
                return
            with pytest.raises(TransportError, match="NATS's disk"):
                await bed.server()

    asyncio.run(go())


def test_a_nats_that_is_slow_keeps_its_streams(tmp_path: Path) -> None:
    """It hangs for some seconds at each look: that is not a disk that was full."""

    async def settled() -> bool:
        return True

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(120):
            server = await bed.server()
            watch = server._upkeep._watch
            assert bed._process is not None
            assert server._keeping is not None
            server._keeping.cancel()  # only we look
            for _ in range(2):
                bed._process.send_signal(signal.SIGSTOP)
                looking = asyncio.create_task(watch.repair(settled))
                await asyncio.sleep(4.5)
                bed._process.send_signal(signal.SIGCONT)
                await looking
            assert await watch.look(settled) is None

    asyncio.run(go())


def test_a_nats_that_is_locked_up_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """JetStream answers nothing, as nats-server 2.15.1 sometimes does after its disk was full. What
    locks it up is a purge, so a stream that does not store is not purged."""
    monkeypatch.setattr(upkeep, "_SILENT", 0.5)

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(60):
            server, client = await bed.server(), await bed.client(0)
            watch = server._upkeep._watch

            async def no_answer(*_: object) -> str | None:
                watch._failed[UPDATES] = (0.0, 0)
                raise TimeoutError

            monkeypatch.setattr(type(watch), "look", no_answer)
            while "start it again" not in caplog.text:
                await asyncio.sleep(0.05)
            await client.upload("1-token", b"an update")
            while not isinstance(found := await server.receive(1.0), Uploaded):
                pass
            await server.acknowledge(found.sequence)
            info = await server._js.stream_info(UPDATES)
            assert info.state.messages == 1
            watch._failed.clear()
            await server.acknowledge(found.sequence)
            info = await server._js.stream_info(UPDATES)
            assert info.state.messages == 0

    asyncio.run(go())
    assert caplog.text.count("start it again") == 1
