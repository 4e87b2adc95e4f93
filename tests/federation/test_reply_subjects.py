"""A client chooses the subject on which it is answered; whatever it chooses, nothing happens
outside its own account.

The server's account is watched while one client sends, to every subject that it may send to,
messages with every dangerous reply subject and header. All that may be seen there is what the
client was allowed to send, and NATS's answers on subjects of NATS's own making.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError

from fedast.federation.nats.connection import connect
from fedast.federation.nats.names import (
    CONTROL_INBOX,
    CONTROL_SUBJECT,
    MODELS,
    REQUESTS,
    SERVER_INBOX,
    UPDATES,
    UPLOAD_HEADER,
    consumer,
    hello_subject,
    inbox,
    model_subject,
    request_subject,
    upload_subject,
)
from fedast.federation.nats.setup import CONTROL, SERVER, client_name
from fedast.federation.transport import ControlCommand
from tests.federation.nats_support import NatsBed

NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.{consumer(0)}"
FETCH = f"$JS.API.DIRECT.GET.{MODELS}.fedast.model"
MODEL = "0.0.digest"
REPLIES = [
    f"$JS.API.STREAM.DELETE.{REQUESTS}",
    f"$JS.API.STREAM.DELETE.{MODELS}",
    f"$JS.API.STREAM.PURGE.{UPDATES}",
    f"$JS.API.STREAM.UPDATE.{MODELS}",
    f"$JS.API.STREAM.CREATE.{MODELS}X",
    f"$JS.API.STREAM.SNAPSHOT.{MODELS}",
    f"$JS.API.STREAM.LEADER.STEPDOWN.{MODELS}",
    "$JS.API.STREAM.NAMES",
    f"$JS.API.CONSUMER.DELETE.{REQUESTS}.{consumer(1)}",
    f"$JS.API.CONSUMER.PAUSE.{REQUESTS}.{consumer(1)}",
    f"$JS.API.CONSUMER.UNPIN.{REQUESTS}.{consumer(1)}",
    f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.{consumer(1)}",
    "$JS.API.SERVER.REMOVE",
    "$JS.API.ACCOUNT.PURGE.FEDAST",
    f"$JS.ACK.{REQUESTS}.{consumer(1)}.1.1.1.1700000000000000000.0",
    f"$JS.ACK.{UPDATES}.server.1.1.1.1700000000000000000.0",
    f"$JS.ACK.{REQUESTS}.*.1.1.1.1700000000000000000.0",
    f"$JS.ACK.{REQUESTS}.>",
    "$JS.FC.FEDAST_UPDATES.server.x",
    model_subject(MODEL, 0),
    hello_subject(1),
    hello_subject(77),
    upload_subject(1),
    "fedast.upload.1.5-token.0-1",
    request_subject(1, "6"),
    request_subject(0, "6"),
    CONTROL_SUBJECT,
    f"{SERVER_INBOX}.x",
    f"{inbox(1)}.x",
    f"{CONTROL_INBOX}.x",
    "_INBOX.x",
    "_R_.x",
    "_GR_.x.y",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.ACCOUNT.FEDAST.CONNZ",
    "$SYS.ACCOUNT.FEDAST.CONNECT",
    "$KV.x.y",
    ">",
    "fedast.>",
    upload_subject(0),
    hello_subject(0),
    NEXT,
    f"{FETCH}.{MODEL}.0",
]
HEADERS: list[dict[str, str] | None] = [
    None,
    {UPLOAD_HEADER: "3-mine.0-1"},
    {"Nats-Rollup": "all"},
    {"Nats-Expected-Stream": MODELS, "Nats-Expected-Last-Sequence": "7"},
    {"Nats-Msg-Id": "1.5-token.0"},
    {"Nats-TTL": "1s"},
    {
        "Nats-Schedule": "@at 2020-01-01T00:00:00Z",
        "Nats-Schedule-Target": model_subject(MODEL, 0),
    },
    {"Nats-Trace-Dest": model_subject(MODEL, 0)},
    {"Nats-Trace-Dest": f"$JS.API.STREAM.DELETE.{MODELS}", "Nats-Trace-Only": "true"},
    {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    {"Nats-Incr": "+1"},
    {"Nats-Request-Info": '{"acc":"FEDAST","rtt":1}'},
]
PAYLOADS: dict[str, list[bytes]] = {
    "upload": [b"", b"{}"],
    "hello": [b"", b"{}"],
    "next": [b"", b'{"batch":1,"no_wait":true}', b'{"batch":-1}', b"nonsense"],
    "ack": [b"", b"+ACK", b"+NXT", b'+NXT {"batch":5,"no_wait":true}', b"+WPI", b"-NAK", b"x"],
    "fetch": [b"", b'{"last_by_subj":"fedast.model.>"}', b'{"multi_last":["fedast.model.>"]}'],
    "missing": [b"", b"{}"],
}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsBed]:
    found = NatsBed(tmp_path_factory.mktemp("separated"), clients=3, patience=60.0)
    found.start()
    yield found
    found.kill()


class Watch:
    """What is sent in the server's account."""

    def __init__(self, client: str) -> None:
        self.seen: set[str] = set()
        self._count = 0
        queue = re.escape(client)
        self._allowed = re.compile(
            r"fedast\.upload\.0\.chunk|fedast\.hello\.0"
            rf"|\$JS\.API\.CONSUMER\.MSG\.NEXT\.{REQUESTS}\.{queue}"
            rf"|\$JS\.ACK\.{REQUESTS}\.{queue}\..*"
            rf"|\$JS\.API\.DIRECT\.GET\.{MODELS}\.fedast\.model\..*"
            r"|fedast\.request\.0\.[abc]"  # as it is delivered to its owner
            rf"|_R_\..*|_INBOX_spy\..*|{SERVER_INBOX}\.(?!x$).*|\$JS\.EVENT\..*"
        )

    async def note(self, message: Msg) -> None:
        self._count += 1
        if not self._allowed.fullmatch(message.subject):
            self.seen.add(message.subject)

    async def quiet(self) -> None:
        """Wait until nothing more comes."""
        count = -1
        while count < self._count:
            count = self._count
            await asyncio.sleep(0.3)


