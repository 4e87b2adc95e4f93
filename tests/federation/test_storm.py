"""Many clients that come at once, or before their server, all get in and stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedast.federation import keys
from fedast.federation.nats import client as client_module
from fedast.federation.nats.client import NatsClient
from fedast.federation.nats.connection import Connection, connect
from fedast.federation.nats.names import inbox
from fedast.federation.nats.setup import client_name
from tests.federation.nats_support import NatsBed


def test_a_client_waits_for_its_queue_for_as_long_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS allows a key a few subscriptions, so a client must not make one at each attempt."""
    monkeypatch.setattr(client_module, "_PAUSE", 0.01)
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE", 0.01)

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(60):
            client = await bed.client(0)
            for _ in range(40):
                assert await client.next(0.2) is None
            assert "maximum subscriptions exceeded" not in bed.log
            server = await bed.server()
            await server.send(0, "1", b"a request", "model")
            delivery = None
            while delivery is None:
                delivery = await client.next(1.0)
            assert delivery.data == b"a request"

    asyncio.run(go())


def test_an_error_that_nats_tells_does_not_end_a_connection(tmp_path: Path) -> None:
    """nats-py would close it for good."""

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1) as bed, asyncio.timeout(60):
            client = await bed.client(0)
            connection = client._connection
            made = [await connection.subscribe(f"{inbox(0)}.{number}") for number in range(20)]
            while "maximum subscriptions exceeded" not in bed.log:
                await asyncio.sleep(0.05)
            for subscription in made:
                connection._remove_sub(subscription._id)
            server = await bed.server()
            await client.upload("1-token", b"an update")
            while (found := await server.receive(1.0)) is None:
                pass
            assert found is not None
            connection.check()

    asyncio.run(go())


def _certificate(bed: NatsBed, subject: str, names: list[x509.GeneralName]) -> None:
    """Give client 0 a certificate with this subject and these names."""
    authority = keys.Authority(bed.layout.authority, "federation")
    key = ec.generate_private_key(ec.SECP256R1())
    cert = authority._sign(keys._name(subject), key, names=names)
    folder = bed.layout.credentials(client_name(0))
    keys._write_key(folder / "key.pem", key)
    (folder / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))


@pytest.mark.parametrize(
    ("subject", "names"),
    [
        # NATS compares subjects with all users, one by one, while nobody else can connect; a name
        # it looks up. So the name has to be enough.
        ("nobody", [x509.UniformResourceIdentifier("CN=client-0")]),
        ("client-0", []),  # keys of earlier versions have no other names
    ],
)
def test_a_certificate_is_known_by_its_name(
    tmp_path: Path, subject: str, names: list[x509.GeneralName]
) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=2) as bed, asyncio.timeout(60):
            _certificate(bed, subject, names)
            server, client = await bed.server(), await bed.client(0)
            await client.upload("1-token", b"an update")
            while (found := await server.receive(1.0)) is None:
                pass
            assert getattr(found, "client", None) == 0

    asyncio.run(go())


def test_every_key_has_its_user_as_a_name(tmp_path: Path) -> None:
    bed = NatsBed(tmp_path, clients=2)
    for name in ("server", "control", "observer", "client-0", "client-1"):
        data = (bed.layout.credentials(name) / "cert.pem").read_bytes()
        names = x509.load_pem_x509_certificate(data).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        assert [str(each.value) for each in names.value] == [f"CN={name}"]


def test_clients_that_come_at_once_all_get_in_and_come_back(tmp_path: Path) -> None:
    async def go() -> None:
        async with NatsBed(tmp_path, clients=60) as bed, asyncio.timeout(120):

            async def come(number: int) -> NatsClient:
                name = client_name(number)
                found: Connection = await connect(
                    [bed.url], bed.keys(name), name=name, inbox_prefix=inbox(number)
                )
                return NatsClient(found, number, 1.0)

            clients = await asyncio.gather(*map(come, range(60)))
            bed.kill()
            while any(client._connection.is_connected for client in clients):
                await asyncio.sleep(0.05)
            bed.start()
            while not all(client._connection.is_connected for client in clients):
                await asyncio.sleep(0.05)
            waits = {client._connection.options["reconnect_time_wait"] for client in clients}
            assert len(waits) == 60  # so that they do not come in step
            for client in clients:
                await client.close()

    asyncio.run(go())
