"""What goes wrong on the server's side stops the server, and is never blamed on a client."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.federation import wire
from fedast.federation.faults import ServerFault
from fedast.federation.memory import Hub, MemoryClient
from tests.federation.scripted import CLIENTS, Scripted, play, scripted_config
from tests.federation.support import audit, federate

RULES = '''
import torch
from fedast.aggregation.aggregators import AggregatorOptions
from fedast.aggregation.server_optimizers import SGD
from fedast.algorithms.staleness import StalenessOptions

BROKEN_AFTER = None
calls = 0

def fail_in_time():
    global calls
    calls += 1
    if BROKEN_AFTER is not None and calls > BROKEN_AFTER:
        return 1 / 0

class Weight(StalenessOptions):
    """Own."""
    def build(self):
        return weight

def weight(staleness):
    fail_in_time()
    return 1.0

class Aggregator(AggregatorOptions):
    """Own."""
    def build(self):
        return aggregate

def aggregate(updates):
    if BROKEN_AFTER is not None and len(updates) > BROKEN_AFTER:
        return updates @ updates
    return updates.mean(dim=0)

def allocate(variance, task):
    fail_in_time()
    return 1.0

class Optimizer(SGD):
    """Own."""
    def build(self, initial, trained, *, lr, scale):
        return Stateful(super().build(initial, trained, lr=lr, scale=scale))

class Stateful:
    def __init__(self, inner):
        self.inner = inner
    def step(self, direction, staleness):
        return self.inner.step(direction, staleness)
    def state(self):
        fail_in_time()
        return {}
    def restore(self, state):
        pass
'''


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "own_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("own_rules", None)
    yield importlib.import_module("own_rules")
    sys.modules.pop("own_rules", None)


def config_with(part: str) -> RunConfig:
    match part:
        case "weight":
            return scripted_config("fedast-d", algorithm={"staleness_weight": "own_rules:Weight"})
        case "aggregate":
            return scripted_config("fedast-d", aggregator="own_rules:Aggregator")
        case "allocate":
            return scripted_config("fedast-d", algorithm={"allocation_rule": "own_rules:allocate"})
        case _:
            return scripted_config("fedast-d", server_optimizer="own_rules:Optimizer")


@pytest.mark.parametrize(
    ("part", "after", "error"),
    [
        ("weight", 0, "ZeroDivisionError"),
        ("weight", 9, "ZeroDivisionError"),
        ("aggregate", 0, "RuntimeError"),
        ("allocate", 0, "ZeroDivisionError"),
        ("state", 12, "ZeroDivisionError"),
    ],
)
def test_an_error_of_ones_own_code_stops_the_server_before_it_commits(
    rules: Any, tmp_path: Path, part: str, after: int, error: str
) -> None:
    folder = tmp_path / "run"

    def on_disk() -> dict[str, bytes]:
        names = [*(folder / "diary").glob("diary*"), *(folder / "diary" / "state").glob("*.json")]
        return {str(path): path.read_bytes() for path in names}

    async def body() -> None:
        scripted = Scripted(config_with(part), folder)
        await scripted.start()
        for client in range(CLIENTS):
            await scripted.join(client)
        await scripted.begin()
        await scripted.commit()
        rules.BROKEN_AFTER = after
        before = on_disk()
        message = ""
        for step in range(60):
            try:
                await play(scripted, [step % CLIENTS])
            except ServerFault as fault:
                message = str(fault)
                break
            before = on_disk()
        name = "fail_in_time" if error == "ZeroDivisionError" else part
        line = 1 + next(
            number
            for number, text in enumerate(RULES.splitlines())
            if ("1 / 0" if error == "ZeroDivisionError" else "updates @ updates") in text
        )
        assert error in message
        assert f"in {name}, {tmp_path / 'own_rules.py'}, line {line}" in message
        assert "goes on from its last commit" in message
        assert "\n" not in message
        assert on_disk() == before, "the entry that failed is not in the log"
        membership = scripted.running.server.state.membership
        assert (membership.quarantined, +membership.strikes) == (set(), {})
        scripted.crash()
        rules.BROKEN_AFTER, rules.calls = None, 0
        await scripted.start()
        committed = scripted.running.run_metrics.updates
        await play(scripted, [0, 1, 2] * 6)
        assert scripted.running.run_metrics.updates > committed + 3
        scripted.end()
        audit(folder)

    asyncio.run(body())


def test_the_records_stay_as_they_were_until_the_code_is_repaired(
    rules: Any, tmp_path: Path
) -> None:
    path = tmp_path / "federation.toml"
    path.write_text("""
