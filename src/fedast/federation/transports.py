"""Which transport a federation uses (``federation.transport``), and how its two ends are opened.

``fedast serve`` and ``fedast client`` use the transport that their configuration names. Two are not
here: the one in memory connects ends within one process, and Flower starts a ServerApp and a
ClientApp itself and hands them their connections, so there is nothing to open from addresses and
keys (``fedast.run.flower``). ``fedast federation`` and ``fedast ctl`` manage federations over NATS
only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fedast.core.protocol import ClientId
from fedast.parts.errors import ConfigError
from fedast.parts.options import Options
from fedast.parts.registry import Registry

if TYPE_CHECKING:
    from fedast.federation.transport import ClientTransport, ServerTransport


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a server or client is told about its connection."""

    servers: Sequence[str]
    """The addresses given with ``--server``."""
    credentials: Path
    """The folder given with ``--creds``."""
    redeliver_after: float = 30.0
    """Seconds after which a request that nobody works on is delivered again."""
    replicas: int = 1
    """Nodes that store queues, uploads and models, if there are several."""
    where: str = ""
    """The server's machine and folder: one at the same place is the same one, started again."""


class TransportOptions(Options, ABC):
    """Options of a transport, which opens the two ends of a federation."""

    @abstractmethod
    def client_number(self, credentials: Path) -> ClientId:
        """Whose credentials these are; ``ConfigError`` if they are not a client's."""

    @abstractmethod
    async def open_server(
        self, endpoint: Endpoint, clients: Sequence[ClientId]
    ) -> ServerTransport: ...

    @abstractmethod
    async def open_client(self, endpoint: Endpoint, client: ClientId) -> ClientTransport: ...


class Nats(TransportOptions):
    """NATS JetStream over TLS, with a certificate for every client."""

    name: ClassVar[str] = "nats"

    def client_number(self, credentials: Path) -> ClientId:
        """A client's number is in the name of its certificate."""
        from fedast.federation.keys import name_of

        try:
            return int(name_of(credentials).removeprefix("client-"))
        except (OSError, ValueError, IndexError) as error:
            raise ConfigError(
                "--creds", f"{credentials}: has no client's certificate ({error})"
            ) from None

    async def open_server(self, endpoint: Endpoint, clients: Sequence[ClientId]) -> ServerTransport:
        from fedast.federation.nats.connection import Credentials, connect
        from fedast.federation.nats.names import SERVER_INBOX
        from fedast.federation.nats.server import NatsServer

        keys = Credentials(endpoint.credentials)
        connection = await connect(endpoint.servers, keys, name="server", inbox_prefix=SERVER_INBOX)
        return NatsServer(
            connection, clients, endpoint.redeliver_after, endpoint.replicas, endpoint.where
        )

    async def open_client(self, endpoint: Endpoint, client: ClientId) -> ClientTransport:
        from fedast.federation.nats.client import NatsClient
        from fedast.federation.nats.connection import Credentials, connect
        from fedast.federation.nats.names import inbox
        from fedast.federation.nats.setup import client_name

        keys = Credentials(endpoint.credentials)
        connection = await connect(
            endpoint.servers, keys, name=client_name(client), inbox_prefix=inbox(client)
        )
        return NatsClient(connection, client, endpoint.redeliver_after)


TRANSPORTS: Registry[TransportOptions] = Registry(
    "transports",
    TransportOptions,  # type: ignore[type-abstract]
    [__name__],
)