async def state(spy: Client) -> dict[str, Any]:
    """What the client must not be able to change."""
    js = spy.jetstream()
    found: dict[str, Any] = {}
    for stream in (REQUESTS, UPDATES, MODELS):
        info = await js.stream_info(stream)
        found[f"{stream} config"] = info.config
        if stream != UPDATES:
            found[f"{stream} messages"] = info.state.messages
            found[f"{stream} last"] = info.state.last_seq
    found["streams"] = [info.config.name for info in await js.streams_info()]
    for queue in await js.consumers_info(REQUESTS):
        if queue.name != consumer(0):
            found[queue.name] = queue.config, queue.num_ack_pending, queue.num_pending
    found["model"] = (await js.get_last_msg(MODELS, model_subject(MODEL, 0))).data
    return found


async def attack(bed: NatsBed, target: str) -> set[str]:
    """Have client 0 send to one of its subjects with every reply subject and header; what was seen
    in the server's account that is not the client's own, and what has changed there."""
    server, victim = await bed.server(), await bed.client(1)
    await server.publish(MODEL, b"the model")
    for client in (0, 1):
        for name in ("a", "b", "c"):
            await server.send(client, name, b"a request", MODEL)
    await victim.next(0.5)  # one that others might acknowledge
    spy = await connect(
        [bed.url], bed.keys(SERVER), name="spy", inbox_prefix="_INBOX_spy", patience=15
    )
    evil = await nats.connect(
        bed.url, tls=bed.keys(client_name(0)).context(), inbox_prefix=inbox(0).encode()
    )
    await server.close()
    await victim.close()
    mine = await bed.client(0)
    delivery = await mine.next(2.0)
    queue = consumer(0)
    acknowledged = f"$JS.ACK.{REQUESTS}.{queue}.1.1.1.1700000000000000000.0"
    if delivery is not None:
        acknowledged = delivery._message.reply  # type: ignore[attr-defined]
    subjects = {
        "upload": upload_subject(0),
        "hello": hello_subject(0),
        "next": NEXT,
        "ack": acknowledged,
        "fetch": f"{FETCH}.{MODEL}.0",
        "missing": f"{FETCH}.none.0",
    }
    before = await state(spy)
    watch = Watch(queue)
    watching = await spy.subscribe(">", cb=watch.note)
    await spy.flush(10)
    for reply, payload, headers in itertools.product(REPLIES, PAYLOADS[target], HEADERS):
        await evil.publish(subjects[target], payload, reply=reply, headers=headers)
    await evil.flush(10)
    await watch.quiet()
    await spy.flush(10)
    await watching.unsubscribe()
    after = await state(spy)
    await evil.close()
    await mine.close()
    await spy.close()
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    if target in ("ack", "next"):  # the client's own requests are its own affair
        changed.discard(f"{REQUESTS} messages")
    return watch.seen | changed


@pytest.mark.parametrize("target", PAYLOADS)
def test_no_reply_subject_reaches_beyond_the_client(bed: NatsBed, target: str) -> None:
    async def go() -> None:
        async with asyncio.timeout(90):
            assert await attack(bed, target) == set()

    asyncio.run(go())


def test_the_answer_to_a_command_goes_to_whoever_sent_it(bed: NatsBed) -> None:
    async def go() -> None:
        async with asyncio.timeout(90):
            server = await bed.server()
            keys = bed.keys(CONTROL)
            sender = await connect(
                [bed.url], keys, name="control", inbox_prefix=CONTROL_INBOX, patience=15
            )
            for reply in REPLIES:
                await sender.publish(CONTROL_SUBJECT, b"", reply=reply)
            await sender.publish(CONTROL_SUBJECT, b"last", reply=f"{CONTROL_INBOX}.y")
            seen: list[ControlCommand] = []
            while not seen or seen[-1].data != b"last":
                found = await server.receive(1.0)
                if isinstance(found, ControlCommand):
                    seen.append(found)
            assert len(seen) > 30  # (some of the subjects NATS refuses at once)
            assert all(command.reply.startswith("_R_.") for command in seen)
            await sender.close()
            await server.close()

    asyncio.run(go())


def test_in_one_account_they_do(tmp_path: Path) -> None:
    """As earlier versions set NATS up: so the test above can fail."""

    async def go() -> None:
        async with NatsBed(tmp_path, clients=1, separated=False) as bed, asyncio.timeout(60):
            server = await bed.server()
            await server.publish(MODEL, b"the model")
            evil = await bed.client(0)
            delete = f"$JS.API.STREAM.DELETE.{MODELS}"
            await evil._connection.publish(f"{FETCH}.none.0", b"", reply=delete)
            with suppress(NotFoundError):
                while True:
                    await server._js.stream_info(MODELS)

    asyncio.run(go())