seed = 1
algorithm = { name = "fedast-d", requests = 8, ratio = 2, staleness_weight = "own_rules:Weight" }
simulation = { clients = 3 }
federation = { min_clients = 3, commit_every = 0.1 }

[[tasks]]
use = "synthetic"
target = 0.999
max_rounds = 40
""")
    config = resolve(load(path), tmp_path)
    folder, hub = tmp_path / "run", Hub()

    async def stop_soon(federation: Any, agents: Any) -> None:
        while federation.run_metrics.updates < 10:
            await asyncio.sleep(0.01)
        federation.server.stop()

    asyncio.run(federate(config, folder, hub, meanwhile=stop_soon))
    kept = {name: (folder / name).read_bytes() for name in ("result.json", "curves.csv")}
    events = (folder / "events.jsonl").read_bytes()
    rules.BROKEN_AFTER = rules.calls  # whether it replays or starts from a snapshot
    for _ in range(2):
        hub.changed, hub.told = asyncio.Event(), asyncio.Queue()
        with pytest.raises(ServerFault, match=r"own_rules\.py, line"):
            asyncio.run(federate(config, folder, hub))
        assert {name: (folder / name).read_bytes() for name in kept} == kept
        assert (folder / "events.jsonl").read_bytes().startswith(events[:200])
        audit(folder)
    rules.BROKEN_AFTER = None
    hub.changed, hub.told = asyncio.Event(), asyncio.Queue()
    asyncio.run(federate(config, folder, hub))
    assert audit(folder)["drop invalid"] == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["tasks"]["synthetic"]["rounds"] == 40


def test_a_client_that_is_admitted_later_has_a_place_in_the_calibration(tmp_path: Path) -> None:
    """Its number is beyond those of the partition; a restart knows its place again."""

    async def body() -> None:
        scripted = Scripted(scripted_config("fedast-d", calibration="always"), tmp_path)
        await scripted.start()
        for client in range(CLIENTS):
            await scripted.join(client)
        await scripted.begin()
        await scripted.join(CLIENTS + 4)
        for step in range(24):
            await play(scripted, [[0, 1, CLIENTS + 4, 2][step % 4]])
        counted = scripted.running.run_metrics.updates
        assert counted > 10
        model = scripted.running.model("first")
        membership = scripted.running.server.state.membership
        assert (membership.quarantined, +membership.strikes) == (set(), {})
        scripted.crash()
        await scripted.start()
        assert bool((scripted.running.model("first") == model).all())
        await play(scripted, [0, CLIENTS + 4])
        scripted.end()

    asyncio.run(body())


def test_a_decoder_that_raises_is_the_senders_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises: bytes that a decoder did not expect must not stop the server."""

    async def body() -> None:
        scripted = Scripted(scripted_config("fedast-d"), tmp_path)
        await scripted.start()
        for client in range(CLIENTS):
            await scripted.join(client)
        await scripted.begin()
        delivery = await MemoryClient(scripted.hub, 1).next(0.0)
        assert delivery is not None
        request = wire.decode(delivery.data, wire.Request)

        def unexpected(*_: object) -> None:
            raise RecursionError("too deep")

        name = f"{request.id}-{request.token}"
        with monkeypatch.context() as patch:
            patch.setattr(wire, "_vectors", unexpected)
            update = wire.Update(request.id, request.token, request.task, 1.0, 1.0, 1, None)
            await MemoryClient(scripted.hub, 1).upload(name, wire.encode(update))
            await scripted._read()
        assert scripted.running.server.state.membership.strikes[1] == 1
        assert request.id not in scripted.running.server.state.driver.open
        scripted.end()

    asyncio.run(body())
