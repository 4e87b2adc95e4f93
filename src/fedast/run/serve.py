"""The two programs of a federation, over the transport that the configuration names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from fedast.config.schema import RunConfig
from fedast.core.protocol import ClientId
from fedast.federation.agent import Agent
from fedast.federation.transports import Endpoint
from fedast.records.run import RunResult
from fedast.run.federate import Federation, LocalTraining
from fedast.run.simulate import Watch

Started: TypeAlias = Callable[[Callable[[], None]], None]
"""Is given a function that ends the program in good order."""
Phase: TypeAlias = Callable[[str], None]


def endpoint_of(config: RunConfig, servers: Sequence[str], credentials: Path) -> Endpoint:
    how = config.federation
    return Endpoint(servers, credentials, how.redeliver_after, how.replicas)


async def serve(
    config: RunConfig,
    endpoint: Endpoint,
    clients: Sequence[ClientId],
    folder: Path,
    *,
    watch: Sequence[Watch] = (),
    started: Started = lambda stop: None,
    phase: Phase = lambda text: None,
) -> tuple[RunResult, bool]:
    """Serve a resolved configuration; the result, and whether every task has ended. ``phase`` is
    told what is being waited for, and nothing ("") when training goes on."""
    phase(f"connecting to {', '.join(endpoint.servers)}")
    transport = await config.federation.transport.open_server(endpoint, clients)
    telling: asyncio.Task[None] | None = None
    try:
        phase("loading the tasks and the write-ahead log")
        federation = Federation(config, transport, folder, watch, credentials=endpoint.credentials)
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
