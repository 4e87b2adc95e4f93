"""Loss of power, of the whole machine or of one of two: what was not synced is gone."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.federation.field import Field
from tests.federation.power import LossyDisk, NoSuchDisk

pytestmark = pytest.mark.chaos


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LossyDisk]:
    try:
        entered = LossyDisk(tmp_path / "disk").__enter__()
    except NoSuchDisk as error:
        pytest.skip(f"needs the right to mount a disk that can lose power: {error}")
    yield entered
    entered.__exit__()


def cut(field: Field, disk: LossyDisk, *, nats: bool, server: bool) -> None:
    """Everything on the disk's machine stops; what was not synced is gone; it starts again."""
    if nats:
        field.bed.kill()
    if server:
        field.kill("server")
    field.faults["power cut"] += 1
    disk.cut()
    if nats:
        field.bed.start()
    if server:
        field.start_server()


@pytest.mark.parametrize("lost", ["machine", "nats", "server"])
@pytest.mark.parametrize("sync", ["always", "2m"])
def test_power_is_lost(tmp_path: Path, disk: LossyDisk, lost: str, sync: str) -> None:
    nats, server = lost != "server", lost != "nats"
    chance = random.Random(lost)
    with Field(
        tmp_path,
        rounds=150,
        nats_on=disk.path if nats else None,
        server_on=disk.path if server else None,
    ) as field:
        field.bed.kill()
        config = field.bed.layout.nats_config
        text = config.read_text()
        assert "sync_interval: always" in text
        config.write_text(text.replace("sync_interval: always", f"sync_interval: {sync}"))
        disk.sync()
        field.bed.start()
        field.start_all()
        for entries in (60, 160, 260):
            field.wait_for_entries(entries)
            time.sleep(chance.random())
            if not field.ended:
                cut(field, disk, nats=nats, server=server)
        counts = field.finish()
        assert counts["drop invalid"] == 0
        assert "is quarantined" not in (tmp_path / "server.log").read_text()
