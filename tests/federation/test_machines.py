"""The guide for several machines, followed step by step, each machine a network namespace."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.federation.nats_support import BINARY
from tests.federation.support import audit, two_tasks

pytestmark = pytest.mark.chaos
FEDAST = [sys.executable, "-m", "fedast"]
_LONGEST = 600.0
"""Seconds to wait for anything: a busy machine needs long."""
MACHINES = ("fedast-a", "fedast-b", "fedast-c")


def ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def machines() -> Iterator[dict[str, str]]:
    """Three machines on one cable: name and address."""
    found = {name: f"10.177.0.{number}" for number, name in enumerate(MACHINES, 1)}
    if shutil.which("ip") is None or not ip("link", "add", "fedast-br", "type", "bridge"):
        pytest.skip("needs the right to make network namespaces")
    try:
        assert ip("link", "set", "fedast-br", "up")
        for number, (name, address) in enumerate(found.items(), 1):
            cable = f"fedast-v{number}"
            assert ip("netns", "add", name)
            assert ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            assert ip("link", "set", cable, "master", "fedast-br")
            assert ip("link", "set", cable, "up")
            assert ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            assert ip("-n", name, "link", "set", "eth0", "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        yield found
    finally:
        for number, name in enumerate(found, 1):
            ip("link", "del", f"fedast-v{number}")  # at once, and not some time after its machine
            ip("netns", "del", name)
        ip("link", "del", "fedast-br")


class Programs:
    """What runs on the machines, each in its machine's own folder."""

    def __init__(self, folder: Path) -> None:
        self.places = {name: folder / name for name in MACHINES}
        self._running: list[subprocess.Popen[bytes]] = []
        for place in self.places.values():
            place.mkdir(exist_ok=True)

    def start(self, machine: str, *command: str, folder: str = ".") -> subprocess.Popen[bytes]:
        with (self.places[machine] / f"{len(self._running)}.log").open("wb") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", machine, *command],
                cwd=self.places[machine] / folder, stdout=log, stderr=log,
            )  # fmt: skip
        self._running.append(process)
        return process

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def logs(self) -> str:
        return "\n".join(
            path.read_text()[-600:] for p in self.places.values() for path in p.glob("*.log")
        )


def carry(fed: Path, places: dict[str, Path]) -> None:
    """The configuration and, to each machine, only its own clients' keys."""
    for name, clients in (("fedast-a", ()), ("fedast-b", (0, 1)), ("fedast-c", (2, 3))):
        shutil.copy(fed / "federation.toml", places[name])
        for client in clients:
            shutil.copytree(fed / "clients" / f"client-{client}", places[name] / f"client-{client}")


