"""What an operator sees of a server and does to it: health, meters, alerts, the audit trail."""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedast.cli.federation import alerts
from fedast.federation import health, wire
from fedast.federation.agent import Agent
from fedast.federation.audit import AUDIT, AuditTrail
from fedast.federation.memory import Hub, MemoryServer, send_command
from fedast.federation.transport import OBSERVER_KEY, ControlCommand
from fedast.run.federate import Federation
from tests.federation.nats_support import free_port
from tests.federation.support import agent, federate, two_tasks


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def trail(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / AUDIT).read_text().splitlines()]


async def command(hub: Hub, verb: str, argument: str = "", key: str = "control") -> str:
    """As ``send_command``, with any key."""
    if key == "control":
        answer = await send_command(hub, wire.encode(wire.Control(verb, argument)), timeout=30)
        return wire.decode(answer, wire.Control).answer
    hub.told.put_nowait(ControlCommand(wire.encode(wire.Control(verb, argument)), "mine", key))
    hub.stir()
    async with asyncio.timeout(30):
        while "mine" not in hub.answers:
            await hub.changed.wait()
    return wire.decode(hub.answers.pop("mine"), wire.Control).answer


def test_health_meters_and_status_over_http(tmp_path: Path) -> None:
    port = free_port()
    config = two_tasks(tmp_path, target=1.0, federation=f"metrics_port = {port}")
    hub = Hub()
    seen: dict[str, Any] = {}

    async def look(federation: Federation, agents: list[Agent]) -> None:
        try:
            while (await asyncio.to_thread(get, port, "/readyz"))[0] != 200:
                await asyncio.sleep(0.1)
            while "fedast_updates_total" not in (text := await asyncio.to_thread(
                get, port, "/metrics"))[1]:  # fmt: skip
                await asyncio.sleep(0.1)
            seen["metrics"] = text[1]
            seen["health"] = await asyncio.to_thread(get, port, "/healthz")
            seen["status"] = await asyncio.to_thread(get, port, "/status")
            seen["none"] = await asyncio.to_thread(get, port, "/secret")
            with pytest.raises(OSError, match="refused"):  # on loopback only
                await asyncio.to_thread(get, port, "/healthz", "127.0.0.2")
            agents[3].stop()
            while (found := await asyncio.to_thread(get, port, "/readyz"))[0] == 200:
                await asyncio.sleep(0.1)
            seen["few"] = found
        finally:
            federation.server.stop()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=look))
    code, text = seen["health"]
    assert code == 200
    assert set(json.loads(text)["checks"]) == {"event_loop", "work", "commits", "transport", "disk"}
    status = json.loads(seen["status"][1])
    assert status["client_count"] == 4
    assert status["commit_age"] >= 0
    assert {int(client) for client in status["last_seen"]} == set(range(4))
    out = [work for held in status["work"].values() for work in held]
    assert Counter((work["task"], str(work["version"])) for work in out) == {
        (task, version): count
        for task, versions in status["versions"].items()
        for version, count in versions.items()
    }
    assert sum(status["counted"].values()) == sum(t["updates"] for t in status["tasks"].values())
    assert seen["none"][0] == 404
    code, text = seen["few"]
    assert code == 503
    assert json.loads(text)["checks"]["clients"] == {
        "good": False, "says": "3 clients here, 4 wanted"
    }  # fmt: skip
    for line in (
        "fedast_healthy 1.0",
        "fedast_min_clients 4.0",
        "fedast_client_last_seen_seconds{",
    ):
        assert line in seen["metrics"]
    with pytest.raises(OSError, match="refused"):  # it ended with the server
        get(port, "/healthz")


@pytest.mark.parametrize("ill", ["event_loop", "work", "commits", "transport", "disk"])
def test_what_is_not_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ill: str) -> None:
    federation = Federation(two_tasks(tmp_path), MemoryServer(Hub()), tmp_path / "run")
    server, metrics, monitor = federation.server, federation.metrics, federation._monitor
    server.recover()
    assert not any(check.good for check in monitor.readiness() if check.name == "recovered")
    metrics.take_snapshot(server.state, {}, 0.0)
    now = monitor._clock()
    monitor._clock = lambda: now + 3600.0  # an hour later...
    monitor._beat = monitor._connected = monitor._clean = now + 3600.0  # ... all is well
    metrics.last_commit = now + 3600.0
    metrics.snapshot = None
    metrics.take_snapshot(server.state, {}, 0.0)
    monkeypatch.setattr(health, "_WORK_LIMIT", 1e9)
    assert all(check.good for check in monitor.health())
    match ill:  # ... but for one thing
        case "event_loop":
            monitor._beat = now
        case "work":
            monkeypatch.setattr(health, "_WORK_LIMIT", 600.0)
        case "commits":
            metrics.last_commit = monitor._clean = now
        case "transport":
            monitor._connected = now
        case _:
            monitor._disk_free = 2**20
    assert [check.name for check in monitor.health() if not check.good] == [ill]
    federation.close()


