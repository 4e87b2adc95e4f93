"""What a client that left had in its queue is taken out of it again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fedast.federation import wire
from fedast.federation.agent import Agent
from fedast.federation.memory import Hub, MemoryClient, MemoryServer
from fedast.federation.transport import Gone
from fedast.run.federate import Federation
from tests.federation.support import audit, federate, two_tasks


def test_requests_are_withdrawn_under_the_names_they_were_sent_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose models nobody needs any more. Else a client that comes back finds them, and
    looks for models that are gone while its new requests wait."""
    # With fewer requests all of a task's may wait for client 2 before any of them is old.
    options = "requests = 16\nratio = 4\nserver_rate = 0.5"
    config = two_tasks(tmp_path, clients=3, target=0.93, options=options)
    hub = Hub()
    send, withdraw = MemoryServer.send, MemoryServer.withdraw
    sent: set[str] = set()
    withdrawn: set[str] = set()

    async def sending(self: MemoryServer, client: int, name: str, data: bytes, model: str) -> None:
        sent.add(name)
        await send(self, client, name, data, model)

    async def withdrawing(self: MemoryServer, client: int, name: str) -> None:
        withdrawn.add(name)
        await withdraw(self, client, name)

    monkeypatch.setattr(MemoryServer, "send", sending)
    monkeypatch.setattr(MemoryServer, "withdraw", withdrawing)

    async def leave(federation: Federation, agents: list[Agent]) -> None:
        """Client 2 is there and does nothing, until a request of its is of an old version."""

        async def nothing(timeout: float) -> None:
            await asyncio.sleep(timeout)

        agents[2]._transport.next = nothing  # type: ignore[method-assign]
        server = federation.server

        def old() -> bool:
            waiting = [wire.decode(data, wire.Request) for data in hub.queues.get(2, {}).values()]
            return any(r.version + 2 < federation._learner.version(r.task) for r in waiting)

        while not old() and not server.finished:
            await asyncio.sleep(0.005)
        hub.told.put_nowait(Gone(2))
        hub.stir()
        agents[2]._transport.next = MemoryClient(hub, 2).next  # type: ignore[method-assign]

    asyncio.run(federate(config, tmp_path / "run", hub, meanwhile=leave))
    audit(tmp_path / "run")
    numbers = {name.partition("-")[0] for name in sent}  # (some were never sent: all has ended)
    withdrawn = {name for name in withdrawn if name.partition("-")[0] in numbers}
    assert withdrawn
    assert withdrawn <= sent
