"""FedAST-plus serves real federations unchanged: over NATS, and through a crash."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path

import pytest
import torch

from fedast.federation.agent import Agent
from fedast.federation.memory import Hub
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining
from tests.federation.nats_support import NatsBed
from tests.federation.support import audit, federate, two_tasks

OPTIONS = "requests = 4\nratio = 2\nlargest = 0.5"


def check(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    assert result["algorithm"] == "fedast-plus"
    assert {task["finish_reason"] for task in result["tasks"].values()} == {"target"}
    assert audit(folder)["arrive"] > 10
    with (folder / "curves.csv").open(newline="") as file:
        assert {row["model"] for row in csv.DictReader(file)} == {"average", "raw"}


def test_it_trains_over_nats(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, algorithm="fedast-plus", options=OPTIONS)
    folder = tmp_path / "run"

    async def go() -> None:
        async with NatsBed(tmp_path, clients=4) as bed:
            agents = [
                Agent(
                    client,
                    await bed.client(client),
                    LocalTraining(config, client),
                    software="test",
                    hello_every=0.2,
                )
                for client in range(4)
            ]
            federation = Federation(config, await bed.server(), folder)
            running = [asyncio.create_task(agent.run()) for agent in agents]
            try:
                async with asyncio.timeout(120):
                    await federation.run()
            finally:
                for agent in agents:
                    agent.stop()
                await asyncio.gather(*running)

    asyncio.run(go())
    check(folder)


def test_the_average_is_handed_out_and_clients_get_the_newest_model(tmp_path: Path) -> None:
    config = two_tasks(tmp_path, algorithm="fedast-plus", options=OPTIONS)
    federation = asyncio.run(federate(config, tmp_path / "run", Hub()))
    check(tmp_path / "run")
    learner = federation._learner
    for task in ("digits-mlp", "second"):
        assert torch.equal(federation.model(task), learner.result(task))
        assert not torch.equal(federation.model(task), learner.parameters(task))


@pytest.mark.parametrize("evaluate", ["clients", "server"])
def test_records_say_which_model_was_evaluated(tmp_path: Path, evaluate: str) -> None:
    """Clients are asked about the newest model, which is what they are sent."""
    config = two_tasks(
        tmp_path, algorithm="fedast-plus", options=OPTIONS, federation=f'evaluate = "{evaluate}"'
    )
    asyncio.run(federate(config, tmp_path / "run", Hub()))
    with (tmp_path / "run" / "curves.csv").open(newline="") as file:
        models = {row["model"] for row in csv.DictReader(file)}
    assert models == ({"average", "raw"} if evaluate == "server" else {"raw"})
