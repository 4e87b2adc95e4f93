"""Faults: after each, training goes on to its end and every request is accounted for exactly once.

Real processes and the real nats-server. A few short cases are in the default test command; all are
in ``make chaos``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedast.federation import wire
from fedast.federation.nats.setup import register_of
from tests.cli import command
from tests.federation.disks import filled, mounted
from tests.federation.evil import EVIL, answer, evil, spoilt
from tests.federation.field import Field, Proxy
from tests.federation.nats_support import free_port
from tests.federation.support import audit, events

chaos = pytest.mark.chaos


@pytest.mark.slow
def test_a_client_killed_in_training_is_replaced(tmp_path: Path) -> None:
    with Field(tmp_path, lease=2.0) as field:
        field.start_all()
        field.wait_for_entries(60)
        field.kill("client-1")
        counts = field.finish()
        assert counts["drop lost"] > 0


def test_the_server_killed_comes_back(tmp_path: Path) -> None:
    with Field(tmp_path) as field:
        field.start_all()
        for entries in (60, 120):
            field.wait_for_entries(entries)
            field.kill("server")
            field.start_server()
        field.finish()


@chaos
def test_the_server_killed_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random(1)
    with Field(tmp_path, rounds=1000, clients=4) as field:
        field.start_all()
        field.wait_for_entries(40)
        while not field.ended and field.faults["server SIGKILL"] < 20:
            time.sleep(chance.uniform(0.1, 2.0))
            if field.ended:
                break
            field.kill("server")
            before = field.entries()
            field.start_server()
            if chance.random() < 0.8:  # sometimes it is killed before it has done anything
                field.wait_for_entries(before + 1)
        assert field.faults["server SIGKILL"] >= 10
        field.finish()


@chaos
def test_a_client_that_hangs_is_given_up(tmp_path: Path) -> None:
    with Field(tmp_path, rounds=240, lease=2.0) as field:
        field.start_all()
        field.wait_for_entries(60)
        field.kill("client-2", signal.SIGSTOP)
        field.wait(lambda: 2 not in field.status()["clients"])
        field.kill("client-2", signal.SIGCONT)  # and comes back
        field.wait(lambda: field.ended or 2 in field.status()["clients"])
        counts = field.finish()
        assert counts["drop lost"] > 0


@chaos
def test_a_client_that_restarts_goes_on(tmp_path: Path) -> None:
    with Field(tmp_path, rounds=120) as field:
        field.start_all()
        for entries, number in ((60, 0), (100, 1), (140, 2), (180, 3)):
            field.wait_for_entries(entries)
            field.kill(f"client-{number}")
            field.start_client(number)
        field.finish()


@chaos
def test_a_client_that_is_told_to_end_says_goodbye(tmp_path: Path) -> None:
    with Field(tmp_path) as field:
        field.start_all()
        field.wait_for_entries(60)
        field.kill("client-3", signal.SIGTERM)
        field.wait(lambda: 3 not in field.status()["clients"], 10)  # sooner than by its lease
        assert not field.ended
        assert field.processes["client-3"].wait(20) == 0
        field.finish()


@chaos
def test_nats_killed_and_started_again(tmp_path: Path) -> None:
    with Field(tmp_path, rounds=120) as field:
        field.start_all()
        for entries in (60, 120, 180):
            field.wait_for_entries(entries)
            field.faults["nats SIGKILL"] += 1
            field.bed.kill()
            time.sleep(1.0)
            field.bed.start()
        field.finish()


@chaos
def test_a_link_cut_and_healed(tmp_path: Path) -> None:
    with Field(tmp_path, rounds=120, lease=3.0) as field:
        proxies = {name: Proxy(field.bed.port) for name in ("client-0", "client-1", "server")}
        field.through = {name: proxy.port for name, proxy in proxies.items()}
        field.start_all()
        plan = [(60, "client-0", 1.0), (90, "client-1", 5.0), (120, "server", 2.0)]
        for entries, name, seconds in (*plan, (150, "server", 6.0)):
            field.wait_for_entries(entries)
            field.faults[f"link of {name.partition('-')[0]} cut"] += 1
            proxies[name].cut()
            time.sleep(seconds)
            proxies[name].heal()
        field.finish()


@chaos
def test_a_full_disk_stops_nothing_but_commits(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 3) as disk, Field(tmp_path, rounds=120) as field:
        field.run = disk / "run"
        field.start_all()
        field.wait_for_entries(60)
        field.faults["disk full"] += 1
        with filled(disk):
            said = tmp_path / "server.log"
            field.wait(lambda: "cannot be committed" in said.read_text() or field.ended)
            time.sleep(2)
            field.faults["server SIGKILL"] += 1
            field.processes["server"].kill()  # in the middle of it
            field.processes["server"].wait()
        field.start_server()
        field.finish()


@chaos
def test_bad_uploads_over_the_real_network(tmp_path: Path) -> None:
    with Field(tmp_path, rounds=120, federation="strikes = 5\nnorm_bound = 1000.0") as field:
        for number in range(3):
            field.start_client(number)
        field.start_server()
        asyncio.run(misbehave(field))
        field.wait(lambda: field.ended or 3 in field.status()["quarantined"])
        counts = field.finish()
        assert counts["drop invalid"] >= 4


async def misbehave(field: Field) -> None:
    kinds = ["NaN", "wrong shape", "another's request", "garbage", "ten times the size", "1e6"]
    left = list(kinds)

    def forge(request: wire.Request) -> wire.Update | bytes:
        kind = left.pop(0)
        field.faults[f"upload: {kind}"] += 1
        if kind == "garbage":
            return b"\x00garbage" * 50
        if kind == "another's request":
            other = replace(request, id=max(0, request.id - 1))
            return answer(other, np.ones(request.size, np.float32))
        return answer(request, spoilt(kind, request.size))

    transport = await field.bed.client(EVIL)
    await evil(transport, forge, lambda: not left or field.ended)
    await transport.close()


@chaos
def test_everything_at_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    with Field(tmp_path, rounds=300, lease=3.0, clients=5) as field:
        field.start_all()
        field.wait_for_entries(40)
        for _ in range(12):
            time.sleep(chance.uniform(0.3, 1.5))
            if field.ended:
                break
            match chance.choice(["server", "client", "nats"]):
                case "server":
                    field.kill("server")
                    field.start_server()
                case "client":
                    number = chance.randrange(5)
                    field.kill(f"client-{number}")
                    field.start_client(number)
                case _:
                    field.faults["nats SIGKILL"] += 1
                    field.bed.kill()
                    time.sleep(chance.uniform(0.0, 1.0))
                    field.bed.start()
        field.finish(300)


@chaos
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("fedast-s", "requests = 8\nratio = 2\nserver_rate = 0.5"),
        ("sync-st", "first_k = 2"),  # the next round waits for the evaluation
    ],
)
def test_crashes_while_clients_evaluate(tmp_path: Path, algorithm: str, options: str) -> None:
    chance = random.Random(3)
    how = 'evaluate = "clients"\nevaluators = 2'
    with Field(
        tmp_path, rounds=60, lease=3.0, algorithm=algorithm, options=options, federation=how
    ) as field:
        field.start_all()
        field.wait_for_entries(40)
        for victim in ("server", "client-1", "server", "nats", "server", "client-2", "server"):
            time.sleep(chance.uniform(0.5, 1.5))
            if field.ended:
                break
            if victim == "nats":
                field.faults["nats SIGKILL"] += 1
                field.bed.kill()
                time.sleep(0.5)
                field.bed.start()
            else:
                field.kill(victim)
                if victim == "server":
                    field.start_server()
                else:
                    field.start_client(int(victim[-1]))
        field.finish(300, to_the_end=False)  # few points are held back: all may be right
        measured = [
            (event["task"], event["round"])
            for event in events(field.run)
            if event["event"] == "evaluate"
        ]
        assert len(set(measured)) == len(measured)
        assert len(measured) > 10
        names: dict[tuple[str, int], set[str]] = {}
        for line in (field.run / "diary" / "diary.jsonl").read_text().splitlines():
            entry = json.loads(line)
            if entry["e"] == "model":
                names.setdefault((entry["task"], entry["version"]), set()).add(entry["name"])
        assert set(measured) <= set(names)
        assert {len(models) for models in names.values()} == {1}


_OWN_DATA = """
from sklearn.datasets import load_digits

