"""Federations with faulty clients, transports and clocks, over the in-memory transport."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedast.federation import wire
from fedast.federation.agent import Agent
from fedast.federation.memory import Hub, MemoryClient, MemoryServer, send_command
from fedast.federation.transport import Delivery, Gone, Greeted
from fedast.run.federate import Federation
from tests.federation.evil import EVIL, TASKS, answer, evil, spoilt
from tests.federation.support import audit, events, federate, hold, two_tasks


@pytest.mark.parametrize("kind", ["NaN", "wrong shape", "garbage", "huge number"])
def test_bad_updates_are_refused_and_their_sender_is_quarantined(tmp_path: Path, kind: str) -> None:
    config = two_tasks(tmp_path, clients=4, federation="strikes = 1")
    hub = Hub()

    def forge(request: wire.Request) -> wire.Update | bytes:
        if kind == "garbage":
            return b"garbage"
        if kind == "huge number":  # an integer that no float can hold
            good = wire.encode(answer(request, spoilt("0", request.size), loss=0.0))
            bad = good.replace(b'"loss":0.0', b'"loss":1' + b"0" * 400)
            length = int.from_bytes(good[5:9], "big") + len(bad) - len(good)
            return bad[:5] + length.to_bytes(4, "big") + bad[9:]
        return answer(request, spoilt(kind, request.size))

    async def attack(federation: Federation, agents: list[Agent]) -> None:
        """It is there from the start, and takes requests."""
        agents[EVIL].stop()
        await evil(MemoryClient(hub, EVIL), forge, lambda: federation.server.finished)

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=attack))
    counts = audit(tmp_path / "run")
    # (NaN may be the model's fault, until others have answered.)
    assert counts["drop invalid"] == 1 or (kind == "NaN" and counts["drop invalid"] > 1)
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert '{"e":"quarantine","c":3' in log


def test_somebody_elses_request_and_made_up_ones_change_nothing(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, clients=3)
    hub = Hub()

    async def attack(federation: Federation, agents: list[Agent]) -> None:
        while not hub.queues.get(0):
            await asyncio.sleep(0.01)
        request = wire.decode(next(iter(hub.queues[0].values())), wire.Request)
        vector = np.ones(request.size, np.float32)
        forged = wire.Update(request.id, request.token, request.task, 0.1, 0.1, 1, vector)
        await MemoryClient(hub, 2).upload(f"{request.id}-{request.token}", wire.encode(forged))
        unknown = wire.Update(999_999, "t", request.task, 0.1, 0.1, 1, vector)
        await MemoryClient(hub, 2).upload("999999-t", wire.encode(unknown))

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=attack))
    counts = audit(tmp_path / "run")
    assert counts["drop invalid"] == 0
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert '"e":"superseded"' not in log  # what changes nothing is not recorded
    assert '"e":"strike"' not in log


def test_an_idle_clients_queue_is_made_anew_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that takes long to make would be made for ever."""
    config = two_tasks(tmp_path, clients=2)  # redeliver_after is 2
    hub, now = Hub(), [0.0]
    again: list[float] = []

    async def noted(_server: MemoryServer, client: int) -> None:
        if client == 0:
            again.append(now[0])

    monkeypatch.setattr(MemoryServer, "redeliver", noted)

    async def body() -> None:
        federation = Federation(config, MemoryServer(hub), tmp_path / "run", clock=lambda: now[0])
        running = asyncio.create_task(federation.run())
        tasks = ("digits-mlp", "second")
        while now[0] < 90 and not running.done():
            for client in (0, 1):  # there, but nothing comes through to them
                hello = wire.Hello(client, "test", tasks, idle=True)
                await MemoryClient(hub, client).hello(wire.encode(hello))
            await asyncio.sleep(0.01)
            now[0] += 0.5
        federation.server.stop()
        await running

    asyncio.run(body())
    gaps = [later - sooner for sooner, later in pairwise(again)]
    assert len(gaps) >= 3  # then its time is up, and it loses its requests
    for gap, patience in zip(gaps, (4, 8, 16), strict=False):
        assert patience < gap < patience + 3


