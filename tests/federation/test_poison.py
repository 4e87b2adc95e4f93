"""Clients that send what is valid to look at and harmful: updates, running statistics, evaluations.

Each case runs a whole federation over the real nats-server: three honest clients, one hostile.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedast.config.schema import RunConfig
from fedast.federation import wire
from fedast.federation.agent import Agent
from fedast.federation.nats.connection import connect
from fedast.federation.nats.names import SERVER_INBOX
from fedast.federation.nats.server import NatsServer
from fedast.federation.nats.setup import SERVER
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining
from tests.federation.evil import EVIL, TASKS, Forge, answer, evil, spoilt
from tests.federation.nats_support import NatsBed
from tests.federation.support import audit, events, two_tasks


def forged(kind: str) -> Forge:
    return lambda request: answer(request, spoilt(kind, request.size))


async def besieged(config: RunConfig, folder: Path, bed: NatsBed, forge: Forge) -> Federation:
    """A federation to its end, with one hostile client."""
    connection = await connect(
        [bed.url], bed.keys(SERVER), name="server", inbox_prefix=SERVER_INBOX, patience=15
    )
    server = NatsServer(connection, range(config.simulation.clients), 2.0)
    federation = Federation(config, server, folder)
    agents = [
        Agent(
            client, await bed.client(client), LocalTraining(config, client),
            software="test", hello_every=0.2,
        )
        for client in range(config.simulation.clients)
        if client != EVIL
    ]  # fmt: skip
    over = asyncio.Event()
    running: list[Awaitable[None]] = [asyncio.create_task(agent.run()) for agent in agents]
    attack = asyncio.create_task(evil(await bed.client(EVIL), forge, over.is_set))
    try:
        async with asyncio.timeout(120):
            await federation.run()
    finally:
        over.set()
        for agent in agents:
            agent.stop()
        await asyncio.gather(*running)
        with suppress(Exception):  # whatever it met: it is the attacker
            await attack
        await server.close()
    return federation


def siege(tmp_path: Path, forge: Forge, **options: Any) -> list[dict[str, Any]]:
    """The write-ahead log of a besieged federation that reached its targets."""
    config = two_tasks(tmp_path, **options)

    async def go() -> Federation:
        async with NatsBed(tmp_path, clients=config.simulation.clients) as bed:
            return await besieged(config, tmp_path / "run", bed, forge)

    federation = asyncio.run(go())
    assert all(np.isfinite(federation.model(task).numpy()).all() for task in TASKS)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {task["finish_reason"] for task in result["tasks"].values()} == {"target"}
    audit(tmp_path / "run")
    lines = (tmp_path / "run" / "diary" / "diary.jsonl").read_text().splitlines()
    log = [json.loads(line) for line in lines]
    assert {entry["c"] for entry in log if entry["e"] in ("strike", "quarantine")} <= {EVIL}
    return log


def sieges(
    tmp_path: Path, forge: Callable[[], Forge], **options: Any
) -> Iterator[list[dict[str, Any]]]:
    """Three, because the others may be done before the attacker has its say."""
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        yield siege(folder, forge(), **options)


@pytest.mark.parametrize("size", [3e38, 1e30, 1e12, 1e6, 1e3])
def test_an_update_that_is_far_too_long_is_refused(tmp_path: Path, size: float) -> None:
    refused: list[dict[str, Any]] = []
    for log in sieges(tmp_path, lambda: forged(str(size))):
        assert "rollback" not in {entry["e"] for entry in log}
        arrived = [entry for entry in log if entry["e"] == "arrive" and "norm" in entry]
        assert all(entry["norm"] < 100 for entry in arrived)
        refused = [entry for entry in log if entry["e"] == "lost" and entry.get("norm", 0) > 100]
        if refused:
            break
    assert refused


@pytest.mark.parametrize("size", [3e38, 1e30, 1e12])
@pytest.mark.parametrize("algorithm", ["fedast-d", "sync-st"])
def test_without_a_bound_the_model_goes_back(tmp_path: Path, size: float, algorithm: str) -> None:
    """The attacker poisons each task twice. No honest client is punished for what it makes of a
    poisoned model."""

    def sometimes() -> Forge:
        sent: Counter[str] = Counter()

        def forge(request: wire.Request) -> wire.Update:
            sent[request.task] += 1
            value = size if sent[request.task] in (1, 3) else 0.0
            return answer(request, np.full(request.size, value, np.float32))

        return forge

    options = "requests = 8\nratio = 2\nserver_rate = 0.5"
    if algorithm == "sync-st":
        options = "first_k = 2"
    back: list[dict[str, Any]] = []
    for log in sieges(
        tmp_path, sometimes, algorithm=algorithm, options=options, federation='norm_bound = "off"'
    ):
        back = [entry for entry in log if entry["e"] == "rollback"]
        if back:
            break
    assert back
    for entry in back:
        assert EVIL in {client for _, client in entry["suspects"]}
        assert entry["version"] > entry["back_to"]
    (*_, last) = sorted(tmp_path.iterdir())
    assert any(event["event"] == "rollback" for event in events(last / "run"))


def claims(**more: Any) -> Forge:
    """Evaluates like a liar, and trains nothing."""

    def forge(request: wire.Request) -> wire.Update:
        if request.kind != "evaluate":
            return answer(request, np.zeros(request.size, np.float32))
        return answer(request, None, **{"metric": 1.0, "loss": 0.0, "samples": 10**6, **more})

    return forge


@pytest.mark.parametrize(
    "lie",
    [
        {},
        {"samples": 2**62},
        {"metric": 1e9},
        {"means": (1.0,)},
        {"metric": float("nan"), "loss": float("nan")},
        {"metric": 0.0, "loss": 1e30},
    ],
    ids=["perfect", "many samples", "out of range", "with its parts", "nan", "collapse"],
)
def test_no_single_evaluator_decides(tmp_path: Path, lie: dict[str, Any]) -> None:
    how = 'evaluate = "clients"\nevaluators = 2'
    log = siege(tmp_path, claims(**lie), federation=how)
    assert [entry for entry in log if entry["e"] == "rollback"] == []
    found = [entry for entry in log if entry["e"] == "evaluated"]
    first = [entry for entry in found if entry["round"] == 0]
    assert first
    assert all(entry["metric"] < 0.8 for entry in first)  # an untrained model is at no target


def test_a_client_that_belittles_every_model_stops_nothing(tmp_path: Path) -> None:
    """(That only the client that was asked can answer is in ``test_evaluation``.)"""
    how = 'evaluate = "clients"\nevaluators = 3'
    log = siege(tmp_path, claims(metric=0.01, loss=9.0, samples=1), federation=how)
    assert [entry for entry in log if entry["e"] == "evaluated"]