def load(client):
    digits = load_digits()
    return (digits.data[client::8] / 16).astype("float32"), digits.target[client::8]
"""


@chaos
def test_members_come_and_go(tmp_path: Path) -> None:
    """While it trains, one is expelled and one is admitted who was not foreseen."""
    (tmp_path / "my_data.py").write_text(_OWN_DATA)
    own = 'data = { digits-mlp = "my_data:load", second = "my_data:load" }'
    with Field(tmp_path, rounds=150, lease=3.0, federation=own) as field:
        field.config.write_text(f'path = ["{tmp_path}"]\n{field.config.read_text()}')
        field.start_all()
        field.wait_for_entries(60)
        with register_of(field.bed.layout) as register:
            assert register.admit(1) == ["client-4"]
            register.expel(["client-0"])
        field.faults["expelled"] += 1
        field.command("pause")  # so that it does not end before the new one is there
        field.bed.reload()
        field.clients += 1
        field.start_client(4)
        field.wait(lambda: field.status()["clients"] == [1, 2, 3, 4])
        field.command("resume")
        counts = field.finish()
        assert counts["drop lost"] <= 16
        sent = [e["client"] for e in events(field.run) if e["event"] == "dispatch"]
        assert sent.count(4) > 10
        assert 0 not in sent[len(sent) // 2 :]
        assert field.processes["client-0"].wait(20) == 1
        assert "NATS refuses our key" in (tmp_path / "client-0.log").read_text()


def test_up_status_commands_and_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the guide: in the background, stopped, and taken up again."""
    monkeypatch.chdir(tmp_path)

    def fedast(*arguments: str) -> str:
        done = command.fedast(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    fedast("federation", "init", "fed", "--clients", "2", "--port", str(free_port()))
    config = tmp_path / "fed" / "federation.toml"
    config.write_text(re.sub(r"target = [\d.]+", "target = 1.0", config.read_text()))
    try:
        updates: list[int] = []
        for _ in range(2):
            assert command.fedast_process("federation", "up", "fed", "--detach").returncode == 0
            end = time.monotonic() + 60
            while True:
                assert time.monotonic() < end
                found = json.loads(fedast("federation", "status", "fed", "--json"))["server"]
                time.sleep(0.2)
                if found is None:  # it is not there yet
                    continue
                count = sum(task["updates"] for task in found["tasks"].values())
                if count > (updates[-1] if updates else 0) + 10:
                    break
            updates.append(count)
            assert fedast("ctl", "fed", "pause").startswith("paused")
            assert fedast("ctl", "fed", "resume").startswith("resumed")
            assert "processes ended" in fedast("federation", "down", "fed")
            assert "the last result" in fedast("federation", "status", "fed")
        assert "client-0" in fedast("federation", "logs", "fed")
        audit(tmp_path / "fed" / "run")
    finally:
        command.fedast("federation", "down", "fed")


@pytest.fixture
def clock() -> Iterator[Callable[[float], None]]:
    """Set the clock of this whole machine forward or back; afterwards it is right again."""
    if os.environ.get("FEDAST_MAY_SET_CLOCK") != "1":
        pytest.skip("sets this machine's clock; FEDAST_MAY_SET_CLOCK=1 allows it")
    true_time = time.time() - time.monotonic()

    def jump(seconds: float) -> None:
        time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)

    yield jump
    time.clock_settime(time.CLOCK_REALTIME, true_time + time.monotonic())


@chaos
def test_the_clock_jumps(tmp_path: Path, clock: Callable[[float], None]) -> None:
    """Of all machines at once, nats-server's too; with crashes, so that old times are read."""
    hour = 3600.0
    with Field(tmp_path, rounds=240, lease=5.0) as field:
        field.start_all()
        for entries, hours in ((60, 3), (120, -6), (180, 3), (240, 30), (300, -30)):
            field.wait_for_entries(entries)
            field.faults[f"clock {hours:+d} h"] += 1
            clock(hours * hour)
            field.wait_for_entries(entries + 30)
        for entries, hours, name in (
            (360, 3, "server"),
            (420, -3, "server"),
            (480, -3, "client-1"),
        ):
            field.wait_for_entries(entries)
            field.faults[f"clock {hours:+d} h"] += 1
            field.kill(name)
            clock(hours * hour)
            if name == "server":
                field.start_server()
            else:
                field.start_client(1)
        field.finish()
