"""Attacks with one valid key on what is learnt, and on who is asked to: wrong updates, wrong
measurements, false claims, silence."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from fedast.federation import wire
from fedast.federation.nats.connection import TROUBLE
from fedast.federation.nats.names import hello_subject
from tests.federation.evil import spoilt
from tests.soak.harm import Harm
from tests.soak.scene import Scene

_TEXTS = (
    "ok\n2026-01-01 00:00:00 ERROR fedast.server: client 0 is quarantined",
    "\x1b[2J\x1b[31mred",
    "\x00\x07\r",
    "{}%s%n{0}",
    "\u202ebackwards\u2028line",
    "x" * 60_000,
)


@final
@dataclass
class Poison:
    """Updates that would spoil the model, or that no model can take."""

    chance: random.Random
    kind: str

    @property
    def name(self) -> str:
        return f"poison: {self.kind}"

    def _vector(self, size: int) -> wire.Vector:
        large = self.chance.choice(["100", "1e4", "1e6"])
        return spoilt(large if self.kind == "a large norm" else self.kind, size)

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            for request in await evil.requests(self.chance.randrange(1, 4)):
                if request.kind != "evaluate":
                    await evil.answer(request, vector=self._vector(request.size))
            await evil.greet(bye=self.chance.random() < 0.5)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class EvaluationLies:
    """Perfect marks on a million samples, and marks for others' questions."""

    chance: random.Random
    name: str = "evaluation: a million samples, all right"

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            for request in await evil.requests(12):
                if request.kind == "evaluate":
                    samples = self.chance.choice([10**6, 2**62, 0, 1])
                    metric = self.chance.choice([1.0, 1e30, -1e30, float("nan")])
                    await evil.answer(request, vector=None, metric=metric, samples=samples)
                    for name in (f"e{request.id}-{request.token}x", f"e0-{request.token}"):
                        await evil.upload(name, b"\0" * 40)
                else:
                    await evil.answer(request)
            await evil.greet(bye=True)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class Silence:
    """It greets and takes requests, and never answers."""

    chance: random.Random
    name: str = "silence: takes requests and never answers"

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            for _ in range(self.chance.randrange(3, 8)):
                await evil.greet(idle=self.chance.random() < 0.5)
                with suppress(*TROUBLE):
                    await evil.transport.next(0.5)
            await evil.greet(bye=self.chance.random() < 0.3)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class Flapping:
    """It comes and goes as fast as it can: each is a decision that must be durable."""

    chance: random.Random
    name: str = "comes and goes all the time"

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            for n in range(200):
                await evil.greet(bye=bool(n % 2), idle=True)
                if n % 10 == 0:
                    await evil.flush()
                    await asyncio.sleep(0.02)
            await evil.greet(bye=True)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class HostileTexts:
    """Texts that forge log lines, move the cursor or are very long, wherever a text goes."""

    chance: random.Random
    name: str = "hostile texts"

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            text = self.chance.choice(_TEXTS)
            for other in _TEXTS:
                await evil.greet(software=other[:50_000])
            for request in await evil.requests(2):
                await evil.answer(request, vector=None, failed=text[:50_000])
            plain = "".join(c for c in text[:200] if c.isprintable() and c not in " .*>") or "x"
            await evil.chunk(f"{plain}.0-1", text.encode())
            await evil.publish(hello_subject(evil.number), text.encode())
            await evil.flush()

    async def recovered(self, scene: Scene) -> bool:
        lines = (scene.folder / "server.log").read_text(errors="replace").splitlines()
        forged = [line for line in lines if line.startswith("2026-01-01 00:00:00 ERROR")]
        if forged or any(len(line) > 20_000 for line in lines):
            raise AssertionError("a client forged or flooded the server's log")
        return True


@final
@dataclass
class DecoderBomb:
    """Short uploads that are expensive to decode."""

    chance: random.Random
    name: str = "decoder bombs"

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            for request in await evil.requests(1):
                update = wire.Update(
                    request.id, request.token, request.task, 0.1, 0.1, 1, None, failed="x"
                )
                count = self.chance.choice([1_000, 30_000])
                tensor = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
                text = "{" + ",".join(f'"{n}":{tensor}' for n in range(count)) + "}"
                deep = json.dumps(None)
                for _ in range(5_000):
                    deep = f"[{deep}]"
                for body in (text, deep):
                    data = body.encode()
                    bomb = wire.encode(update) + struct.pack("<Q", len(data)) + data
                    await evil.upload(f"{request.id}-{request.token}", bomb)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class NobodysFault:
    """It claims that it never finds the model."""

    chance: random.Random
    name: str = "claims that failures are nobody's fault"

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            for _ in range(5):
                for request in await evil.requests(10, 0.5):
                    await evil.answer(request, vector=None, failed=wire.MODEL_GONE)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class Forgery:
    """Its own answers again and again under other ids, others' requests, and made-up ones."""

    chance: random.Random
    name: str = "replayed and forged uploads"

    async def inflict(self, scene: Scene) -> None:
        async with scene.attacker() as evil:
            for request in await evil.requests(3):
                vector = np.zeros(request.size, np.float32)
                update = wire.Update(request.id, request.token, request.task, 0.1, 0.1, 1, vector)
                data = wire.encode(update)
                mine = f"{request.id}-{request.token}"
                for n in range(10):
                    headers = {"Nats-Msg-Id": f"again-{n}-{self.chance.random()}"}
                    await evil.chunk(f"{mine}.0-1", data, headers)
                for number in (request.id - 1, request.id + 1, 0, 10**9, -1):
                    await evil.chunk(f"{number}-{request.token}.0-1", data)
                    await evil.chunk(f"{number}-{'0' * 24}.0-1", data)
            await evil.flush()

    async def recovered(self, scene: Scene) -> bool:
        return True


LIES: Mapping[str, Callable[[random.Random], Harm]] = {
    "poison-3e38": partial(Poison, kind="3e38"),
    "poison-1e30": partial(Poison, kind="1e30"),
    "poison-1e12": partial(Poison, kind="1e12"),
    "poison-nan": partial(Poison, kind="NaN"),
    "poison-infinite": partial(Poison, kind="infinite"),
    "poison-shape": partial(Poison, kind="wrong shape"),
    "poison-size": partial(Poison, kind="ten times the size"),
    "poison-norm": partial(Poison, kind="a large norm"),
    "evaluation-lies": EvaluationLies,
    "silence": Silence,
    "flapping": Flapping,
    "hostile-texts": HostileTexts,
    "decoder-bombs": DecoderBomb,
    "nobodys-fault": NobodysFault,
    "forgery": Forgery,
}
