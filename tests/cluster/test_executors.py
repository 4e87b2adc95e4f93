"""The contract of executors, on a real Ray of three nodes and on submitit's local executor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedast.run.on_ray import Ray
from fedast.run.on_slurm import Slurm
from fedast.testing import executor_contract

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 10**8}
    )
    for _ in range(2):
        nodes.add_node(num_cpus=1, object_store_memory=10**8)
    ray.init(address=nodes.address, log_to_driver=False)
    yield
    ray.shutdown()
    nodes.shutdown()


TestRayShared = executor_contract(Ray())
TestRayApart = executor_contract(Ray(shared=False))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # submitit's files


TestSubmitit = executor_contract(Slurm(through="local"))
