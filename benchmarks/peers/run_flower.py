"""Flower's simulation engine (Ray) on the workload: FedAvg, two actors of one core each.

python run_flower.py MODEL ROUNDS
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_DISABLE_DOCKER_CPU_WARNING", "1")

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import BATCH, CLIENTS, RATE, WORKLOADS

WORK, ROUNDS = WORKLOADS[sys.argv[1]], int(sys.argv[2])
_data: tuple[torch.Tensor, torch.Tensor] | None = None


class Client(NumPyClient):
    def __init__(self, number: int) -> None:
        global _data
        torch.set_num_threads(1)
        if _data is None:
            _data = WORK.data()  # once per actor
        part = slice(number * WORK.points, (number + 1) * WORK.points)
        self._inputs, self._labels = _data[0][part], _data[1][part]

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict]:
        net = WORK.model()
        with torch.no_grad():
            for mine, given in zip(net.parameters(), parameters, strict=True):
                mine.copy_(torch.from_numpy(given))
        optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
        for _ in range(WORK.epochs):
            for batch in torch.randperm(WORK.points).split(BATCH):
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(
                    net(self._inputs[batch]), self._labels[batch]
                )
                loss.backward()
                optimiser.step()
        return [p.detach().numpy() for p in net.parameters()], WORK.points, {}


times: list[float] = []


class Timed(FedAvg):
    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> Any:
        if failures:
            sys.exit(f"{len(failures)} clients failed: {failures[0]}")
        times.append(time.perf_counter())
        return super().aggregate_fit(server_round, results, failures)


def client_fn(context: Context) -> Any:
    return Client(int(context.node_config["partition-id"])).to_client()


def server_fn(context: Context) -> ServerAppComponents:
    first = [p.detach().numpy() for p in WORK.model().parameters()]
    strategy = Timed(
        fraction_fit=WORK.cohort / CLIENTS,
        min_fit_clients=WORK.cohort,
        min_available_clients=CLIENTS,
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(first),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))


if __name__ == "__main__":
    run_simulation(
        server_app=ServerApp(server_fn=server_fn),
        client_app=ClientApp(client_fn=client_fn),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    speed = WORK.cohort * (len(times) - 1) / (times[-1] - times[0])
    print(json.dumps({"peer": f"flwr {version('flwr')}", "updates_per_s": speed}))