def test_every_meter_of_an_alert_exists_and_the_runbook_has_every_alert(tmp_path: Path) -> None:
    federation = Federation(two_tasks(tmp_path), MemoryServer(Hub()), tmp_path / "run")
    known = set()
    for family in federation.metrics.registry.collect():
        known |= {family.name, f"{family.name}_total"}
    federation.close()
    text = alerts()
    rules = re.findall(r"- alert: (\w+)\n +expr: '(.*)'\n", text)
    assert len(rules) == text.count("- alert:") > 10
    runbook = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()
    for name, expression in rules:
        used = set(re.findall(r"\bfedast_\w+", expression))
        assert used or name == "FedastDown"
        assert used <= known, name
        assert f"\n## {name}\n" in runbook
        assert f"runbook.md#{name.lower()}'" in text
    for used in re.findall(r"\bfedast_\w+", runbook):
        assert used in known


def test_every_command_is_in_the_audit_trail_over_restarts(tmp_path: Path) -> None:
    config, hub, run = two_tasks(tmp_path, target=1.0), Hub(), tmp_path / "run"

    async def first(federation: Federation, agents: list[Agent]) -> None:
        try:
            assert (await command(hub, "pause")).startswith("paused")
            json.loads(await command(hub, "status", key=OBSERVER_KEY))
            said = await command(hub, "halt", key=OBSERVER_KEY)
            assert said.startswith("refused: the key 'observer' may only ask for the status")
            assert (await command(hub, "stop", "a\nb\x1b[2J")).startswith("refused")
        finally:
            await command(hub, "halt")

    async def second(federation: Federation, agents: list[Agent]) -> None:
        try:
            assert json.loads(await command(hub, "status"))["paused"]
        finally:
            await command(hub, "resume")
            await command(hub, "halt")

    asyncio.run(federate(config, run, hub, meanwhile=first))
    before = (run / AUDIT).read_bytes()
    # A crash in the middle of a line must not swallow the next.
    (run / AUDIT).write_bytes(before + b'{"time": "2')
    hub.told = asyncio.Queue()
    hub.changed = asyncio.Event()
    asyncio.run(federate(config, run, hub, meanwhile=second))
    after = (run / AUDIT).read_bytes()
    assert after.startswith(before)
    (run / AUDIT).write_bytes(after.replace(b'{"time": "2\n', b""))
    lines = trail(run)
    assert [(line["who"], line["command"]) for line in lines] == [
        ("control", "pause"), ("observer", "halt"), ("control", "stop"), ("control", "halt"),
        ("control", "resume"), ("control", "halt"),
    ]  # fmt: skip
    assert lines[1]["answer"].startswith("refused: ")
    assert lines[2]["argument"] == "a\nb\x1b[2J"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", lines[0]["time"])
    assert (run / AUDIT).stat().st_mode & 0o077 == 0


def test_an_audit_trail_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AuditTrail(tmp_path).write("control", "pause", "x" * 10**6, "paused")
    assert (tmp_path / AUDIT).stat().st_size < 2000
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    AuditTrail(tmp_path).write("control", "resume", "", "resumed")
    assert synced
    monkeypatch.setattr(os, "write", lambda file, data: 3)
    with pytest.raises(OSError, match="disk is full"):
        AuditTrail(tmp_path).write("control", "halt", "", "it ends")


def test_a_client_of_another_wire_format_learns_it_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, hub = two_tasks(tmp_path, clients=2, federation=""), Hub()

    async def go() -> None:
        federation = Federation(config, MemoryServer(hub), tmp_path / "run")
        serving = asyncio.create_task(federation.run())
        older = agent(hub, config, 0)
        say_hello = older._transport.hello

        async def hello(data: bytes) -> None:
            await say_hello(data[:4] + bytes([wire.PROTOCOL + 1]) + data[5:])

        older._transport.hello = hello  # type: ignore[method-assign]
        running = asyncio.create_task(older.run())
        async with asyncio.timeout(60):
            while "does not admit this client" not in caplog.text:
                await asyncio.sleep(0.05)
        older.stop()
        await running
        assert 0 not in federation.server.state.pool
        federation.server.stop()
        await serving

    asyncio.run(go())
    (said,) = [r.getMessage() for r in caplog.records if "this client" in r.getMessage()]
    assert "the server (fedast " in said
    assert f"its wire format is {wire.PROTOCOL + 1}, the server's is {wire.PROTOCOL}" in said
    assert "install fedast" in said


def test_a_notice_of_any_wire_format_is_understood() -> None:
    notice = wire.Notice("upgrade", "fedast 9", 9)
    data = wire.encode(notice)
    assert wire.decode_notice(data[:4] + b"\x09" + data[5:]) == notice
    request = wire.Request("train", 1, "t", "a", 0, "m", 3, False)
    for other in (wire.encode(request), b"", b"FAST", b"junk" * 10, data[:-1]):
        assert wire.decode_notice(other) is None
