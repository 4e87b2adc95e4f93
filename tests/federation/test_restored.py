"""A federation that was restored from a backup trains on, with a NATS that has nothing stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import fedast, fedast_process
from tests.cli.test_operator import until
from tests.federation.nats_support import free_port
from tests.federation.support import audit, events


def updates(folder: str) -> int:
    """That have counted, of all tasks; 0 while the server is not here yet."""
    found: Any = json.loads(fedast("federation", "status", folder, "--json").stdout)
    tasks = {} if found["server"] is None else found["server"]["tasks"]
    return sum(task["updates"] for task in tasks.values())


@pytest.mark.slow
def test_a_restored_federation_trains_on_with_an_empty_nats(tmp_path: Path) -> None:
    first, again, file = (str(tmp_path / name) for name in ("first", "again", "b.tar.gz"))
    fedast("federation", "init", first, "--clients", "2", "--port", str(free_port()))
    config = Path(first) / "federation.toml"
    config.write_text(config.read_text().replace("0.93", "1.0").replace("0.85", "1.0"))
    try:
        fedast_process("federation", "up", first, "--detach")
        until(lambda: updates(first) > 100, "training")
        assert "entries of the server's log" in fedast("federation", "backup", first, file).stdout
        copied = updates(first)
        until(lambda: updates(first) > copied + 100, "it goes on")  # the copy is behind by now
    finally:
        fedast("federation", "down", first)
    fedast("federation", "restore", file, again)
    assert not (Path(again) / "nats" / "data").exists()
    try:
        fedast_process("federation", "up", again, "--detach")
        until(lambda: updates(again) > copied + 300, "the restored one trains")
        found = json.loads(fedast("federation", "status", again, "--json").stdout)
        assert found["server"]["quarantined"] == []
    finally:
        fedast("federation", "down", again)
    audit(Path(again) / "run")
    assert any(event["event"] == "aggregate" for event in events(Path(again) / "run"))
