"""What an operator of thousands of clients sees."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fedast.federation import wire
from fedast.federation.memory import send_command
from tests.federation.scripted import Scripted, scripted_config

CLIENTS = 3000


def test_the_status_of_thousands_of_clients_arrives(tmp_path: Path) -> None:
    config = scripted_config("fedast-s", algorithm={"requests": 2048, "ratio": 16})
    config = config.model_copy(
        update={"simulation": config.simulation.model_copy(update={"clients": CLIENTS})}
    )

    async def go() -> dict[str, object]:
        scripted = Scripted(config, tmp_path / "run")
        await scripted.start()
        for client in range(CLIENTS):
            await scripted.join(client)
        await scripted.begin()
        asked = asyncio.create_task(
            send_command(scripted.hub, wire.encode(wire.Control("status")), 30)
        )
        await asyncio.sleep(0)
        await scripted._read()
        answer = wire.decode(await asked, wire.Control).answer
        scripted.crash()
        found: dict[str, object] = json.loads(answer)
        return found

    assert asyncio.run(go())["client_count"] == CLIENTS


def test_only_the_servers_own_answers_may_be_long() -> None:
    """What anybody else sends is parsed only if it is short."""
    long = "x" * 200_000
    answer = wire.Control("answer", answer=long)
    assert wire.decode(wire.encode(answer), wire.Control) == answer
    with pytest.raises(wire.WireError, match="header"):
        wire.decode(wire.encode(wire.Hello(1, long, ())), wire.Hello)