def test_a_client_that_goes_silent_frees_its_requests(tmp_path: Path) -> None:
    """It hangs in a training and says nothing more: only its lease can tell that it is gone."""
    config = two_tasks(tmp_path, clients=3, lease=3.0)
    hub = Hub()
    hanging, gone, over = threading.Event(), threading.Event(), threading.Event()

    async def silence(federation: Federation, agents: list[Agent]) -> None:
        async def nothing(data: bytes) -> None:
            pass

        async def wait(condition: Callable[[], bool]) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(30):
                    while not condition():
                        await asyncio.sleep(0.01)

        # The others hold still meanwhile, so that nothing ends before the lease does.
        for number, one in enumerate(agents):
            hold(one, over if number == 1 else gone, begun=hanging if number == 1 else None)
        await wait(hanging.is_set)
        agents[1]._transport.hello = nothing  # type: ignore[method-assign]
        await wait(lambda: 1 not in federation.server.state.pool)
        gone.set()
        await wait(lambda: federation.server.finished)
        over.set()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=silence))
    assert hanging.is_set()
    counts = audit(tmp_path / "run")
    assert counts["finish"] == 2
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert log.count('"e":"leave"') == log.count('"e":"leave","c":1') == 1
    happened = events(tmp_path / "run")
    sent = {e["request"] for e in happened if e["event"] == "dispatch" and e["client"] == 1}
    lost = {e["request"] for e in happened if e["event"] == "drop" and e["reason"] == "lost"}
    assert lost == sent != set()


def test_an_idle_client_gets_what_its_queue_holds_back(tmp_path: Path) -> None:
    """As when NATS's clock was set back: what a dead process had counts as being in its hands."""

    class Jammed(Hub):
        """Client 1's first request is in dead hands before it can take it."""

        held: tuple[int, str] | None = None

        def stir(self) -> None:
            if self.held is None and self.queues.get(1):
                self.held = (1, next(iter(self.queues[1])))
                self.taken[self.held] = 1e12
            super().stir()

    hub = Jammed(patience=1e9)
    # Enough for one client to hold everything: nothing goes on until its queue does.
    config = two_tasks(tmp_path, clients=2, federation="requests_per_client = 8")
    asyncio.run(federate(config, tmp_path / "run", hub))
    counts = audit(tmp_path / "run")
    assert counts["finish"] == 2
    assert counts["drop lost"] == 0
    assert hub.held is not None
    assert hub.held not in hub.taken
    answered = [name for client, name in hub.names if client == 1]
    assert hub.held[1] in answered


@pytest.mark.parametrize("blame", [True, False])
def test_what_a_transport_knows_to_have_failed_is_lost(tmp_path: Path, blame: bool) -> None:
    """As Flower says when a ClientApp crashes (its own fault) or a node is gone (nobody's)."""
    config = two_tasks(tmp_path, clients=3, target=0.93)
    hub = Hub()
    failed: list[str] = []

    async def crash(federation: Federation, agents: list[Agent]) -> None:
        agents[1].stop()
        while not federation.server.finished:
            await asyncio.sleep(0.005)
            await MemoryClient(hub, 1).hello(agents[1]._hello())  # it is there, and crashes
            for name in [n for n in hub.queues.get(1, ()) if (1, n) not in hub.taken][:1]:
                failed.append(name)
                hub.fail(1, name, "it crashed", blame)

    federation = asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=crash))
    counts = audit(tmp_path / "run")
    assert counts["finish"] == 2
    rests = re.findall('"e":"rest","c":(.)', (tmp_path / "run/diary/diary.jsonl").read_text())
    if blame:
        assert counts["drop lost"] >= 10
        assert len(failed) >= 10
    else:  # it is asked less and less often
        assert 3 <= len(failed) < 40
        assert set(rests) == {"1"}
    assert federation.server.state.membership.quarantined == ({1} if blame else set())


def test_a_client_that_is_gone_by_the_transports_word_loses_its_requests(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, clients=3)
    hub = Hub()

    async def leave(federation: Federation, agents: list[Agent]) -> None:
        gate = threading.Event()  # nobody trains, so that nothing ends, until it has happened
        for agent in agents:
            hold(agent, gate)
        while not hub.queues.get(2):
            await asyncio.sleep(0.01)
        hub.told.put_nowait(Gone(2))
        hub.told.put_nowait(Greeted(2, wire.encode(wire.Hello(2, "again", TASKS))))
        hub.stir()
        await send_command(hub, wire.encode(wire.Control("status")))  # that was handled before
        gate.set()

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=leave))
    assert audit(tmp_path / "run")["finish"] == 2
    happened = events(tmp_path / "run")
    sent = {e["request"]: e["client"] for e in happened if e["event"] == "dispatch"}
    lost = [e["request"] for e in happened if e["event"] == "drop" and e["reason"] == "lost"]
    assert {sent[request] for request in lost} == {2}
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert log.count('"e":"leave","c":2') == 1
    assert log.count('"e":"join","c":2') == 2  # its next greeting lets it in again


