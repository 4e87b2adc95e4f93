"""No stranger gets in, and no client gets further than its own queue."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import nats
import pytest

from fedast.federation.keys import Authority, hosts_of
from fedast.federation.nats.connection import Credentials, connect
from fedast.federation.nats.names import (
    MODELS,
    REQUESTS,
    UPDATES,
    inbox,
    request_subject,
    upload_subject,
)
from fedast.federation.nats.setup import client_name, register_of
from fedast.federation.transport import Greeted, Refused, Uploaded
from tests.federation.nats_support import NatsBed

Body = Callable[[NatsBed], Coroutine[Any, Any, None]]


def check(folder: Path, body: Body) -> None:
    async def go() -> None:
        async with NatsBed(folder, clients=3) as bed, asyncio.timeout(60):
            await body(bed)

    asyncio.run(go())


async def refused(bed: NatsBed, keys: Credentials) -> str:
    with pytest.raises(Refused) as caught:
        await connect([bed.url], keys, name="stranger", patience=20)
    return str(caught.value)


def test_a_key_of_another_federation_is_refused(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        other = Authority(tmp_path / "other", "other")
        other.issue(tmp_path / "theirs", client_name(0))
        assert "not signed by our authority" in await refused(bed, Credentials(tmp_path / "theirs"))
        # ... also if it is told to trust our server
        trusting = tmp_path / "theirs" / "ca.pem"
        trusting.write_bytes((bed.layout.authority / "ca.pem").read_bytes())
        await refused(bed, Credentials(tmp_path / "theirs"))

    check(tmp_path, body)


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        ours = Authority(bed.layout.authority, "x")
        ours.issue(tmp_path / "old", client_name(0), days=-0.5)
        await refused(bed, Credentials(tmp_path / "old"))
        ours.issue(tmp_path / "new", client_name(0))
        connection = await connect(
            [bed.url], Credentials(tmp_path / "new"), name="fine", patience=3
        )
        await connection.close()

    check(tmp_path, body)


def test_a_name_that_is_no_user_is_refused(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        Authority(bed.layout.authority, "x").issue(tmp_path / "nobody", client_name(77))
        await refused(bed, Credentials(tmp_path / "nobody"))

    check(tmp_path, body)


def test_no_key_and_no_tls_are_refused(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        context = ssl.create_default_context(cafile=str(bed.layout.authority / "ca.pem"))

        async def speak_without_a_key() -> None:
            connection = await nats.connect(
                bed.url, tls=context, allow_reconnect=False, connect_timeout=3
            )
            await connection.publish("fedast.hello.0", b"x")
            await connection.flush(2)

        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is, nobody gets in
            await speak_without_a_key()
        assert "client didn't provide a certificate" in bed.log  # and that is why

        def speak_plainly() -> bytes:
            with socket.create_connection(("127.0.0.1", bed.port), timeout=5) as plain:
                plain.recv(4096)  # NATS says who it is, then wants TLS
                plain.sendall(b"CONNECT {}\r\nPUB fedast.hello.0 1\r\nx\r\nPING\r\n")
                answer = b""
                try:
                    while part := plain.recv(4096):
                        answer += part
                except OSError:
                    pass
                return answer

        assert b"PONG" not in await asyncio.to_thread(speak_plainly)
        assert "TLS handshake error" in bed.log

    check(tmp_path, body)


def test_an_earlier_tls_is_refused(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        context = bed.keys(client_name(0)).context()
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it is, nobody gets in
            await nats.connect(bed.url, tls=context, allow_reconnect=False, connect_timeout=5)
        assert "unsupported versions" in bed.log  # and that is why

    check(tmp_path, body)


def test_keys_that_are_missing_or_broken_are_said(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        assert "no such file" in await refused(bed, Credentials(tmp_path))
        broken = tmp_path / "broken"
        broken.mkdir()
        for name in ("ca.pem", "cert.pem", "key.pem"):
            (broken / name).write_text("nonsense")
        assert "cannot be used" in await refused(bed, Credentials(broken))

    check(tmp_path, body)


def test_a_client_reads_its_own_queue_and_writes_its_own_uploads(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        server = await bed.server()
        await server.send(1, "5", b"secret of client 1", "0.0.none")
        errors: list[str] = []

        async def noted(error: Exception) -> None:
            errors.append(str(error))

        keys = bed.keys(client_name(0))
        connection = await nats.connect(
            bed.url, tls=keys.context(), error_cb=noted, inbox_prefix=inbox(0).encode()
        )
        forbidden = [
            upload_subject(1),
            "fedast.upload.0.5-t.0-1",
            "fedast.hello.1",
            request_subject(1, "6"),
            request_subject(0, "6"),
            "fedast.model.0.0.x.0",
            "fedast.order",
            f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.client-1",
            f"$JS.API.STREAM.MSG.GET.{REQUESTS}",
            f"$JS.API.STREAM.MSG.GET.{UPDATES}",
            f"$JS.API.STREAM.PURGE.{UPDATES}",
            f"$JS.API.STREAM.DELETE.{MODELS}",
            f"$JS.API.CONSUMER.CREATE.{REQUESTS}",
            f"$JS.API.DIRECT.GET.{REQUESTS}.{request_subject(1, '5')}",
            f"$JS.ACK.{REQUESTS}.client-1.1.1.1.1.1",
        ]
        for subject in forbidden:
            with pytest.raises(Exception):  # noqa: B017, PT011 - a time-out, mostly
                await connection.request(subject, b"{}", timeout=0.3)
        for subject in ("fedast.>", "_INBOX.>", f"{inbox(1)}.>", request_subject(1, ">")):
            await connection.subscribe(subject)
        await connection.flush()
        await asyncio.sleep(0.3)
        said = " ".join(errors).lower()
        hidden = ("fedast.>", "_INBOX.>", f"{inbox(1)}.>", request_subject(1, ">"))
        for subject in (*forbidden, *hidden):
            assert f'"{subject.lower()}"' in said
        assert "Violation" in bed.log
        await connection.close()
        # Nothing has happened, and the rightful owner gets what is its own.
        assert await server.receive(0.3) is None
        delivery = await (await bed.client(1)).next(5.0)
        assert delivery is not None
        assert delivery.data == b"secret of client 1"

    check(tmp_path, body)


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    bed = NatsBed(tmp_path, clients=1)
    keys = list(bed.layout.root.rglob("key.pem"))
    assert len(keys) == 6  # authority, nats, server, control, observer, client-0
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)


def test_a_renewed_key_replaces_the_old_one_at_once(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        server, old = await bed.server(), await bed.client(1)
        await old.upload("1-before", b"with the first key")
        stolen = shutil.copytree(bed.layout.credentials("client-1"), tmp_path / "stolen")
        with register_of(bed.layout) as register:
            register.issue(["client-1"])
        bed.reload()
        while old._connection.is_connected:
            await asyncio.sleep(0.05)  # who is in with the old key is thrown out
        assert "does not let" in await refused(bed, Credentials(stolen))
        new = await bed.client(1)
        await new.upload("2-after", b"with the second")
        found = [await server.receive(5.0) for _ in range(2)]
        assert [u.name for u in found if isinstance(u, Uploaded)] == ["1-before", "2-after"]
        other = await bed.client(2)  # nobody else notices
        await other.upload("3-other", b"")

    check(tmp_path, body)


def test_who_is_expelled_is_out_and_who_is_admitted_has_a_queue(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        server, bad = await bed.server(), await bed.client(2)
        keys = shutil.copytree(bed.layout.credentials("client-2"), tmp_path / "kept")
        with register_of(bed.layout) as register:
            register.expel(["client-2"])
            assert register.admit(2) == ["client-3", "client-4"]  # 2 is not given to another
        bed.reload()
        while bad._connection.is_connected:
            await asyncio.sleep(0.05)
        assert "does not let" in await refused(bed, Credentials(keys))
        assert bed.layout.clients == [0, 1, 3, 4]
        fresh = await bed.client(4)
        await fresh.hello(b"here I am")
        assert await server.receive(5.0) == Greeted(4, b"here I am")
        await server.send(4, "9", b"train", "0.0.none")
        delivery = await fresh.next(5.0)
        assert delivery is not None
        assert delivery.data == b"train"
        # ... and it may no more than the others
        with pytest.raises(TimeoutError):
            await fresh._js.publish(upload_subject(0), b"", timeout=1)

    check(tmp_path, body)


def test_a_new_certificate_of_nats_is_for_the_same_hosts(tmp_path: Path) -> None:
    async def body(bed: NatsBed) -> None:
        tls = bed.layout.nats / "tls"

        async def shown() -> bytes:
            connection = await bed.client(0)
            stream: Any = connection._connection._transport
            found = stream._io_writer.get_extra_info("ssl_object")
            return bytes(found.getpeercert(binary_form=True))

        def filed() -> bytes:
            return ssl.PEM_cert_to_DER_cert((tls / "cert.pem").read_text())

        before = filed()
        assert await shown() == before
        with register_of(bed.layout) as register:
            register.renew_nats()
        bed.reload()
        while await shown() == before:
            await asyncio.sleep(0.1)
        assert await shown() == filed()
        assert hosts_of(tls) == ["localhost", "127.0.0.1"]

    check(tmp_path, body)
