"""Clients that are silent, flood, make excuses or forge log lines: it costs only themselves."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedast.core.streams import Stream
from fedast.federation import wire
from fedast.federation.agent import Agent
from fedast.federation.driver import LivePool
from fedast.federation.ignored import Allowance, IgnoredMessages
from fedast.federation.memory import Hub, MemoryClient, send_command
from fedast.federation.nats.names import UPDATES, UPLOAD_HEADER, hello_subject, upload_subject
from fedast.federation.transport import Greeted, Uploaded
from fedast.federation.untrusted import OneLine, described, printable
from fedast.run.federate import Federation
from tests.federation.nats_support import NatsBed
from tests.federation.support import audit, federate, request_in, two_tasks

TASKS = ("digits-mlp", "second")
HOSTILE = "x\n2026 CRITICAL forged\r\x1b[2J\x1b]0;owned\x07\u202e\u2028\x00\x9b31m" + "A" * 60_000


def entries(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "run" / "diary" / "diary.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# --- how many requests a client gets --------------------------------------------------------------


def held_after(pool: LivePool, draws: int) -> dict[int, int]:
    held: dict[int, int] = {}
    stream = Stream.of(1, "test")
    for _ in range(draws):
        client = pool.draw(stream, held)
        assert client is not None
        held[client] = held.get(client, 0) + 1
    return held


def test_no_client_holds_more_than_the_limit_while_others_have_room() -> None:
    pool = LivePool(limit=3)
    for client in range(5):
        pool.join(client)
    assert set(held_after(pool, 15).values()) == {3}
    assert sorted(held_after(pool, 22).values()) == [4, 4, 4, 5, 5]  # all have enough: the fewest
    unlimited = LivePool()
    for client in range(5):
        unlimited.join(client)
    assert max(held_after(unlimited, 15).values()) > 3
    initial = [pool.draw(Stream.of(2, "test"), ()) for _ in range(15)]  # says nothing of holders
    assert {initial.count(client) for client in range(5)} == {3}


def test_a_client_that_rests_gets_nothing_and_afterwards_one_at_a_time() -> None:
    pool = LivePool(limit=3)
    for client in range(3):
        pool.join(client)
    pool.resting.add(1)
    assert 1 not in held_after(pool, 12)
    assert 1 not in pool.everyone()
    pool.resting.clear()
    pool.on_trial.add(1)
    assert held_after(pool, 30)[1] == 1
    pool.leave(1)
    pool.join(1)  # going and coming changes nothing
    assert held_after(pool, 30)[1] == 1


@pytest.mark.parametrize("algorithm", ["fedast-d", "sync-st"])
def test_a_client_that_greets_and_never_answers_holds_nobody_up(
    tmp_path: Path, algorithm: str
) -> None:
    options = "" if algorithm == "sync-st" else "requests = 8\nratio = 2\nserver_rate = 0.5"
    config = two_tasks(
        tmp_path, clients=3, lease=1.0, target=0.85, algorithm=algorithm, options=options,
        federation="request_timeout = 3600",
    )  # fmt: skip
    hub = Hub()
    most = 0

    async def silence(federation: Federation, agents: list[Agent]) -> None:
        nonlocal most
        agents[2].stop()
        silent = MemoryClient(hub, 2)
        while not federation.server.finished:
            await silent.hello(wire.encode(wire.Hello(2, "silent", TASKS)))
            most = max(most, len(federation.server.state.requests_of(2)))
            await asyncio.sleep(0.05)

    federation = asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=silence))
    assert audit(tmp_path / "run")["finish"] == 2
    assert 1 <= most <= 4
    assert federation.server.state.membership.quarantined == set()


# --- text from clients ----------------------------------------------------------------------------


def test_text_from_outside_stays_on_its_line() -> None:
    shown = printable(HOSTILE)
    assert shown.isprintable()
    assert len(shown) < 260
    assert "more)" in shown
    assert printable("Größe 3 → 4") == "Größe 3 → 4"
    assert printable("short") == "short"
    record = logging.LogRecord("x", 30, "f", 1, "client %s", (HOSTILE,), None)
    assert OneLine().filter(record)
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 2100
    assert "norm 2" in described(np.ones(4, np.float32))
    with pytest.raises(wire.WireError) as caught:
        wire.decode(wire.encode(wire.Control(HOSTILE[:500])), wire.Hello)
    assert str(caught.value).isprintable()


def test_hostile_text_reaches_no_log_status_or_record_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = two_tasks(tmp_path, clients=3, federation="strikes = 20")
    hub = Hub()
    status = ""
    caplog.set_level(logging.INFO)

    async def attack(federation: Federation, agents: list[Agent]) -> None:
        nonlocal status
        agents[2].stop()
        evil = MemoryClient(hub, 2)
        text = HOSTILE[:50_000]
        header = json.dumps({"kind": "hello", "fields": {text: 1}}).encode()
        bad = b"FAST\x01" + struct.pack(">I", len(header)) + header
        turn = 0
        steps = 0
        while not federation.server.finished:
            steps += 1
            hello = wire.Hello(2, text[:10_000], (*TASKS, text[:10_000]))
            await evil.hello(wire.encode(hello) if steps % 2 else bad)
            if steps < 50:  # few enough to be no flood
                hub.keep(2, f"{text}{steps}", b"x")
                hub.keep(2, f"e{text}{steps}", b"x")
            delivery = await evil.next(0.05)
            if delivery is not None:
                turn += 1
                request = request_in(delivery.data)
                if request is None:
                    await delivery.done()
                    continue
                update = wire.Update(
                    request.id, request.token, request.task, 0.0, 0.0, 1, None, failed=text
                )
                name = f"{request.id}-{request.token}"
                if turn % 3 == 0:
                    hub.fail(2, name, text, blame=True)
                    continue
                data = wire.encode(update).replace(b'"metric"', b'"met\\nric"', turn % 2)
                await evil.upload(name, data)
                await delivery.done()
            if not status and federation.server.state.membership.strikes[2]:
                control = wire.encode(wire.Control("status"))
                status = wire.decode(await send_command(hub, control), wire.Control).answer

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=attack))
    messages = [record.getMessage() for record in caplog.records]
    assert any("could not train" in text or "failed" in text for text in messages)
    for text in messages:
        assert text.isprintable(), repr(text[:300])
        assert len(text) < 3000
    assert "forged" not in status or all(
        reason["why"].isprintable() and len(reason["why"]) < 1000
        for reasons in json.loads(status)["reasons"].values()
        for reason in reasons
    )
    for path in (tmp_path / "run").rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            assert line.isprintable()
            assert len(line) < 12_000 or '"e":"config"' in line


def test_a_header_of_very_many_tensors_costs_nothing() -> None:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    table = json.dumps({f"t{number}": empty for number in range(100_000)}).encode()
    good = wire.encode(wire.Update(1, "t", "a", 0.0, 0.0, 1, np.ones(3, np.float32)))
    end = 9 + int.from_bytes(good[5:9], "big")
    data = good[:end] + struct.pack("<Q", len(table)) + table
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(wire.WireError, match="described in"):
        wire.decode(data, wire.Update)
    assert time.process_time() - began < 0.5
    assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    tracemalloc.stop()
    assert wire.decode(good, wire.Update).vector is not None


# --- floods ---------------------------------------------------------------------------------------


def test_allowances_are_per_client_and_come_back_with_time() -> None:
    found = Allowance(burst=3, per_second=1.0)
    assert [found.take(1, 0.0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert found.take(2, 0.0)
    assert [found.take(1, 2.0) for _ in range(3)] == [True, True, False]


def test_what_is_ignored_is_summed_up() -> None:
    found = IgnoredMessages(0.0)
    for _ in range(12_300):
        found.count(3, "request not open")
    found.count(3, "flood")
    assert found.report(29.0) == []
    (line,) = found.report(30.0)
    assert line == (
        "client 3: 12,301 messages ignored in the last 30 s (request not open: 12,300, flood: 1)"
    )
    assert found.report(60.0) == []
    for client in range(1000):
        found.count(client, "x")
    assert len(found.report(90.0)) == 21


@pytest.mark.parametrize("name", ["x", "0-made-up", "e0-1-x", "999999-t"])
def test_a_flood_is_recorded_by_its_consequences_only(tmp_path: Path, name: str) -> None:
    config = two_tasks(tmp_path, clients=3, target=0.93)
    hub = Hub()

    async def flood(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 5:
            await asyncio.sleep(0.01)
        for _ in range(10):
            for _ in range(300):
                hub.keep(2, name, b"junk")
            await asyncio.sleep(0)

    federation = asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=flood))
    counts = audit(tmp_path / "run")
    assert counts["finish"] == 2
    found = entries(tmp_path)
    strikes = [entry for entry in found if entry["e"] == "strike"]
    assert strikes
    assert {entry["c"] for entry in strikes} == {2}
    assert "flood" in str(strikes[0]["why"])
    assert not [entry for entry in found if entry["e"] == "superseded"]
    assert counts["ignored"] < 50
    assert federation.server.state.membership.quarantined <= {2}


def test_excuses_are_throttled_and_lies_punished(tmp_path: Path) -> None:
    """It says that models are gone which others fetch well."""
    config = two_tasks(tmp_path, clients=3, target=0.88)
    hub = Hub()
    claims = 0

    async def lie(federation: Federation, agents: list[Agent]) -> None:
        nonlocal claims
        agents[2].stop()
        evil = MemoryClient(hub, 2)
        while not federation.server.finished:
            await evil.hello(wire.encode(wire.Hello(2, "liar", TASKS)))
            delivery = await evil.next(0.02)
            if delivery is not None:
                request = request_in(delivery.data)
                if request is None:
                    await delivery.done()
                    continue
                why = wire.MODEL_GONE
                update = wire.Update(
                    request.id, request.token, request.task, 0.0, 0.0, 0, None, failed=why
                )
                await evil.upload(f"{request.id}-{request.token}", wire.encode(update))
                await delivery.done()
                claims += 1

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=lie))
    assert audit(tmp_path / "run")["finish"] == 2
    assert 3 <= claims < 40
    rests = [entry for entry in entries(tmp_path) if entry["e"] == "rest"]
    assert rests
    assert {entry["c"] for entry in rests} == {2}


# --- pardon ---------------------------------------------------------------------------------------


def test_a_quarantine_says_why_and_a_pardon_ends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = two_tasks(tmp_path, clients=3, target=0.93, federation="strikes = 1")
    hub = Hub()
    answers: list[str] = []

    async def spoil(federation: Federation, agents: list[Agent]) -> None:
        async def say(verb: str, argument: str = "") -> str:
            data = await send_command(hub, wire.encode(wire.Control(verb, argument)), 30)
            answers.append(wire.decode(data, wire.Control).answer)
            return answers[-1]

        train = agents[1]._training.train

        def broken(
            task: str, request: int, vector: wire.Vector, version: int
        ) -> tuple[wire.Vector, float, int]:
            return np.full_like(vector, np.nan), 0.0, 1

        state = federation.server.state
        agents[1]._training.train = broken  # type: ignore[method-assign]
        while not state.membership.quarantined:
            await asyncio.sleep(0.01)
        agents[1]._training.train = train  # type: ignore[method-assign]
        await say("pardon", "0")
        status = json.loads(await say("status"))
        assert status["quarantined"] == [1]
        (reason,) = status["reasons"]["1"]
        assert "not finite" in reason["why"]
        assert "norm nan" in reason["why"]
        await say("pardon", "client-1")
        while 1 not in state.pool and not federation.server.finished:
            await asyncio.sleep(0.01)

    federation = asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=spoil))
    audit(tmp_path / "run")
    assert answers[0] == "refused: no client '0' is quarantined"
    assert answers[-1].startswith("client 1 is pardoned")
    membership = federation.server.state.membership
    assert membership.quarantined == set()
    (line,) = (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["client"] == 1
    assert "norm nan" in json.loads(line)["reasons"][0]["why"]
    assert any("pardon 1" in r.getMessage() for r in caplog.records if r.levelname == "ERROR")
    # The same from the log alone.
    again = Federation(config, federation.server._transport, tmp_path / "run")
    again.server.recover()
    assert again.server.state.membership.quarantined == set()
    assert again.server.state.membership.strikes == membership.strikes
    again.close()


# --- with a real nats-server ----------------------------------------------------------------------


def test_nats_keeps_one_heartbeat_and_throws_a_flood_away(tmp_path: Path) -> None:
    async def body() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(120):
            server, evil, good = await bed.server(), await bed.client(0), await bed.client(1)
            while (await server._js.account_info()).streams < 4:  # heartbeats are heard
                await asyncio.sleep(0.1)
            for number in range(20_000):
                await evil._connection.publish(hello_subject(0), b"%d" % number)
            await evil._connection.flush(60)
            await good.hello(b"I am here")
            greetings: list[Greeted] = []
            while not any(found.client == 1 for found in greetings):
                found = await server.receive(1.0)
                if isinstance(found, Greeted):
                    greetings.append(found)
            assert len(greetings) < 2000
            await server.discard(0, 600.0)
            for number in range(5000):
                await evil._connection.publish(
                    upload_subject(0), b"x", headers={UPLOAD_HEADER: f"x{number}.0-1"}
                )
            await evil._connection.flush(60)
            await good.upload("5-t", b"honest")
            while not isinstance(found := await server.receive(1.0), Uploaded):
                pass
            assert (found.client, found.data) == (1, b"honest")
            await server.acknowledge(found.sequence)
            while (await server._js.stream_info(UPDATES)).state.messages:
                await asyncio.sleep(0.1)
            await server.discard(0, 0.0)
            # NATS may still have been storing the flood; what it stores now has to be taken.
            uploading, late = asyncio.create_task(evil.upload("6-t", b"pardoned")), 0
            while True:
                found = await server.receive(1.0)
                if isinstance(found, Uploaded):
                    assert found.client == 0
                    if found.data == b"pardoned":
                        break
                    late += 1
                    await server.acknowledge(found.sequence)
            assert late < 1000
            await uploading

    asyncio.run(body())
