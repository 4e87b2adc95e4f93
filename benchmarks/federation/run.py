"""A federation of 1,000 light clients: updates per second, latencies, memory and CPU of each part.

python benchmarks/federation/run.py --seconds 600

With 5,000 clients, whose models must be small for all of them to fit into this machine's memory:

python benchmarks/federation/run.py --clients 5000 --hidden 16 --requests 1024
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedast.federation import wire
from fedast.federation.nats.client import send_command
from fedast.federation.nats.connection import Credentials, connect
from fedast.federation.nats.names import CONTROL_INBOX
from fedast.federation.nats.setup import CONTROL, SERVER, Layout, initialise, register_of

HERE = Path(__file__).parent
CONFIG = """
seed = 1
path = ["{here}"]

[algorithm]
name = "fedast-s"
requests = {requests}
ratio = 16
server_lr = 0.1

[simulation]
clients = {clients}

[federation]
min_clients = {clients}
lease = 120
request_timeout = 600
redeliver_after = 60
half_uploads = {half}
"""
TASK = """
[[tasks]]
use = "light_tasks:build"
name = "{name}"
options = {{ name = "{name}", hidden = {hidden} }}
"""


def used(pid: int) -> tuple[float, float]:
    """CPU seconds and resident MiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / ticks, pages * 4096 / 2**20


def status(url: str, layout: Layout) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        keys = Credentials(layout.credentials(CONTROL))
        answer = await send_command([url], keys, wire.encode(wire.Control("status")), 60)
        found: dict[str, Any] = json.loads(wire.decode(answer, wire.Control).answer)
        return found

    return asyncio.run(ask())


def wait_for_nats(url: str, layout: Layout) -> None:
    async def ask() -> None:
        keys = Credentials(layout.credentials(CONTROL))
        probe = await connect([url], keys, name="probe", inbox_prefix=CONTROL_INBOX, patience=300)
        await probe.close()

    asyncio.run(ask())


def put_in_one_account(layout: Layout) -> None:
    text = layout.nats_config.read_text()
    more = 'store_dir: "data", limits { default_max_consumers: -1 }'
    text = text.replace('store_dir: "data"', more)
    old = 'authorization {\n  include "users.conf"\n}\n'
    layout.nats_config.write_text(text.replace('include "accounts.conf"\n', old))
    with register_of(layout) as register:
        register.issue([])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--hidden", type=int, default=250, help="size of the models' hidden layer")
    parser.add_argument("--one-account", action="store_true",
                        help="NATS as earlier versions set it up, to compare with")  # fmt: skip
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedast-bench-"))
    layout = Layout(folder / "f")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = CONFIG.format(
        here=HERE.as_posix(), clients=options.clients, requests=options.requests,
        half=str(options.half).lower(),
    ) + "".join(TASK.format(name=name, hidden=options.hidden) for name in "abcd")  # fmt: skip
    began = time.monotonic()
    initialise(layout, options.clients, hosts=["localhost", "127.0.0.1"], port=port, config=text)
    if options.one_account:
        put_in_one_account(layout)
    print(f"set-up: keys and configuration {time.monotonic() - began:.1f} s", flush=True)
    url = f"tls://localhost:{port}"
    binary = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, *command: str, cwd: Path | None = None) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            processes[name] = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log)

    try:
        began = time.monotonic()
        start("nats", binary, "-c", "nats.conf", cwd=layout.nats)
        wait_for_nats(url, layout)
        memory = used(processes["nats"].pid)[1]
        print(f"set-up: nats-server {time.monotonic() - began:.1f} s, {memory:.0f} MiB", flush=True)
        creds = str(layout.credentials(SERVER))
        start("server", sys.executable, "-m", "fedast", "serve", str(layout.config), "--server",
              url, "--creds", creds, "--out", str(layout.run), "-q")  # fmt: skip
        share = -(-options.clients // options.processes)
        for number in range(options.processes):
            first, last = number * share, min(options.clients, (number + 1) * share)
            start(f"clients-{number}", sys.executable, str(HERE / "light_clients.py"), url,
                  str(layout.root), str(first), str(last),
                  str(folder / f"report-{number}.json"))  # fmt: skip
        measure(options, layout, url, processes, folder)
    finally:
        for process in reversed(processes.values()):
            process.kill()
            process.wait()
        if not os.environ.get("KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


def measure(
    options: argparse.Namespace,
    layout: Layout,
    url: str,
    processes: dict[str, subprocess.Popen[bytes]],
    folder: Path,
) -> None:
    started = time.monotonic()
    end = started + 300 + options.clients / 5
    while True:
        for name, process in processes.items():
            if process.poll() is not None:
                raise SystemExit(f"{name} ended: {(folder / f'{name}.log').read_text()[-2000:]}")
        time.sleep(2)
        try:
            found = status(url, layout)
            print(f"{found['client_count']} clients here", flush=True)
            if sum(task["updates"] for task in found["tasks"].values()) > 200:
                print(f"set-up: queues, all clients, first updates "
                      f"{time.monotonic() - started:.1f} s, nats-server "
                      f"{used(processes['nats'].pid)[1]:.0f} MiB", flush=True)  # fmt: skip
                break
        except Exception as error:  # not there yet
            if time.monotonic() > end:
                raise SystemExit(f"it does not begin: {error}") from error
    began, spans = time.monotonic(), []
    before = {name: used(process.pid) for name, process in processes.items()}
    count = last = sum(task["updates"] for task in found["tasks"].values())
    last_time = began
    while time.monotonic() - began < options.seconds:
        time.sleep(min(30.0, options.seconds / 4))
        found = status(url, layout)
        now, total = time.monotonic(), sum(t["updates"] for t in found["tasks"].values())
        memory = {name: used(process.pid)[1] for name, process in processes.items()}
        rate = (total - last) / (now - last_time)
        spans.append(rate)
        clients = sum(m for name, m in memory.items() if name.startswith("clients"))
        print(f"{now - began:6.0f} s  {rate:7.1f} updates/s  server {memory['server']:.0f} MiB, "
              f"nats {memory['nats']:.0f} MiB, all clients {clients:.0f} MiB, "
              f"clients here {found['client_count']}", flush=True)  # fmt: skip
        last, last_time = total, now
    wall = time.monotonic() - began
    print(f"sustained: {(last - count) / wall:.1f} updates/s over {wall:.0f} s, "
          f"slowest span {min(spans):.1f}")  # fmt: skip
    for name, process in processes.items():
        cpu, memory_now = used(process.pid)
        share = (cpu - before[name][0]) / wall
        print(f"{name}: {100 * share:.0f} % of a core, {before[name][1]:.0f} MiB at the start, "
              f"{memory_now:.0f} MiB at the end")  # fmt: skip
    sent: dict[int, float] = {}
    waits = []
    with (layout.run / "events.jsonl").open() as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                break  # the line that is being written
            if event["event"] == "dispatch":
                sent[event["request"]] = event["t"]
            elif event["event"] == "arrive":
                waits.append(event["t"] - sent.pop(event["request"], event["t"]))
    waits.sort()
    quantiles = {q: waits[int(q / 100 * (len(waits) - 1))] for q in (50, 90, 99)}
    print("from request to counted update: " + ", ".join(
        f"{q} % within {value:.2f} s" for q, value in quantiles.items()))  # fmt: skip


if __name__ == "__main__":
    main()
