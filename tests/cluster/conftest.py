"""A real Ray of three nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

SMALL = {"num_cpus": 1, "object_store_memory": 10**8}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=SMALL)
    for _ in range(2):
        nodes.add_node(**SMALL)
    ray.init(address=nodes.address, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()
