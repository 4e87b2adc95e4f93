"""One run of a campaign: a federation that is harmed until it has finished, and its books.

A run is a series of waves: a fault and a few attacks at the same time. After each wave training
must go on with all requests and all honest clients, and the books so far must be right; at the end
every task must have had all of its rounds.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedast.federation.nats.connection import TROUBLE
from fedast.federation.nats.setup import client_name
from fedast.federation.transport import TransportError
from tests.federation.support import audited
from tests.soak.catalogue import ATTACKS, FAULTS
from tests.soak.harm import Harm, Unavailable
from tests.soak.scene import TASKS, Scene

_LONGEST = 300.0
"""Seconds in which training must go on after a wave, and in which a harm must be done. Quiet
machines need a few; on one with forty times too much to do, 120 were too few."""
_PUNISHMENT = re.compile(r'"e":"(strike|quarantine)","c":(\d+)')
_GOES_ON = 12
"""Updates that must be counted after a wave."""


@dataclass
class Wave:
    harms: list[str]
    began: float
    """On the federation's own clock."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass
class Run:
    """What is known of a run afterwards."""

    seed: int
    waves: list[Wave] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    by_harm: dict[str, dict[str, int]] = field(default_factory=dict)
    """What became of the requests while a harm lasted and until the next wave."""
    problems: list[str] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)
    not_done: dict[str, int] = field(default_factory=dict)
    """Harms that could not connect, mostly because of another one; they are not counted."""
    peaks: dict[str, int] = field(default_factory=dict)
    lock_ups: int = 0
    """Of nats-server, which was then started again, as the server's log asks for."""
    seconds: float = 0.0
    folder: str = ""

    @property
    def harms(self) -> int:
        return sum(len(wave.harms) for wave in self.waves)


async def run(
    folder: Path,
    seed: int,
    *,
    rounds: int,
    names: Sequence[str] = (),
    most: int | None = None,
    say: bool = False,
) -> Run:
    """``names``: of the harms to choose from, all if empty. ``most``: harms, after which it is left
    alone to finish."""
    result = Run(seed, folder=str(folder))
    began = time.monotonic()
    with Scene(folder, seed, rounds=rounds) as scene:
        try:
            await _waves(scene, result, names, most, say)
            if not result.problems:
                await _to_the_end(scene)
            result.problems += _books(scene, result, whole=not result.problems)
        except Exception as error:  # a run that cannot be judged has failed
            result.problems.append(f"{type(error).__name__}: {error}"[:500])
        if result.problems:
            (folder / "problems.txt").write_text(
                "\n".join(result.problems) + "\n\n" + scene.field.tails()
            )
        result.peaks, result.lock_ups = scene.peaks, scene.lock_ups
        await scene.hang_up()
    result.seconds = round(time.monotonic() - began, 1)
    return result


async def _waves(
    scene: Scene, result: Run, names: Sequence[str], most: int | None, say: bool
) -> None:
    faults = {name: make for name, make in FAULTS.items() if not names or name in names}
    attacks = {name: make for name, make in ATTACKS.items() if not names or name in names}
    result.problems += await _trains(scene, 0, ())
    while not scene.ended and (most is None or result.harms < most) and not result.problems:
        chance = scene.chance
        chosen = [faults[chance.choice(sorted(faults))]] if faults else []
        chosen += [
            attacks[chance.choice(sorted(attacks))]
            for _ in range(chance.randrange(1, 4))
            if attacks
        ]
        harms = [make(random.Random(chance.getrandbits(64))) for make in chosen]
        await _wave(scene, result, harms, say)


async def _wave(scene: Scene, result: Run, harms: Sequence[Harm], say: bool) -> None:
    before = await scene.status(_LONGEST)
    if before is None:
        if not scene.ended:
            result.problems.append(f"the server did not answer for {_LONGEST:g} s")
        return
    wave = Wave([], before["seconds"])
    began = time.monotonic()
    done: list[Harm] = []

    async def one(harm: Harm) -> None:
        try:
            async with asyncio.timeout(_LONGEST):
                await harm.inflict(scene)
            done.append(harm)
        except Unavailable as error:
            result.unavailable.append(f"{harm.name}: {error}")
        except (*TROUBLE, TransportError):
            result.not_done[harm.name] = result.not_done.get(harm.name, 0) + 1
        except Exception as error:  # whatever it is, this run proves nothing
            if not scene.ended:
                wave.problems.append(f"{harm.name}: {type(error).__name__}: {error}"[:300])

    await asyncio.gather(*(one(harm) for harm in harms))
    wave.harms = [harm.name for harm in done]
    scene.weigh()
    updates = sum(task["updates"] for task in before["tasks"].values())
    # (After a checkpoint or a folder went back, the number of updates has too.)
    now = await scene.status(_LONGEST)
    after = sum(task["updates"] for task in now["tasks"].values()) if now else updates
    wave.problems += await _trains(scene, min(updates, after) + _GOES_ON, done)
    wave.problems += _so_far(scene)
    wave.seconds = round(time.monotonic() - began, 2)
    result.waves.append(wave)
    result.problems += [f"after {' + '.join(wave.harms)}: {text}" for text in wave.problems]
    if say:
        print(f"  {wave.began:7.1f} s: {' + '.join(wave.harms)} ({wave.seconds:.1f} s)",
              *wave.problems, flush=True)  # fmt: skip