def test_evaluations_that_come_to_nothing_are_left_out_or_asked_again(tmp_path: Path) -> None:
    """As over Flower, where a client that crashes is reported: one never answers, one does not
    the first few times."""
    how = 'evaluate = "clients"\nevaluators = 2'
    config = two_tasks(tmp_path, clients=3, federation=how)
    hub = Hub()
    failed: Counter[int] = Counter()

    async def crash(federation: Federation, agents: list[Agent]) -> None:
        take = MemoryClient._take

        def taking(self: MemoryClient, now: float) -> Delivery | None:
            for name in [n for n in hub.queues.get(self._client, ()) if n.startswith("e")]:
                if self._client == 0 or (self._client == 1 and failed[1] < 5):
                    failed[self._client] += 1
                    hub.fail(self._client, name, "it crashed", blame=False)
            return take(self, now)

        monkeypatch.setattr(MemoryClient, "_take", taking)

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=crash))
    audit(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {task["finish_reason"] for task in result["tasks"].values()} == {"target"}
    assert failed[0] > 3
    assert failed[1] >= 1
    measured = [e for e in events(tmp_path / "run") if e["event"] == "evaluate"]
    assert len({(e["task"], e["round"]) for e in measured}) == len(measured) > 3


def test_what_a_quarantined_client_sends_takes_no_room(tmp_path: Path) -> None:
    config = two_tasks(tmp_path)
    hub = Hub()

    async def flood(federation: Federation, agents: list[Agent]) -> None:
        await send_command(hub, wire.encode(wire.Control("pause")))
        while hub.uploads or any(hub.queues.values()):
            await asyncio.sleep(0.01)
        federation.server.state.membership.quarantined.add(77)
        for number in range(20):
            hub.keep(77, f"{number}-x", b"junk")
        while hub.uploads:  # though there is nothing to commit
            await asyncio.sleep(0.01)
        await send_command(hub, wire.encode(wire.Control("resume")))

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=flood))
    audit(tmp_path / "run")


def test_a_client_that_can_train_nothing_is_let_in_no_more(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, clients=3)

    async def spoil(federation: Federation, agents: list[Agent]) -> None:
        def broken(*arguments: object) -> None:
            raise RuntimeError("no data today")

        agents[2]._training.train = broken  # type: ignore[method-assign, assignment]

    asyncio.run(federate(config, tmp_path / "run", Hub(), meanwhile=spoil))
    counts = audit(tmp_path / "run")
    assert 0 < counts["drop lost"] <= 20
    assert '{"e":"quarantine","c":2' in (tmp_path / "run" / "diary" / "diary.jsonl").read_text()


JUMPING = """
import asyncio, sys, time
from pathlib import Path

true, shift = time.time, [0.0]
time.time = lambda: true() + shift[0]  # before anything can keep hold of the real one

from fedast.federation.memory import Hub
from tests.federation.support import federate, two_tasks

async def jump(federation, agents):
    for updates, ahead in ((5, 86_400.0), (12, -86_400.0)):
        while federation.run_metrics.updates < updates:
            await asyncio.sleep(0.005)
        shift[0] = ahead

folder = Path(sys.argv[1])
config = two_tasks(folder, lease=5.0, target=0.85)
asyncio.run(federate(config, folder / "run", Hub(), meanwhile=jump))
assert abs(time.time() - true()) > 80_000
"""


def test_a_jump_of_the_wall_clock_changes_nothing(tmp_path: Path) -> None:
    """A day ahead, then a day back. In a process of its own: clocks are bound when imported."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", JUMPING, str(tmp_path)],
        cwd=root, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts = audit(tmp_path / "run")
    assert counts["drop lost"] == 0
    assert counts["finish"] == 2
    happened = events(tmp_path / "run")
    assert happened[-1]["t"] < 90
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text().splitlines()
    work = [entry["w"] for entry in map(json.loads, log) if entry["e"] == "arrive"]
    assert len(work) > 12
    assert 0 <= min(work) <= max(work) < 90
