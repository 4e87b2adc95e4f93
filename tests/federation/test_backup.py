"""Backups: made while a server runs, restored to what it had committed."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import tarfile
from pathlib import Path

import pytest

from fedast.federation.agent import Agent
from fedast.federation.audit import AuditTrail
from fedast.federation.backup import back_up, restore
from fedast.federation.certificates import Certificate, visible
from fedast.federation.keys import Authority
from fedast.federation.memory import Hub, MemoryServer
from fedast.federation.nats.setup import SERVER, Layout, client_name, initialise, register_of
from fedast.records.run import UnusableFolder
from fedast.run.federate import Federation
from tests.federation.support import agent, audit, federate, two_tasks


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path / "fed")
    initialise(found, 4, hosts=("localhost",), port=4222, config="")
    (found.root / "my_data.py").write_text("x = 1\n")
    (found.nats / "data").mkdir()
    (found.nats / "data" / "stored").write_text("by NATS")
    return found


def test_backups_made_while_it_trains_are_each_a_whole_federation(
    tmp_path: Path, layout: Layout
) -> None:
    """The server commits all the time; what is restored continues, and its books are right."""
    config = two_tasks(tmp_path, target=1.0, commit=0.0)
    AuditTrail(layout.run).write("control", "pause", "", "paused")

    async def go() -> list[Path]:
        hub, made = Hub(), []
        federation = Federation(config, MemoryServer(hub), layout.run)
        agents = [agent(hub, config, client) for client in range(4)]
        running = [asyncio.create_task(each.run()) for each in agents]
        serving = asyncio.create_task(federation.run())
        async with asyncio.timeout(120):
            for number in range(4):
                wanted = 40 * (number + 1)
                while federation.run_metrics.updates < wanted:
                    await asyncio.sleep(0.02)
                made.append(tmp_path / f"{number}.tar.gz")
                while True:  # until they are committed, too
                    about = await asyncio.to_thread(back_up, layout, made[-1], layout.run)
                    if about.entries > wanted:
                        break
                    made[-1].unlink()
                    await asyncio.sleep(0.1)
            federation.server.stop()
            await serving
            for each in agents:
                each.stop()
            await asyncio.gather(*running)
        return made

    made = asyncio.run(go())
    for number, file in enumerate(made):
        folder = tmp_path / f"restored-{number}"
        about = restore(file, folder)
        federation = Federation(config, MemoryServer(Hub()), folder / "run")
        federation.server.recover()  # replays, and compares with what was recorded
        assert federation.run_metrics.updates >= 40 * number
        assert federation.server._wal.count == about.entries
        federation.close()
        assert AuditTrail(folder / "run").path.read_text().count('"pause"') == 1

    async def more(federation: Federation, agents: list[Agent]) -> None:
        try:
            while federation.run_metrics.updates < before + 50:
                await asyncio.sleep(0.02)
        finally:
            federation.server.stop()

    before = federation.run_metrics.updates
    empty = Hub(sequences=itertools.count(10**6))  # what it numbers comes later, as it should
    asyncio.run(federate(config, folder / "run", empty, meanwhile=more))
    audit(folder / "run")
    assert not list(layout.run.glob(".backup-*"))


def test_keys_keep_their_permissions_and_nats_its_store(tmp_path: Path, layout: Layout) -> None:
    file = tmp_path / "b.tar.gz"
    back_up(layout, file, layout.run)
    assert file.stat().st_mode & 0o777 == 0o600
    restored = Layout(tmp_path / "again")
    restore(file, restored.root)
    for key in layout.root.rglob("key.pem"):
        copy = restored.root / key.relative_to(layout.root)
        assert copy.read_bytes() == key.read_bytes()
        assert copy.stat().st_mode & 0o777 == 0o600
    for name in ("federation.toml", "my_data.py", "nats/accounts.conf", "nats/nats.conf"):
        assert (restored.root / name).read_text() == (layout.root / name).read_text()
    assert not (restored.nats / "data").exists()
    with register_of(restored) as register:
        assert register.admit(1) == [client_name(4)]
    assert not list(restored.run.rglob("state/*"))  # nothing was committed yet


def test_nothing_is_overwritten_and_damage_is_noticed(tmp_path: Path, layout: Layout) -> None:
    file = tmp_path / "b.tar.gz"
    file.write_text("mine")
    with pytest.raises(UnusableFolder, match="exists already"):
        back_up(layout, file, layout.run)
    assert file.read_text() == "mine"
    with pytest.raises(UnusableFolder, match="not a whole backup"):
        restore(file, tmp_path / "x")
    file.unlink()
    back_up(layout, file, layout.run)
    with pytest.raises(UnusableFolder, match="exists already"):
        restore(file, layout.root)
    data = file.read_bytes()
    for broken in (data[:-200], data[: len(data) // 2], b""):
        bad = tmp_path / "bad.tar.gz"
        bad.write_bytes(broken)
        with pytest.raises(UnusableFolder, match="backup"):
            restore(bad, tmp_path / "x")
        assert not (tmp_path / "x").exists()
    changed = tmp_path / "changed.tar.gz"
    with tarfile.open(file) as old, tarfile.open(changed, "w:gz") as new:
        for member in old:
            if member.name != "nats/accounts.conf":
                new.addfile(member, old.extractfile(member))
    with pytest.raises(UnusableFolder, match=r"damaged \(nats/accounts.conf"):
        restore(changed, tmp_path / "x")
    evil = tmp_path / "evil.tar.gz"
    with tarfile.open(evil, "w:gz") as new:
        new.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(UnusableFolder, match="backup"):
        restore(evil, tmp_path / "x")
    assert not (tmp_path / "outside").exists()


def test_certificates_that_expire_are_seen_weeks_ahead(layout: Layout) -> None:
    found = visible(layout.credentials(SERVER))
    names = {certificate.name for certificate in found}
    assert names == {"authority", "nats", "server", "control", "observer",
                     *map(client_name, range(4))}  # fmt: skip
    assert not any(certificate.soon for certificate in found)
    authority = Authority(layout.authority, "fed")
    authority.issue(layout.credentials("client-2"), "client-2", number=2, days=20)
    first = visible(layout.credentials(SERVER))[0]
    assert (first.name, first.soon) == ("client-2", True)
    said = first.warning(layout.root)
    assert "expires in 19 days" in said
    assert f"fedast federation renew {layout.root} client-2, copy the new key" in said
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    assert "has expired" in Certificate("nats", past).warning()