def fedast(folder: Path, *arguments: str) -> None:
    made = subprocess.run(
        [*FEDAST, *arguments], cwd=folder, check=False, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr


def test_the_guide_for_several_machines(tmp_path: Path, machines: dict[str, str]) -> None:
    server = machines["fedast-a"]
    two_tasks(tmp_path, clients=4)
    fedast(tmp_path, "federation", "init", "fed", "--clients", "4", "--host", server,
           "--config", "federation.toml")  # fmt: skip
    url = f"tls://{server}:4222"
    with Programs(tmp_path) as programs:
        places = programs.places
        shutil.copytree(tmp_path / "fed" / "nats", places["fedast-a"] / "nats")
        shutil.copytree(tmp_path / "fed" / "keys", places["fedast-a"] / "keys")
        carry(tmp_path / "fed", places)
        for machine, clients in (("fedast-b", (0, 1)), ("fedast-c", (2, 3))):  # in any order
            for client in clients:
                programs.start(machine, *FEDAST, "client", "federation.toml", "--server", url,
                               "--creds", f"client-{client}")  # fmt: skip
        time.sleep(2)
        programs.start("fedast-a", BINARY, "-c", "nats.conf", folder="nats")
        serve = programs.start("fedast-a", *FEDAST, "serve", "federation.toml", "--server", url,
                               "--creds", "keys/server", "--out", "run", "-q")  # fmt: skip
        assert serve.wait(_LONGEST) == 0, programs.logs()
    counts = audit(places["fedast-a"] / "run")
    assert counts["finish"] == 2
    assert counts["arrive"] > 20


def test_a_cluster_survives_the_loss_of_any_node(tmp_path: Path, machines: dict[str, str]) -> None:
    """The guide's three NATS servers: each in turn is killed and comes back."""
    rounds = 500
    two_tasks(tmp_path, clients=4, target=1.0, federation="replicas = 3")
    path = tmp_path / "federation.toml"
    text = path.read_text().replace("target = 0.8", "target = 1.0")
    path.write_text(
        text.replace("target = 1.0", f"target = 1.0\nmax_rounds = {rounds}\nlocal_steps = 60")
    )
    nodes = [word for address in machines.values() for word in ("--node", address)]
    fedast(tmp_path, "federation", "init", "fed", "--clients", "4", *nodes,
           "--config", "federation.toml")  # fmt: skip
    urls = [word for a in machines.values() for word in ("--server", f"tls://{a}:4222")]
    with Programs(tmp_path) as programs:
        places = programs.places
        shutil.copytree(tmp_path / "fed" / "keys", places["fedast-a"] / "keys")
        carry(tmp_path / "fed", places)
        for machine, address in machines.items():
            shutil.copytree(tmp_path / "fed" / "nats" / address, places[machine] / "nats")

        def start_node(machine: str) -> subprocess.Popen[bytes]:
            return programs.start(machine, BINARY, "-c", "nats.conf", folder="nats")

        servers = {machine: start_node(machine) for machine in machines}
        serve = programs.start("fedast-a", *FEDAST, "serve", "federation.toml", *urls,
                               "--creds", "keys/server", "--out", "run", "-q")  # fmt: skip
        for machine, clients in (("fedast-b", (0, 1)), ("fedast-c", (2, 3))):
            for client in clients:
                programs.start(machine, *FEDAST, "client", "federation.toml", *urls,
                               "--creds", f"client-{client}")  # fmt: skip
        log = places["fedast-a"] / "run" / "diary" / "diary.jsonl"

        def entries() -> int:
            return log.read_text().count("\n") if log.exists() else 0

        def wait_for(count: int) -> None:
            end = time.monotonic() + _LONGEST
            while entries() < count and serve.poll() is None:
                assert time.monotonic() < end, programs.logs()
                time.sleep(0.1)

        for machine in machines:
            wait_for(entries() + 60)
            assert serve.poll() is None, programs.logs()
            servers[machine].kill()
            servers[machine].wait()
            wait_for(entries() + 60)  # it goes on with two of three
            servers[machine] = start_node(machine)
            time.sleep(4)  # so that it has caught up before the next is lost
        assert serve.wait(_LONGEST) == 0, programs.logs()
        door = machines["fedast-b"]
        assert at_the_nodes_door(door, places["fedast-c"] / "nats" / "routes")
        assert not at_the_nodes_door(door, places["fedast-c"] / "client-2")
    counts = audit(places["fedast-a"] / "run")
    assert counts["finish"] == 2
    assert counts["aggregate"] == 2 * rounds
    print(f"\nthree nodes, each killed once: {counts['dispatch']} requests sent, "
          f"{counts['arrive']} updates counted, {counts['drop lost']} lost")  # fmt: skip


def at_the_nodes_door(address: str, keys: Path) -> bool:
    """Whether one is let in, with these keys, where only nodes of the cluster may enter."""
    text = (
        "import ssl, socket, sys\n"
        "context = ssl.create_default_context()\n"
        "context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n"
        "context.load_cert_chain('cert.pem', 'key.pem')\n"
        f"plain = socket.create_connection(('{address}', 6222), 5)\n"
        "link = context.wrap_socket(plain)\n"
        "link.settimeout(5)\n"
        "link.sendall(b'PING\\r\\n')\n"
        "sys.exit(0 if link.recv(4096) else 1)\n"
    )
    command = ["ip", "netns", "exec", "fedast-c", sys.executable, "-c", text]
    return subprocess.run(command, cwd=keys, capture_output=True, check=False).returncode == 0
