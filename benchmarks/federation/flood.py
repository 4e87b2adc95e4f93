"""Honest updates per second while one client floods the server; real nats-server, real processes.

python benchmarks/federation/flood.py --kind tiny --seconds 30
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedast.federation import wire
from fedast.federation.nats.connection import Credentials, connect
from fedast.federation.nats.names import UPLOAD_HEADER, hello_subject, inbox, upload_subject
from fedast.federation.nats.setup import SERVER, Layout, client_name, initialise
from fedast.federation.write_ahead_log import ENTRIES, FOLDER
from run import CONFIG, HERE, TASK, status, used

KINDS = ("tiny", "closed", "chunks", "large", "evaluations", "hello")


def messages(kind: str, client: int) -> Iterator[tuple[str, str, bytes]]:
    """What the flood is made of: subject, name of the upload, and data."""
    hello = wire.encode(wire.Hello(client, "light", ("a", "b", "c", "d")))
    for number in itertools.count():
        match kind:
            case "tiny":  # for requests that were never sent
                yield upload_subject(client), f"x{number}.0-1", b"x"
            case "closed":  # ... that have ended
                yield upload_subject(client), f"{number % 100}-t{number}.0-1", b"x"
            case "chunks":  # first chunks of uploads that never become whole
                yield upload_subject(client), f"x{number}.0-2", b"x"
            case "large":
                yield upload_subject(client), f"x{number}.0-1", b"x" * 500_000
            case "evaluations":
                yield upload_subject(client), f"e{number}-x.0-1", b"x"
            case _:
                yield hello_subject(client), "", hello


async def flood(kind: str, url: str, keys: Path, client: int) -> None:
    connection = await connect(
        [url], Credentials(keys), name=client_name(client), inbox_prefix=inbox(client)
    )
    for sent, (subject, name, data) in enumerate(messages(kind, client), 1):
        await connection.publish(subject, data, headers={UPLOAD_HEADER: name} if name else None)
        if sent % 500 == 0:
            await connection.flush(60)
            print(sent, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=KINDS, default="tiny")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedast-flood-"))
    layout = Layout(folder / "f")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = CONFIG.format(here=HERE.as_posix(), clients=options.clients, requests=64, half="true")
    text += "".join(TASK.format(name=name, hidden=250) for name in "abcd")
    evil = options.clients
    initialise(layout, evil + 1, hosts=["localhost", "127.0.0.1"], port=port, config=text)
    url = f"tls://localhost:{port}"
    binary = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, *command: str, cwd: Path | None = None) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            processes[name] = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log)

    def updates() -> int:
        return sum(task["updates"] for task in status(url, layout)["tasks"].values())

    def rate(what: str) -> None:
        began, before = time.monotonic(), updates()
        cpu = {name: used(process.pid)[0] for name, process in processes.items()}
        time.sleep(options.seconds)
        wall, after = time.monotonic() - began, updates()
        shares = ", ".join(
            f"{name} {100 * (used(process.pid)[0] - cpu[name]) / wall:.0f} %"
            for name, process in processes.items()
        )
        log = layout.run / FOLDER / ENTRIES
        entries = log.read_bytes().count(b"\n")
        text = (folder / "server.log").stat().st_size
        print(f"{what}: {(after - before) / wall:.1f} honest updates/s over {wall:.0f} s; "
              f"{entries} entries in the write-ahead log, {text / 1e6:.2f} MB of text log; "
              f"of a core: {shares}; load {os.getloadavg()[0]:.0f}",
              flush=True)  # fmt: skip

    try:
        start("nats", binary, "-c", "nats.conf", cwd=layout.nats)
        time.sleep(1)
        start("server", sys.executable, "-m", "fedast", "serve", str(layout.config), "--server",
              url, "--creds", str(layout.credentials(SERVER)), "--out", str(layout.run),
              "-q")  # fmt: skip
        start("clients", sys.executable, str(HERE / "light_clients.py"), url, str(layout.root),
              "0", str(evil), str(folder / "report.json"))  # fmt: skip
        end = time.monotonic() + 120
        while True:
            try:
                if updates() > 200:
                    break
            except Exception as error:  # not there yet
                if time.monotonic() > end:
                    raise SystemExit(f"it does not begin: {error}") from error
            time.sleep(1)
        rate("quiet")
        start("flood", sys.executable, __file__, "--flood", options.kind, url,
              str(layout.credentials(client_name(evil))), str(evil))  # fmt: skip
        time.sleep(1)
        rate(f"flooded ({options.kind})")
        sent = (folder / "flood.log").read_text().split()
        print(f"the flood was {sent[-1] if sent else 0} messages")
        print((folder / "server.log").read_text(errors="replace")[-1500:])
    finally:
        for process in reversed(processes.values()):
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--flood":
        asyncio.run(flood(sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5])))
    else:
        main()
