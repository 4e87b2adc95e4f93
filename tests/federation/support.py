"""A small federation for tests, and the audit of its records."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.federation import wire
from fedast.federation.agent import Agent
from fedast.federation.memory import Hub, MemoryClient, MemoryServer
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining

TWO_TASKS = """
seed = 1

[algorithm]
name = "{algorithm}"
{options}

[simulation]
clients = {clients}

[federation]
min_clients = {clients}
lease = {lease}
redeliver_after = 2
commit_every = {commit}
{federation}

[[tasks]]
use = "digits-mlp"
target = {target}
options = {{ alpha = 1.0, points = 200 }}

[[tasks]]
use = "digits-mlp"
name = "second"
target = 0.8
options = {{ alpha = 5.0, points = 100 }}
"""


def two_tasks(
    folder: Path,
    *,
    algorithm: str = "fedast-d",
    options: str = "requests = 8\nratio = 2\nserver_rate = 0.5",
    clients: int = 4,
    lease: float = 30.0,
    commit: float = 0.2,
    target: float = 0.8,
    federation: str = "",
) -> RunConfig:
    path = folder / "federation.toml"
    text = TWO_TASKS.format(
        algorithm=algorithm, options=options, clients=clients, lease=lease, commit=commit,
        target=target, federation=federation,
    )  # fmt: skip
    path.write_text(text)
    return resolve(load(path), folder)


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def audit(folder: Path) -> Counter[str]:
    return audited(events(folder))


def audited(happened: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Every request is sent once and ends once; nothing is aggregated twice."""
    sent: dict[int, Mapping[str, Any]] = {}
    ended: Counter[int] = Counter()
    used: Counter[int] = Counter()
    arrived: set[int] = set()
    counts: Counter[str] = Counter()
    last = 0.0
    for event in happened:
        assert event["t"] >= last
        last = event["t"]
        counts[event["event"]] += 1
        match event["event"]:
            case "dispatch":
                assert event["request"] not in sent
                sent[event["request"]] = event
            case "arrive":
                arrived.add(event["request"])
                ended[event["request"]] += 1
                assert event["client"] == sent[event["request"]]["client"]
            case "drop":
                counts[f"drop {event['reason']}"] += 1
                if event["request"] not in arrived:
                    ended[event["request"]] += 1
            case "aggregate":
                for request in event["requests"]:
                    used[request] += 1
                    assert request in arrived
            case _:
                pass
    assert set(ended) <= set(sent)
    assert max(ended.values(), default=1) == 1
    assert max(used.values(), default=1) == 1
    assert sorted(sent) == list(range(len(sent)))
    counts["open"] = len(sent) - len(ended)
    return counts


def agent(hub: Hub, config: RunConfig, client: int) -> Agent:
    training = LocalTraining(config, client)
    return Agent(client, MemoryClient(hub, client), training, software="test", hello_every=0.2)


def hold(agent: Agent, gate: threading.Event, begun: threading.Event | None = None) -> None:
    """Keep a client from training until the gate is open; ``begun``: it would train now."""
    train = agent._training.train

    def later(*arguments: Any) -> Any:
        if begun is not None:
            begun.set()
        assert gate.wait(60)
        return train(*arguments)

    agent._training.train = later  # type: ignore[method-assign, assignment]


def request_in(data: bytes) -> wire.Request | None:
    """The request in a client's queue; None if it is a notice."""
    try:
        return wire.decode(data, wire.Request)
    except wire.WireError:
        wire.decode(data, wire.Notice)
        return None


async def federate(
    config: RunConfig,
    folder: Path,
    hub: Hub,
    *,
    meanwhile: Callable[[Federation, list[Agent]], Coroutine[Any, Any, None]] | None = None,
) -> Federation:
    """A server and its clients in one loop, to the end."""
    agents = [agent(hub, config, client) for client in range(config.simulation.clients)]
    federation = Federation(config, MemoryServer(hub), folder)
    running = [asyncio.create_task(a.run()) for a in agents]
    side = asyncio.create_task(meanwhile(federation, agents)) if meanwhile else None
    try:
        async with asyncio.timeout(90):
            await federation.run()
    finally:
        for a in agents:
            a.stop()
        await asyncio.gather(*running)
        if side is not None:
            async with asyncio.timeout(10):
                await side
    return federation
