"""Every subject that a client can reach, fuzzed in a running federation.

A hostile key sends random and damaged messages with random headers and replies for as long as it
is told to. The server must stay up, honest training must go on, and memory must stay bounded.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedast.federation import wire
from fedast.federation.nats.names import CONTROL_SUBJECT
from fedast.federation.transport import TransportError
from tests.soak.campaign import judge
from tests.soak.hostile import Hostile
from tests.soak.scene import TASKS, Scene

_MEGABYTES = 2048
_HEADERS = (
    "Nats-Msg-Id", "Nats-Rollup", "Nats-TTL", "Nats-Expected-Stream", "Nats-Incr", "Nats-Schedule",
    "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Msg-Id", "Nats-Schedule-Target",
    "Fedast-Upload", "Fedast-Parts", "Status", "X",
)  # fmt: skip


def _sound(chance: random.Random) -> bytes:
    """A message that could be sound, with a few bytes damaged."""
    vector = np.ones(chance.randrange(1, 50), np.float32)
    kinds: list[wire.Message] = [
        wire.Update(chance.randrange(400), "t", TASKS[0], 0.1, 0.1, 1, vector),
        wire.Update(chance.randrange(400), "t", TASKS[0], 0.1, 0.1, 1, None, failed="x"),
        wire.Hello(chance.randrange(40), "x", TASKS, idle=chance.random() < 0.5),
        wire.Control(chance.choice(["status", "stop", "add", "halt", "pardon"]), TASKS[0]),
        wire.Model(TASKS[0], chance.randrange(9), vector),
    ]
    data = bytearray(wire.encode(chance.choice(kinds)))
    for _ in range(chance.choice([0, 0, 1, 3, 20])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.choice([len(data), len(data), chance.randrange(len(data))])])


def _text(chance: random.Random) -> str:
    alphabet = "0123456789-.abcxyz*>$ \t%é\u202e"
    return "".join(chance.choice(alphabet) for _ in range(chance.choice([0, 1, 5, 30, 3000])))


async def _one(evil: Hostile, chance: random.Random, subjects: list[str]) -> None:
    subject = chance.choice(subjects)
    if chance.random() < 0.3:
        subject = f"{subject.rpartition('.')[0]}.{_text(chance)[:40].replace(' ', '')}"
    size = chance.choice([0, 3, 60, 3000])
    data = chance.choice([_sound(chance), _sound(chance), chance.randbytes(size)])
    label = f"{chance.randrange(300)}-{_text(chance)[:20]}.{chance.choice(['0-1', '0-2', 'x', ''])}"
    headers = {name: _text(chance) or "1" for name in _HEADERS if chance.random() < 0.1}
    if chance.random() < 0.5:
        headers["Fedast-Upload"] = label
    headers = {name: value.replace("\n", "").strip() or "1" for name, value in headers.items()}
    reply = chance.choice(["", "", *subjects]) if chance.random() < 0.3 else ""
    await evil.publish(subject, data, reply, headers)


async def _as_operator(scene: Scene, chance: random.Random) -> None:
    """Damaged commands, with the key that may command: no sound one is among them."""
    message = bytearray(wire.encode(wire.Control(_text(chance)[:20] + "?", _text(chance)[:200])))
    for _ in range(chance.randrange(3)):
        message[chance.randrange(9, len(message))] = chance.randrange(32, 127)
    with suppress(TransportError):  # whether it still answers is judged next
        await scene.bed.command(bytes(message))


async def fuzz(folder: Path, seed: int, seconds: float) -> tuple[int, list[str]]:
    """How many messages were sent, and what went wrong."""
    chance = random.Random(seed)
    count, problems = 0, []
    with Scene(folder, seed, rounds=1_000_000) as scene:
        end = time.monotonic() + seconds
        problems += await judge(scene, 0)
        while time.monotonic() < end and not problems:
            async with scene.attacker() as evil:
                subjects = [
                    *evil.permitted(), CONTROL_SUBJECT, "fedast.request.0.1-x",
                    "fedast.model.0.0.x.0", "$JS.API.STREAM.LIST", "fedast.hello.0",
                ]  # fmt: skip
                for _ in range(20):
                    await evil.greet()
                    for _ in range(50):
                        await _one(evil, chance, subjects)
                    await evil.flush()
                    count += 50
            await _as_operator(scene, chance)
            found = await scene.status(60.0)
            before = sum(task["updates"] for task in found["tasks"].values()) if found else 0
            problems += await judge(scene, before + 5)
            heavy = {name: size for name, size in scene.peaks.items() if size > _MEGABYTES}
            problems += [f"{name} uses {size} MB" for name, size in heavy.items()]
        if problems:
            (folder / "problems.txt").write_text("\n".join([*problems, scene.field.tails()]))
        print(f"  peaks: {scene.peaks} MB")
    return count, problems


def run(folder: Path, seed: int, seconds: float) -> tuple[int, list[str]]:
    return asyncio.run(fuzz(folder, seed, seconds))
