"""The connection to a Ray cluster (one is enough for a process), and what its nodes have."""

from __future__ import annotations

import os
import socket

from fedast.parts.errors import ConfigError
from fedast.training.nodes import Facts, my_facts, problems


def require_ray() -> None:
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError("ray", "is not installed; pip install 'fedast[cluster]'") from None


def connect(address: str | None) -> None:
    """Connect to a cluster, or start a Ray here; once is enough."""
    import ray

    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if address not in (None, "auto", "local"):
        _check_listens(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            "--address" if address else "ray",
            f"no Ray answers at {address or 'this machine'} ({first}); start one with: "
            "ray start --head",
        ) from None


def _check_listens(address: str) -> None:
    """Ray itself tries for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError("--address", f"expected HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigError(
            "--address",
            f"no Ray answers at {address} ({error.strerror or error}); start one with: "
            "ray start --head",
        ) from None


def node_facts(timeout: float = 60.0) -> dict[str, Facts | str]:
    """What each node that is alive has installed, by its name; or why it cannot be said."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def alive() -> dict[str, str]:
        return {
            node["NodeID"]: f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})"
            for node in ray.nodes()
            if node["Alive"]
        }

    asked = {}
    for node, name in alive().items():
        pinned = NodeAffinitySchedulingStrategy(node, soft=False)
        task = ray.remote(num_cpus=0, max_retries=0)(my_facts)
        asked[node, name] = task.options(scheduling_strategy=pinned).remote()
    found: dict[str, Facts | str] = {}
    for (node, name), reference in asked.items():
        try:
            found[name] = ray.get(reference, timeout=timeout)
        except Exception as error:
            if node in alive():  # otherwise it has left meanwhile
                found[name] = f"cannot run fedast ({last_line(error)})"
    return found


def check_nodes(allow_mixed: bool, *, gpus: bool, where: str = "--on") -> None:
    """Refuse a cluster whose nodes would not give what this machine's fedast gives."""
    wrong = problems(my_facts(), node_facts(), allow_mixed=allow_mixed, gpus=gpus)
    if wrong:
        more = f" (and {len(wrong) - 1} more: fedast cluster check)" if len(wrong) > 1 else ""
        raise ConfigError(where, wrong[0] + more)


def last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
