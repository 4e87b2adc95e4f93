"""The connection to a Ray cluster; one is enough for a process."""

from __future__ import annotations

import os
import socket

from fedast.parts.errors import ConfigError


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