async def judge(scene: Scene, updates: int) -> list[str]:
    """What is wrong with a federation that should go on to so many updates."""
    return await _trains(scene, updates, ()) + _so_far(scene)


async def _trains(scene: Scene, updates: int, harms: Sequence[Harm]) -> list[str]:
    """Wait until training goes on as if nothing had happened; what is wrong if it does not."""
    end = time.monotonic() + _LONGEST
    wrong = ["nothing was heard of the server"]
    while time.monotonic() < end and not scene.ended:
        scene.weigh()
        scene.relieve()
        found = await scene.status()
        if found is not None:
            wrong = _wrong(scene, found, updates)
            for harm in () if wrong else harms:
                if not await harm.recovered(scene):
                    wrong.append(f"{harm.name}: not recovered")
            if not wrong:
                return []
        await asyncio.sleep(0.3)
    if scene.ended:
        code = scene.field.processes["server"].returncode
        return [] if code == 0 else [f"the server ended by itself with {code}"]
    return [f"after {_LONGEST:g} s: {text}" for text in wrong]


def _wrong(scene: Scene, found: Mapping[str, Any], updates: int) -> list[str]:
    """What a status says that is not as it should be."""
    wrong = []
    tasks = found["tasks"].values()
    counted = sum(task["updates"] for task in tasks)
    if counted < updates:
        wrong.append(f"{counted} updates, {updates} expected")
    unfinished = [task for task in tasks if task["finished"] is None]
    targets = sum(task["requests"] for task in unfinished)
    flying = sum(task["in_flight"] for task in unfinished)
    if unfinished and targets != scene.requests:
        wrong.append(f"the tasks' R add up to {targets}, not {scene.requests}")
    if unfinished and flying != targets:
        wrong.append(f"{flying} requests are out, not {targets}")
    missing = scene.honest - set(found["clients"])
    if missing:
        wrong.append(f"honest clients are missing: {sorted(missing)}")
    return wrong


def _so_far(scene: Scene) -> list[str]:
    """What can be audited while it trains."""
    problems = []
    try:
        audited(scene.events())
    except AssertionError as error:
        problems.append(f"books: {error}")
    problems += _punished(scene)
    for name in map(client_name, sorted(scene.honest)):
        process = scene.field.processes[name]
        if name not in scene.held and process.poll() is not None:
            problems.append(f"{name} ended by itself with {process.returncode}")
    return problems


def _punished(scene: Scene) -> list[str]:
    """Strikes and quarantines of honest clients, in the server's write-ahead log so far. (Those of
    before are remembered: the log is compacted.)"""
    for path in (scene.field.run / "diary").glob("diary*"):
        with suppress(OSError, EOFError, zlib.error):  # compressed or removed at this moment
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode(
                "utf-8", "replace"
            )
            for what, client in _PUNISHMENT.findall(text):
                if int(client) in scene.honest:
                    scene.punished.add((what, int(client)))
    return [f"honest client {client}: {what}" for what, client in sorted(scene.punished)]


async def _to_the_end(scene: Scene) -> None:
    """Wait while it makes progress."""
    last, since = -1, time.monotonic()
    while not scene.ended and time.monotonic() - since < _LONGEST:
        found = await scene.status()
        count = sum(task["updates"] for task in found["tasks"].values()) if found else last
        if count != last:
            last, since = count, time.monotonic()
        await asyncio.sleep(0.3)


def _books(scene: Scene, result: Run, whole: bool) -> list[str]:
    """The audit at the end. Not ``whole``: it was broken off, and something is still open."""
    problems = _punished(scene) if whole else []
    code = scene.field.processes["server"].poll()
    if not whole:
        code = None
    elif code != 0:
        problems.append(
            "training stands still" if code is None else f"the server ended with {code}"
        )
    else:
        found = json.loads((scene.field.run / "result.json").read_text())["tasks"]
        for name in TASKS:
            task = found[name]
            if (task["finish_reason"], task["rounds"]) != ("rounds", scene.rounds):
                problems.append(
                    f"task {name} ended after {task['rounds']} rounds ({task['finish_reason']})"
                )
    events = scene.events()
    try:
        counts = audited(events)
        if code == 0 and counts["open"]:
            problems.append(f"{counts['open']} requests never ended")
        known = scene.field.known()
        unknown = set(scene.field.answered()) - known
        if scene.went_back:  # what was decided after the copy was made, was decided otherwise
            unknown = {request for request in unknown if request <= max(known, default=0)}
        if code == 0 and unknown:
            problems.append(f"confirmed and missing from the records: {sorted(unknown)[:10]}")
    except AssertionError as error:
        problems.append(f"books: {error!r}")
    result.counts = dict(_counted(events))
    for wave, following in zip_longest(result.waves, result.waves[1:]):
        until = following.began if following else float("inf")
        counts = _counted(e for e in events if wave.began <= e["t"] < until)
        for name in wave.harms:
            total = Counter(result.by_harm.get(name, {}))
            result.by_harm[name] = dict(total + counts)
    return problems


def _counted(events: Any) -> Counter[str]:
    """What became of requests, as the table has it."""
    counts: Counter[str] = Counter()
    for event in events:
        match event["event"]:
            case "dispatch":
                counts["sent"] += 1
            case "arrive":
                counts["counted"] += 1
            case "drop" if event["reason"] in ("lost", "invalid"):
                counts[event["reason"]] += 1
            case "ignored":
                counts["late"] += 1
            case _:
                pass
    return counts
