"""Whole federations over the in-memory transport: they train, evaluate and keep exact records."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from pathlib import Path

import pytest
import torch

import fedast
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.federation import wire
from fedast.federation.agent import Agent
from fedast.federation.memory import Hub, send_command
from fedast.run.federate import Federation
from fedast.tasks.task import Task
from fedast.training.flat import FlatModel
from tests.aggregation.test_running_statistics import Normalised, make_task
from tests.federation.nats_support import free_port
from tests.federation.support import audit, events, federate, hold, two_tasks


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("fedast-d", "requests = 8\nratio = 2\nserver_rate = 0.5"),
        ("fedast-nobuffer", "requests = 8\nserver_rate = 0.3"),
        ("fedbuff", "requests = 4\nratio = 2\nserver_rate = 0.5"),
        ("sync-st", "first_k = 2"),
        ("sync-ucb-st", "first_k = 2"),
        ("sequential-fedavg", "first_k = 3"),
    ],
)
def test_a_federation_trains_two_tasks_to_target(
    tmp_path: Path, algorithm: str, options: str
) -> None:
    config = two_tasks(tmp_path, algorithm=algorithm, options=options)
    asyncio.run(federate(config, tmp_path / "run", Hub()))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["algorithm"] == algorithm
    assert {task["finish_reason"] for task in result["tasks"].values()} == {"target"}
    counts = audit(tmp_path / "run")
    assert counts["arrive"] > 10


def test_control_commands(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, target=0.9)
    hub = Hub()
    said: list[str] = []

    async def command(federation: Federation, agents: list[Agent]) -> None:
        async def say(verb: str, argument: str = "") -> str:
            data = await send_command(hub, wire.encode(wire.Control(verb, argument)))
            answer = wire.decode(data, wire.Control)
            said.append(answer.answer)
            return answer.answer

        gate = threading.Event()  # nothing ends before it is paused
        for agent in agents:
            hold(agent, gate)
        while not any(hub.queues.values()):
            await asyncio.sleep(0.01)
        await say("pause")
        gate.set()
        while hub.uploads or any(hub.queues.values()):
            await asyncio.sleep(0.01)
        updates = federation.run_metrics.updates
        await asyncio.sleep(0.5)
        assert federation.run_metrics.updates == updates
        status = json.loads(await say("status"))
        assert status["paused"] is True
        assert status["clients"] == [0, 1, 2, 3]
        assert status["requests"] == {}
        await say("stop", "second")  # before it can end by itself
        await say("stop", "nothing")
        await say("dance")
        await say("resume")

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=command))
    assert said[-4] == "task second is stopped"
    assert said[-3].startswith("refused")
    assert said[-2].startswith("refused")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["tasks"]["second"]["finish_reason"] == "removed"
    assert result["tasks"]["digits-mlp"]["finish_reason"] == "target"


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("fedast-s", "requests = 8\nratio = 2\nserver_rate = 0.5"), ("sync-st", "first_k = 2")],
)
def test_clients_can_evaluate(tmp_path: Path, algorithm: str, options: str) -> None:
    how = 'evaluate = "clients"\nevaluators = 3'
    config = two_tasks(tmp_path, algorithm=algorithm, options=options, federation=how)
    asyncio.run(federate(config, tmp_path / "run", Hub()))
    audit(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {task["finish_reason"] for task in result["tasks"].values()} == {"target"}
    measured = [e for e in events(tmp_path / "run") if e["event"] == "evaluate"]
    asked = {(e["task"], e["round"]) for e in measured}
    assert len(asked) == len(measured)
    log = (tmp_path / "run" / "diary" / "diary.jsonl").read_text()
    assert log.count('"e":"answer"') > len(measured), "each is asked of several clients"


def test_prometheus_finds_the_metrics(tmp_path: Path) -> None:
    port = free_port()
    config = two_tasks(tmp_path, federation=f"metrics_port = {port}\nhalf_uploads = true")
    found: list[str] = []

    async def scrape(federation: Federation, agents: list[Agent]) -> None:
        while federation.run_metrics.updates < 10:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{port}/metrics"

        def read() -> str:
            with urllib.request.urlopen(url, timeout=5) as answer:
                text: str = answer.read().decode()
                return text

        found.append(await asyncio.to_thread(read))

    asyncio.run(federate(config, tmp_path / "run", Hub(), meanwhile=scrape))
    (text,) = found
    assert 'fedast_updates_total{task="digits-mlp"}' in text
    assert "fedast_clients 4.0" in text
    assert 'fedast_round{task="second"}' in text
    audit(tmp_path / "run")


def normalised(clients: int, seed: int) -> Task:
    """A task with batch normalisation, for a configuration."""
    return make_task(rounds=15, server_lr=1.0, buffer=2)


@pytest.mark.parametrize("half", ["false", "true"])
def test_running_statistics_of_a_federation_stay_in_range(tmp_path: Path, half: str) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(
        'seed = 1\n[algorithm]\nname = "fedast-s"\n[simulation]\nclients = 12\n'
        f"[federation]\nmin_clients = 12\nhalf_uploads = {half}\n"
        '[[tasks]]\nuse = "tests.federation.test_federation:normalised"\nname = "t"\n'
    )
    config = resolve(load(path), tmp_path)
    federation = asyncio.run(federate(config, tmp_path / "run", Hub()))
    module, start = Normalised(), Normalised()
    FlatModel(module, torch.device("cpu")).write(federation.model("t"))
    assert module.norm.running_var is not None
    assert module.norm.running_var.min() >= 0
    assert not torch.equal(module.norm.running_var, torch.ones(6))
    assert torch.equal(module.table, start.table), "half precision would have rounded it"
    tasks = json.loads((tmp_path / "run" / "result.json").read_text())["tasks"]
    assert tasks["t"]["finish_reason"] == "rounds"


def test_it_leaves_its_models(tmp_path: Path) -> None:
    config = two_tasks(tmp_path)
    federation = asyncio.run(federate(config, tmp_path / "run", Hub()))
    for task in ("digits-mlp", "second"):
        kept = fedast.load(tmp_path / "run").model(task)
        vector = torch.nn.utils.parameters_to_vector(kept.parameters())
        assert torch.equal(vector, federation.model(task)[: len(vector)])
