"""The two programs of a federation, over the transport that the configuration names."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from fedast.config.identity import said as said_by
from fedast.config.load import load
from fedast.config.schema import RunConfig
from fedast.core.protocol import ClientId
from fedast.federation.agent import Agent
from fedast.federation.transports import Endpoint
from fedast.records.run import RunResult
from fedast.run.federate import Federation
from fedast.run.local_training import LocalTraining
from fedast.run.simulate import Watch

Started: TypeAlias = Callable[[Callable[[], None]], None]
"""Is given a function that ends the program cleanly."""
Phase: TypeAlias = Callable[[str], None]


def endpoint_of(config: RunConfig, servers: Sequence[str], credentials: Path) -> Endpoint:
    how = config.federation
    return Endpoint(servers, credentials, how.redeliver_after, how.replicas)


def said_in(path: Path) -> Mapping[str, Any]:
    """What a configuration file says, without what is filled in."""
    return said_by(load(path))


async def serve(
    config: RunConfig,
    endpoint: Endpoint,
    clients: Sequence[ClientId],
    folder: Path,
    *,
    said: Mapping[str, Any] | None = None,
    watch: Sequence[Watch] = (),
    started: Started = lambda stop: None,
    phase: Phase = lambda text: None,
) -> tuple[RunResult, bool]:
    """Serve a resolved configuration; the result, and whether every task has ended.

    ``said``: what it said before it was resolved. A folder can be continued as long as that is the
    same, even if a later version of fedast has other defaults. ``phase`` is told what the server is
    waiting for, and "" when training continues."""
    here = f"{socket.gethostname()} ({uuid.getnode():012x}), {folder.resolve()}"
    endpoint = replace(endpoint, where=here)
    phase(f"connecting to {', '.join(endpoint.servers)}")
    transport = await config.federation.transport.open_server(endpoint, clients)
    telling: asyncio.Task[None] | None = None
    try:
        phase("loading the tasks and the write-ahead log")
        federation = Federation(
            config, transport, folder, watch, said=said, credentials=endpoint.credentials
        )
        started(federation.server.stop)
        telling = asyncio.create_task(_tell_who_is_here(federation, config, phase))
        result = await federation.run()
    finally:
        if telling is not None:
            telling.cancel()
        await transport.close()
    return result, federation.server.finished


async def _tell_who_is_here(federation: Federation, config: RunConfig, phase: Phase) -> None:
    state, wanted = federation.server.state, config.federation.min_clients
    while not state.training:
        phase(f"waiting for clients: {len(state.pool)} of {wanted} here")
        await asyncio.sleep(0.5)
    phase("")


async def take_part(
    config: RunConfig,
    endpoint: Endpoint,
    client: ClientId,
    training: LocalTraining,
    *,
    started: Started = lambda stop: None,
) -> None:
    """Train as a client until stopped."""
    transport = await config.federation.transport.open_client(endpoint, client)
    beat = min(5.0, config.federation.lease / 4)
    software = f"fedast {version('fedast')}"
    agent = Agent(client, transport, training, software=software, hello_every=beat)
    started(agent.stop)
    await agent.run()
