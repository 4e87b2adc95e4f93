"""Attacks with one valid key on NATS and on the time and memory of others: subjects, replies,
headers and floods. They may be refused or ignored; others must not notice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import final

from nats.aio.client import Client

from fedast.federation.nats.connection import TROUBLE
from fedast.federation.nats.names import (
    CHUNK,
    CONTROL_SUBJECT,
    MODELS,
    REQUESTS,
    UPDATES,
    hello_subject,
    inbox,
    request_subject,
)
from fedast.federation.nats.setup import client_name
from tests.soak.harm import Harm
from tests.soak.scene import Scene


def _others(chance: random.Random, scene: Scene) -> int:
    return chance.choice(sorted(scene.honest))


@final
@dataclass
class ReplyElsewhere:
    """NATS does not check the reply subject of what a client publishes."""

    chance: random.Random
    where: str

    @property
    def name(self) -> str:
        return f"reply subjects: {self.where}"

    def _targets(self, scene: Scene) -> list[str]:
        streams = (REQUESTS, UPDATES, MODELS)
        other = _others(self.chance, scene)
        number = self.chance.randrange(100)
        return {
            "administration of JetStream": [
                *(f"$JS.API.STREAM.{verb}.{stream}" for verb in ("DELETE", "PURGE", "INFO")
                  for stream in streams),
                f"$JS.API.CONSUMER.DELETE.{UPDATES}.server",
                f"$JS.API.CONSUMER.DELETE.{REQUESTS}.client-{other}",
                "$SYS.REQ.SERVER.PING",
            ],
            "models": [f"fedast.model.{task}.{number + n}.{'ab' * 12}.0"
                       for task in (0, 1) for n in range(4)],
            "others' greetings": [hello_subject(n) for n in (other, number + 200, 999_999)],
            "others' uploads and queues": [
                f"fedast.upload.{other}.chunk",
                f"fedast.upload.{other}.{number}-guess.0-1",
                request_subject(other, str(number)),
                f"$JS.ACK.{REQUESTS}.client-{other}.1.1.1.1.1",
                CONTROL_SUBJECT,
                f"{inbox(other)}.x",
            ],
        }[self.where]  # fmt: skip

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            for target in self._targets(scene):
                for subject in evil.permitted():
                    data = self.chance.choice([b"", b"{}", b'{"seq":1}'])
                    await evil.publish(subject, data, reply=target)
            await evil.flush()

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class ForbiddenSubjects:
    chance: random.Random
    name: str = "subjects of others and of the server"

    async def inflict(self, scene: Scene) -> None:
        other = _others(self.chance, scene)
        subjects = [
            f"fedast.upload.{other}.chunk", f"fedast.upload.{other}.5-t.0-1",
            hello_subject(other), request_subject(other, "6"),
            "fedast.model.0.0.x.0", CONTROL_SUBJECT, "$SYS.REQ.SERVER.PING",
            f"$JS.API.STREAM.PURGE.{UPDATES}", f"$JS.API.STREAM.DELETE.{MODELS}",
            f"$JS.API.CONSUMER.MSG.NEXT.{REQUESTS}.client-{other}",
            f"$JS.API.STREAM.MSG.GET.{UPDATES}", f"$JS.ACK.{REQUESTS}.client-{other}.1.1.1.1.1",
        ]  # fmt: skip
        async with scene.attacker() as evil:
            for subject in subjects:
                await evil.publish(subject, self.chance.randbytes(30))
            for subject in (">", "fedast.>", f"{inbox(other)}.>", "$SYS.>"):
                with suppress(*TROUBLE):
                    await evil.connection.subscribe(subject)
            await evil.flush()

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class Flood:
    """As many messages as NATS takes, for a second or two."""

    chance: random.Random
    kind: str

    @property
    def name(self) -> str:
        return f"flood: {self.kind}"

    def _message(self, n: int) -> tuple[str, bytes, dict[str, str] | None]:
        match self.kind:
            case "tiny uploads":
                return f"{n}-x.0-1", b"x", None
            case "incomplete uploads":
                return f"{n}-x.0-3", b"x" * 1000, None
            case "long message ids":
                headers = {"Nats-Msg-Id": f"{n}{'i' * 60_000}"}
                return f"{n}-x.0-1", b"", headers
            case "greetings":
                return "", b"x" * (n % 50), None
            case _:  # old requests: each is a decision of the algorithm, late or twice
                return f"{n % 300}-x.0-1", b"x", None

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            await evil.greet()
            loop = asyncio.get_running_loop()
            end, n = loop.time() + self.chance.uniform(0.5, 2.0), 0
            while loop.time() < end:
                for _ in range(50):
                    label, data, headers = self._message(n)
                    if label:
                        named = {"Fedast-Upload": label, **(headers or {})}
                        await evil.publish(f"fedast.upload.{evil.number}.chunk", data, "", named)
                    else:
                        await evil.publish(hello_subject(evil.number), data)
                    n += 1
                await evil.flush()

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class ManyConnections:
    chance: random.Random
    name: str = "flood: connections"

    async def inflict(self, scene: Scene) -> None:
        opened: list[Client] = []

        async def quiet(error: Exception) -> None:
            pass

        async with scene.attacker() as evil:
            context = scene.bed.keys(client_name(evil.number)).context()

            async def one() -> None:
                with suppress(*TROUBLE):  # refused, which is as it should be
                    async with asyncio.timeout(10):
                        opened.append(again := Client())
                        await again.connect(
                            scene.bed.url, tls=context, allow_reconnect=False, error_cb=quiet,
                            max_reconnect_attempts=1,
                        )  # fmt: skip
                        await again.publish(hello_subject(evil.number), b"x")

            await asyncio.gather(*(one() for _ in range(30)))
            await asyncio.sleep(self.chance.uniform(0.0, 1.0))
            for again in opened:
                with suppress(*TROUBLE, AttributeError):
                    async with asyncio.timeout(2):
                        await again.close()

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class ChunkNonsense:
    """Chunks that do not fit together, and subjects that no client has."""

    chance: random.Random
    name: str = "chunks that do not fit together"

    async def inflict(self, scene: Scene) -> None:
        parts = ("0-0", "1-1", "5-3", "0-999999", "-1-2", "x-y", "0-2", "0-2", "1-2", "", "0-1-2")
        async with scene.attacker() as evil:
            for part in parts:
                size = self.chance.choice([0, 1, 1000, CHUNK // 8])
                await evil.chunk(f"7-t.{part}", b"x" * size)
            for rest in ("a", "a.b.c.d.0-1", "e-.0-1", "-.0-1", "9" * 300 + ".0-1"):
                await evil.chunk(rest, b"x")
            await evil.flush()

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class HostileHeaders:
    """Headers that mean something to JetStream."""

    chance: random.Random
    name: str = "headers that JetStream obeys"

    async def inflict(self, scene: Scene) -> None:
        headers = (
            {"Nats-Rollup": "all"}, {"Nats-Rollup": "sub"}, {"Nats-TTL": "1s"},
            {"Nats-Expected-Last-Sequence": "0"}, {"Nats-Expected-Stream": MODELS},
            {"Nats-Msg-Id": f"{_others(self.chance, scene)}.0-x.0"}, {"Nats-Incr": "1"},
            {"Status": "x"}, {"Status": "409", "Description": "Consumer Deleted"},
            {"Nats-Marker-Reason": "Purge"}, {"Nats-Schedule": "@every 1s"},
            {"Nats-Schedule-Target": "fedast.model.0.0.x.0", "Nats-Schedule": "@every 1s"},
        )  # fmt: skip
        async with scene.attacker() as evil:
            for subject in evil.permitted():
                for header in headers:
                    await evil.publish(subject, b"{}", headers=header)
            await evil.flush()

    async def recovered(self, scene: Scene) -> bool:
        return True


ATTACKS: Mapping[str, Callable[[random.Random], Harm]] = {
    "reply-admin": partial(ReplyElsewhere, where="administration of JetStream"),
    "reply-models": partial(ReplyElsewhere, where="models"),
    "reply-greetings": partial(ReplyElsewhere, where="others' greetings"),
    "reply-others": partial(ReplyElsewhere, where="others' uploads and queues"),
    "forbidden-subjects": ForbiddenSubjects,
    "flood-tiny": partial(Flood, kind="tiny uploads"),
    "flood-incomplete": partial(Flood, kind="incomplete uploads"),
    "flood-ids": partial(Flood, kind="long message ids"),
    "flood-greetings": partial(Flood, kind="greetings"),
    "flood-old": partial(Flood, kind="old requests"),
    "flood-connections": ManyConnections,
    "chunk-nonsense": ChunkNonsense,
    "hostile-headers": HostileHeaders,
}
