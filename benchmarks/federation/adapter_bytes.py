"""What a federation sends for adapters, beside the whole model: a real nats-server on loopback.

    python benchmarks/federation/adapter_bytes.py examples/adapters-small.toml --clients 2

Server and clients are in one process and use the transport that real ones use; every upload and
every model that a client downloads is measured as it goes over the connection, before TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.federation import wire
from fedast.federation.agent import Agent
from fedast.federation.nats.client import NatsClient
from fedast.federation.nats.connection import Credentials, connect
from fedast.federation.nats.names import SERVER_INBOX, inbox
from fedast.federation.nats.server import NatsServer
from fedast.federation.nats.setup import SERVER, Layout, client_name, initialise
from fedast.records.run import RunResult, read_run
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining
from fedast.tasks.adapters.base import base_of

_LIMIT = 600 * 2**20


async def federate(
    config: RunConfig, folder: Path, port: int
) -> tuple[RunResult, dict[str, list[int]]]:
    """Run it to its end; the result, and the size of each upload by task."""
    layout, clients = Layout(folder / "federation"), config.simulation.clients
    initialise(layout, clients, hosts=("localhost", "127.0.0.1"), port=port, config="")
    binary = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))
    sent: dict[str, list[int]] = defaultdict(list)
    with (folder / "nats.log").open("ab") as log:
        nats = subprocess.Popen(
            [binary, "-c", "nats.conf"], cwd=layout.nats, stdout=log, stderr=log
        )
    try:

        async def connected(name: str, prefix: str) -> Any:
            keys = Credentials(layout.credentials(name))
            url = f"tls://localhost:{port}"
            return await connect([url], keys, name=name, inbox_prefix=prefix, patience=30)

        server = NatsServer(await connected(SERVER, SERVER_INBOX), range(clients), 5.0)
        await server.start(0, _LIMIT)
        agents = []
        for number in range(clients):
            connection = await connected(client_name(number), inbox(number))
            client = NatsClient(connection, number, 5.0)
            training = _counted(config, number, client, sent)
            agents.append(Agent(number, client, training, software="benchmark"))
        federation = Federation(config, server, folder / "run")
        running = [asyncio.create_task(agent.run()) for agent in agents]
        try:
            await federation.run()
        finally:
            for agent in agents:
                agent.stop()
            await asyncio.gather(*running)
            await server.close()
    finally:
        nats.terminate()
        nats.wait()
    return read_run(folder / "run"), sent


def _counted(
    config: RunConfig, number: int, client: NatsClient, sent: dict[str, list[int]]
) -> LocalTraining:
    """A client's training; its uploads are counted under the task that it trained last."""
    training = LocalTraining(config, number)
    train, upload = training.train, client.upload
    last: list[str] = []

    def noted(task: str, request: int, vector: wire.Vector, version: int = 0) -> Any:
        last[:] = [task]
        return train(task, request, vector, version)

    async def measured(name: str, data: bytes) -> None:
        if last:
            sent[last[0]].append(len(data))
        await upload(name, data)

    training.train = noted  # type: ignore[method-assign]
    client.upload = measured  # type: ignore[method-assign]
    return training


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    settings = [f"simulation.clients={chosen.clients}", f"federation.min_clients={chosen.clients}",
                "algorithm.requests=6", "federation.request_timeout=3600"]  # fmt: skip
    count = len(load(chosen.config).tasks)
    settings += [f"tasks.{number}.max_rounds={chosen.rounds}" for number in range(count)]
    config = resolve(load(chosen.config, settings), chosen.config.parent)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        result, sent = asyncio.run(federate(config, Path(folder), port))
    print("| task | bytes per update | whole model | updates |\n|---|---:|---:|---:|")
    for task in config.tasks:
        name = task.name or task.use
        sizes = sent[name]
        whole = base_of(task.options["base"]).bytes
        mean = sum(sizes) / len(sizes)
        print(f"| {name} | {mean:,.0f} | {whole:,} | {result.tasks[name].updates} |")


if __name__ == "__main__":
    main()
