"""FedAST as a Flower app: a ServerApp and a ClientApp from one configuration file.

from fedast.run.flower import server_app
app = server_app(Path(__file__).with_name("federation.toml"))
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.federation.flower import client, server
from fedast.federation.flower.server import FlowerServer
from fedast.parts.errors import ConfigError
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining

OUT, PARTITION = "out", "partition-id"
log = logging.getLogger("fedast.flower")


def server_app(config: Path | str) -> ServerApp:
    """Trains the tasks of the file; ``out`` in the run configuration is the folder of the run."""
    path = Path(config)

    async def serve(grid: Grid, context: Context) -> None:
        _log()
        found = _load(path)
        out = context.run_config.get(OUT)
        if not isinstance(out, str) or not Path(out).expanduser().is_absolute():
            raise ConfigError(
                OUT, "must be an absolute path: flwr run . --run-config 'out=\"/...\"'"
            )
        folder = Path(out).expanduser()
        how = found.federation
        # Requests wait in their node's queue, so Flower must wait longer than the server.
        transport = FlowerServer(grid, folder / "flower", ttl=4 * how.request_timeout)
        federation = Federation(found, transport, folder)
        try:
            result = await federation.run()
        finally:
            await transport.close()
        for name, task in result.tasks.items():
            reached = (
                "not reached" if task.time_to_target is None else f"{task.time_to_target:.1f} s"
            )
            log.info("%s: target %s, %d rounds, %d updates", name, reached, task.rounds,
                     task.updates)  # fmt: skip
        log.info("records: %s", folder)

    return server.server_app(serve)


def client_app(config: Path | str) -> ClientApp:
    """Trains with this node's data; ``partition-id`` in the node configuration is its number."""
    path = Path(config)

    def training(context: Context) -> LocalTraining:
        _log()
        torch.set_num_threads(1)
        number = context.node_config.get(PARTITION)
        if not isinstance(number, int) or number < 0:
            raise ConfigError(
                PARTITION, "is missing: flower-supernode --node-config 'partition-id=0'"
            )
        return LocalTraining(_load(path), number)

    return client.client_app(training)


def _load(path: Path) -> RunConfig:
    return resolve(load(path), path.parent)


def _log() -> None:
    """Only our own messages: at this level Flower's HTTP client logs every request."""
    ours = logging.getLogger("fedast")
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        ours.propagate = False
