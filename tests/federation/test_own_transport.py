"""A transport of one's own: the in-memory one, offered by a package under another name."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedast.config.schema import FederationConfig, RunConfig
from fedast.federation.transport import ClientTransport, ServerTransport
from fedast.federation.transports import TRANSPORTS, Endpoint
from fedast.parts.errors import ConfigError
from fedast.run.local_training import LocalTraining
from fedast.run.serve import endpoint_of, serve, take_part
from fedast.testing import transport_contract
from fedast.testing.transports import LIMIT, TransportBed
from tests.federation.support import audit, two_tasks
from tests.plugin import install

SOURCE = '''
from fedast.federation.memory import Hub, MemoryClient, MemoryServer
from fedast.federation.transports import TransportOptions

HUBS = {}  # by address

class Pipes(TransportOptions):
    """Queues within one process."""

    depth: int = 8

    def client_number(self, credentials):
        return int(credentials.name)

    async def open_server(self, endpoint, clients):
        (address,) = endpoint.servers
        return MemoryServer(HUBS.setdefault(address, Hub(endpoint.redeliver_after)))

    async def open_client(self, endpoint, client):
        (address,) = endpoint.servers
        return MemoryClient(HUBS.setdefault(address, Hub(endpoint.redeliver_after)), client)
'''


@pytest.fixture(autouse=True)
def pipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    points = {"fedast.transports": "pipes = my_pipes:Pipes"}
    return install(monkeypatch, tmp_path, "my_pipes", SOURCE, points)


@pytest.mark.parametrize("given", ['"my_pipes:Pipes"', '{ name = "pipes", depth = 3 }'])
def test_a_file_names_it_and_the_programs_use_it(tmp_path: Path, given: str) -> None:
    config = two_tasks(tmp_path, federation=f"transport = {given}")
    folder = tmp_path / "run"
    stops: list[Callable[[], None]] = []

    async def client(number: int) -> None:
        endpoint = endpoint_of(config, ("pipe:1",), tmp_path / "keys" / str(number))
        mine = config.federation.transport.client_number(endpoint.credentials)
        training = LocalTraining(config, mine)
        await take_part(config, endpoint, mine, training, started=stops.append)

    async def go() -> bool:
        clients = range(config.simulation.clients)
        running = [asyncio.create_task(client(number)) for number in clients]
        endpoint = endpoint_of(config, ("pipe:1",), tmp_path / "keys")
        async with asyncio.timeout(90):
            _, finished = await serve(config, endpoint, clients, folder)
        for stop in stops:
            stop()
        await asyncio.gather(*running)
        return finished

    assert asyncio.run(go())
    assert audit(folder)["arrive"] > 10
    kept = tomllib.loads((folder / "config.toml").read_text())["federation"]["transport"]
    assert kept == {"name": "my_pipes:Pipes", "depth": 3 if "depth" in given else 8}


def test_from_python(pipes: ModuleType) -> None:
    ways: list[Any] = [pipes.Pipes(depth=2), pipes.Pipes, "pipes"]
    for given in ways:
        assert isinstance(FederationConfig(transport=given).transport, pipes.Pipes)
    with pytest.raises(ConfigError, match="did you mean 'pipes'"):
        FederationConfig(transport="pipe")  # type: ignore[arg-type]


def test_it_is_listed_with_its_package() -> None:
    assert {part.name: part.source for part in TRANSPORTS.listed()} == {
        "nats": "fedast",
        "pipes": "my_pipes",
    }


def test_a_folder_for_nats_is_not_made_for_it(tmp_path: Path) -> None:
    from fedast.cli.federation import init

    two_tasks(tmp_path, federation='transport = "pipes"')
    with pytest.raises(ConfigError, match="for NATS only"):
        init(
            str(tmp_path / "folder"),
            clients=2,
            config=str(tmp_path / "federation.toml"),
            hosts=(),
            port=4222,
            nodes=(),
        )
    assert not (tmp_path / "folder").exists()


def test_the_default_is_written_as_a_name(tmp_path: Path) -> None:
    config: RunConfig = two_tasks(tmp_path)
    assert config.federation.model_dump(mode="json")["transport"] == "nats"


class PipesBed:
    def __init__(self, folder: Path) -> None:
        self._options = TRANSPORTS.parse("pipes", "transport")
        self._folder = folder

    @property
    def _endpoint(self) -> Endpoint:
        return Endpoint((str(self._folder),), self._folder, redeliver_after=1.0)

    async def server(self, after: int = 0, limit: int = LIMIT) -> ServerTransport:
        server = await self._options.open_server(self._endpoint, range(3))
        await server.start(after, limit)
        return server

    async def started(self, after: int) -> tuple[ServerTransport, str]:
        server = await self._options.open_server(self._endpoint, range(3))
        return server, await server.start(after, LIMIT) or ""

    async def lose(self) -> None:
        import my_pipes  # type: ignore[import-not-found]

        my_pipes.HUBS[str(self._folder)].lose()

    async def client(self, number: int) -> ClientTransport:
        return await self._options.open_client(self._endpoint, number)

    async def command(self, data: bytes) -> bytes:
        raise NotImplementedError


@asynccontextmanager
async def open_pipes(folder: Path) -> AsyncIterator[TransportBed]:
    yield PipesBed(folder)


TestPipes = transport_contract(
    open_pipes, without={"test_control_commands_arrive_and_are_answered": "it carries none"}
)


def test_a_contract_without_a_test_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no test 'test_nothing'"):
        transport_contract(open_pipes, without={"test_nothing": "?"})
