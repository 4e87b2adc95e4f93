"""The guide for several machines, followed step by step, each machine a network namespace."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.nats_support import BINARY
from tests.deploy.support import audit, two_tasks

pytestmark = pytest.mark.chaos
FEDAST = [sys.executable, "-m", "fedast"]
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
        for name in found:
            ip("netns", "del", name)
        ip("link", "del", "fedast-br")


def test_the_guide_for_several_machines(tmp_path: Path, machines: dict[str, str]) -> None:
    server = machines["fedast-a"]
    two_tasks(tmp_path, clients=4)
    made = subprocess.run(
        [*FEDAST, "federation", "init", "fed", "--clients", "4", "--host", server,
         "--config", "federation.toml"],
        cwd=tmp_path, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    places = {name: tmp_path / name for name in MACHINES}
    shutil.copytree(tmp_path / "fed" / "nats", places["fedast-a"] / "nats")
    shutil.copytree(tmp_path / "fed" / "keys", places["fedast-a"] / "keys")
    for name, clients in (("fedast-a", ()), ("fedast-b", (0, 1)), ("fedast-c", (2, 3))):
        places[name].mkdir(exist_ok=True)
        shutil.copy(tmp_path / "fed" / "federation.toml", places[name])
        for client in clients:  # only its own key goes to a machine
            shutil.copytree(
                tmp_path / "fed" / "clients" / f"client-{client}",
                places[name] / f"client-{client}",
            )
    running: list[subprocess.Popen[bytes]] = []

    def start(machine: str, *command: str, folder: str = ".") -> subprocess.Popen[bytes]:
        log = (places[machine] / f"{len(running)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", machine, *command],
                cwd=places[machine] / folder, stdout=log, stderr=log,
            )  # fmt: skip
        running.append(process)
        return process

    url = f"tls://{server}:4222"
    try:
        for machine, clients in (("fedast-b", (0, 1)), ("fedast-c", (2, 3))):  # in any order
            for client in clients:
                start(machine, *FEDAST, "client", "federation.toml", "--server", url,
                      "--creds", f"client-{client}")  # fmt: skip
        time.sleep(2)
        start("fedast-a", BINARY, "-c", "nats.conf", folder="nats")
        serve = start("fedast-a", *FEDAST, "serve", "federation.toml", "--server", url,
                      "--creds", "keys/server", "--out", "run", "-q")  # fmt: skip
        logs = [path.read_text() for path in tmp_path.glob("fedast-*/*.log")]
        assert serve.wait(120) == 0, "\n".join(logs)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)
    counts = audit(places["fedast-a"] / "run")
    assert counts["finish"] == 2
    assert counts["arrive"] > 20
