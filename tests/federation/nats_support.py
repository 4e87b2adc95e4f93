"""A real nats-server with a federation's own keys, for tests."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fedast.federation.nats.client import NatsClient, send_command
from fedast.federation.nats.connection import Credentials, connect
from fedast.federation.nats.names import (
    CONTROL_INBOX,
    MODELS,
    REQUESTS,
    SERVER_INBOX,
    SERVING,
    UPDATES,
    inbox,
)
from fedast.federation.nats.server import NatsServer
from fedast.federation.nats.setup import (
    CONTROL,
    SERVER,
    Layout,
    client_name,
    initialise,
    register_of,
)
from fedast.federation.transport import ClientTransport, ServerTransport

BINARY = shutil.which("nats-server") or str(Path(sys.executable).with_name("nats-server"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def put_in_one_account(layout: Layout) -> None:
    """Make a federation's folder as earlier versions made it."""
    for config in layout.nats.rglob("nats.conf"):
        text = config.read_text()
        block = 'authorization {\n  include "users.conf"\n}\n'
        config.write_text(text.replace('include "accounts.conf"\n', block))
        config.with_name("accounts.conf").unlink()
    with register_of(layout) as register:
        register.issue([])


class NatsBed:
    """A federation's NATS server, which can be killed and started again."""

    def __init__(
        self, folder: Path, clients: int, patience: float = 1.0, *, separated: bool = True
    ) -> None:
        """``separated``: as it is set up now; else as by earlier versions, all in one account."""
        self.layout = Layout(folder / "federation")
        self.port = free_port()
        self._clients = clients
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._opened: list[ServerTransport | ClientTransport] = []
        initialise(
            self.layout, clients, hosts=("localhost", "127.0.0.1"), port=self.port, config=""
        )
        if not separated:
            put_in_one_account(self.layout)

    @property
    def url(self) -> str:
        return f"tls://localhost:{self.port}"

    def start(self) -> None:
        with (self.layout.logs / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(
                [BINARY, "-c", "nats.conf"], cwd=self.layout.nats, stdout=log, stderr=log
            )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def reload(self) -> None:
        """As the command line does: see ``members``."""
        assert self._process is not None
        for _ in range(2):
            self._process.send_signal(signal.SIGHUP)
            time.sleep(0.5)

    @property
    def log(self) -> str:
        files = (self.layout.logs / "nats.log", self.layout.nats / "nats.log")
        return "".join(file.read_text() for file in files if file.exists())

    def keys(self, name: str) -> Credentials:
        return Credentials(self.layout.credentials(name))

    async def __aenter__(self) -> NatsBed:
        self.start()
        probe = await connect(
            [self.url], self.keys(CONTROL), name="probe", inbox_prefix=CONTROL_INBOX, patience=15
        )
        await probe.close()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for transport in self._opened:
            await transport.close()
        self.kill()

    async def server(
        self, after: int = 0, limit: int = 40 * 2**20, where: str = "here"
    ) -> NatsServer:
        server = await self._server(where)
        await server.start(after, limit)
        return server

    async def started(self, after: int) -> tuple[NatsServer, str]:
        server = await self._server("here")
        return server, await server.start(after, 40 * 2**20)

    async def _server(self, where: str) -> NatsServer:
        connection = await connect(
            [self.url], self.keys(SERVER), name="server", inbox_prefix=SERVER_INBOX, patience=15
        )
        server = NatsServer(connection, range(self._clients), self._patience, where=where)
        self._opened.append(server)
        return server

    async def lose(self, *streams: str) -> None:
        """Delete these streams, or all of them, as the server may."""
        connection = await connect(
            [self.url], self.keys(SERVER), name="vandal", inbox_prefix=SERVER_INBOX, patience=15
        )
        for stream in streams or (REQUESTS, UPDATES, MODELS, SERVING):
            await connection.jetstream().delete_stream(stream)
        await connection.close()

    async def client(self, number: int) -> NatsClient:
        name = client_name(number)
        connection = await connect(
            [self.url], self.keys(name), name=name, inbox_prefix=inbox(number), patience=15
        )
        client = NatsClient(connection, number, self._patience)
        self._opened.append(client)
        return client

    async def command(self, data: bytes) -> bytes:
        return await send_command([self.url], self.keys(CONTROL), data)
