"""What clients cost that have nothing to do: CPU time of nats-server, and of the clients.

python benchmarks/federation/idle.py --clients 500 --seconds 60

The clients are agents as `fedast client` runs them, all in one process; the server only creates
their queues and hears their heartbeats.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from fedast.federation.agent import Agent, Training
from fedast.federation.nats.client import NatsClient
from fedast.federation.nats.connection import Credentials, connect
from fedast.federation.nats.names import SERVER_INBOX, inbox
from fedast.federation.nats.server import NatsServer
from fedast.federation.nats.setup import SERVER, Layout, client_name, initialise
from fedast.federation.transport import Greeted


class _NoTraining:
    tasks = ("a",)

    def samples(self, task: str) -> int:
        return 1


async def _measure(url: str, layout: Layout, nats: int, options: argparse.Namespace) -> None:
    async def keys(name: str, its_inbox: str):  # type: ignore[no-untyped-def]
        folder = Credentials(layout.credentials(name))
        return await connect([url], folder, name=name, inbox_prefix=its_inbox)

    server = NatsServer(await keys(SERVER, SERVER_INBOX), range(options.clients), 30.0)
    await server.start(0, 2**20)
    training: Training = _NoTraining()  # type: ignore[assignment]
    running = []
    for number in range(options.clients):
        transport = NatsClient(await keys(client_name(number), inbox(number)), number, 30.0)
        agent = Agent(number, transport, training, software="idle")
        running.append(asyncio.create_task(agent.run()))
    here: set[int] = set()
    while len(here) < options.clients:
        found = await server.receive(5.0)
        if isinstance(found, Greeted):
            here.add(found.client)
    began, process, ours = time.monotonic(), psutil.Process(nats), time.process_time()
    before = sum(process.cpu_times()[:2])
    while time.monotonic() - began < options.seconds:
        await server.receive(0.5)
    wall = time.monotonic() - began
    spent = sum(process.cpu_times()[:2]) - before
    own = time.process_time() - ours
    print(
        f"nats-server: {spent:.2f} s of CPU in {wall:.0f} s, {100 * spent / wall:.1f} % of a core"
    )
    print(f"{options.clients} clients and the server's end: {own:.2f} s")
    for task in running:
        task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedast-idle-"))
    layout = Layout(folder / "f")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    initialise(layout, options.clients, hosts=["localhost", "127.0.0.1"], port=port, config="")
    binary = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))
    with (folder / "nats.log").open("wb") as log:
        nats = subprocess.Popen(
            [binary, "-c", "nats.conf"], cwd=layout.nats, stdout=log, stderr=log
        )
    try:
        asyncio.run(_measure(f"tls://localhost:{port}", layout, nats.pid, options))
    finally:
        nats.kill()
        nats.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
