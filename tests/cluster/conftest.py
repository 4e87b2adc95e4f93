"""A real Ray of three nodes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SMALL = {"num_cpus": 1, "object_store_memory": 10**8}


def three_nodes(**head: Any) -> Any:
    from ray.cluster_utils import Cluster

    node = {**SMALL, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args={**node, **head})
    env = head.get("env_vars")
    for _ in range(2):
        nodes.add_node(**SMALL, **({} if env is None else {"env_vars": env}))
    return nodes


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    nodes = three_nodes()
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def another_cluster() -> Iterator[Callable[..., Any]]:
    """Makes clusters beside the one of all tests, for commands to use and tests to break."""
    pytest.importorskip("ray")
    made: list[Any] = []

    def make(**head: Any) -> Any:
        made.append(three_nodes(**head))
        return made[-1]

    yield make
    for nodes in made:
        nodes.shutdown()


class Commands:
    """Runs fedast in a folder, on a cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}

    def use(self, nodes: Any) -> None:
        self.env["RAY_ADDRESS"] = nodes.address

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fedast", *arguments], cwd=self.folder, env=self.env,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.begin(*arguments)
        try:
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def fedast(tmp_path: Path) -> Commands:
    return Commands(tmp_path)
