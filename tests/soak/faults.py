"""Faults: processes, links, disks, files and clocks that fail."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import final

from fedast.federation.nats.setup import client_name
from tests.federation.disks import filled
from tests.soak.harm import Harm, Unavailable
from tests.soak.mistakes import STREAMS, streams
from tests.soak.scene import Scene


@final
@dataclass
class Killed:
    """Killed or told to end, and started again after a while."""

    chance: random.Random
    who: str
    number: signal.Signals = signal.SIGKILL

    @property
    def name(self) -> str:
        how = "killed" if self.number is signal.SIGKILL else "told to end"
        return f"{self.who} {how} and started again"

    async def inflict(self, scene: Scene) -> None:
        name = scene.some_client() if self.who == "client" else self.who
        with scene.down(name):
            scene.kill(name, self.number)
            try:
                await asyncio.to_thread(scene.field.processes[name].wait, 60)
            except TimeoutError:  # a very slow machine
                scene.kill(name)
            await asyncio.sleep(self.chance.choice([0.0, 0.0, self.chance.uniform(0.0, 2.0)]))
            scene.start(name)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class Stopped:
    """It hangs for a while (SIGSTOP): a client perhaps for longer than its lease."""

    chance: random.Random
    who: str

    @property
    def name(self) -> str:
        return f"{self.who} hangs (SIGSTOP)"

    async def inflict(self, scene: Scene) -> None:
        longest = 7.0 if self.who == "client" else 3.0
        name = scene.some_client() if self.who == "client" else self.who
        process = scene.bed._process if name == "nats-server" else scene.field.processes[name]
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self.chance.uniform(0.5, longest))
        finally:
            process.send_signal(signal.SIGCONT)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class NatsKilled:
    chance: random.Random
    name: str = "nats-server killed and started again"

    async def inflict(self, scene: Scene) -> None:
        scene.bed.kill()
        await asyncio.sleep(self.chance.uniform(0.0, 1.0))
        scene.bed.start()

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class AllKilled:
    """Every process at once, in any order back."""

    chance: random.Random
    name: str = "all processes killed at once"

    async def inflict(self, scene: Scene) -> None:
        names = ["server", *map(client_name, sorted(scene.honest))]
        with scene.down(*names):
            for name in names:
                scene.kill(name)
            scene.bed.kill()
            back: list[Callable[[], None]] = [
                *(partial(scene.start, name) for name in names),
                scene.bed.start,
            ]
            self.chance.shuffle(back)
            for start in back:
                start()
                await asyncio.sleep(self.chance.uniform(0.0, 0.2))

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class LinkCut:
    chance: random.Random
    who: str

    @property
    def name(self) -> str:
        return f"link of the {self.who} cut and healed"

    async def inflict(self, scene: Scene) -> None:
        names = [name for name in scene.proxies if name.startswith(self.who)]
        proxy = scene.proxies[self.chance.choice(names)]
        proxy.cut()
        try:
            await asyncio.sleep(self.chance.uniform(0.3, 3.0))
        finally:
            proxy.heal()

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class DiskFull:
    """The disk of the server or of nats-server is full for a while, then has room again."""

    chance: random.Random
    who: str

    @property
    def name(self) -> str:
        return f"disk of {self.who} full, then free again"

    async def inflict(self, scene: Scene) -> None:
        if not scene.small_disks:
            raise Unavailable("needs the right to mount a small disk")
        with ExitStack() as full:
            full.enter_context(filled(scene.disk_of(self.who)))
            await asyncio.sleep(self.chance.uniform(0.5, 3.0))
            if self.who == "server" and self.chance.random() < 0.5:
                with scene.down("server"):
                    scene.kill("server")
                    full.close()
                    scene.start("server")

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class PowerCut:
    """The machine of server and nats-server loses power: what was not synced is gone."""

    chance: random.Random
    name: str = "power cut of server and nats-server"

    async def inflict(self, scene: Scene) -> None:
        if scene.power is None:
            raise Unavailable("this run's disk cannot lose power")
        with scene.down("server"):
            scene.kill("server")
            scene.bed.kill()
            await asyncio.to_thread(scene.power.cut)
            scene.bed.start()
            scene.start("server")

    async def recovered(self, scene: Scene) -> bool:
        return True


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@final
@dataclass
class StoreDeleted:
    """What NATS had stored is gone when it comes back."""

    chance: random.Random
    name: str = "NATS's store deleted while it was down"

    async def inflict(self, scene: Scene) -> None:
        scene.bed.kill()
        _empty(scene.disk_of("nats-server"))
        scene.bed.start()

    async def recovered(self, scene: Scene) -> bool:
        return await streams(scene) >= set(STREAMS)


@final
@dataclass
class StoreOlder:
    """NATS comes back with what it had stored some seconds before, as from a backup."""

    chance: random.Random
    name: str = "NATS back with an older store"

    async def inflict(self, scene: Scene) -> None:
        data, copy = scene.disk_of("nats-server"), scene.folder / "older-store"
        shutil.rmtree(copy, ignore_errors=True)
        scene.bed.kill()
        shutil.copytree(data, copy)
        scene.bed.start()
        await asyncio.sleep(self.chance.uniform(1.0, 3.0))
        scene.bed.kill()
        _empty(data)
        shutil.copytree(copy, data, dirs_exist_ok=True)
        scene.bed.start()

    async def recovered(self, scene: Scene) -> bool:
        return await streams(scene) >= set(STREAMS)


@final
@dataclass
class FileDamaged:
    """A few bytes of the server's newest checkpoint or of its log are others when it comes
    back."""

    chance: random.Random
    what: str

    @property
    def name(self) -> str:
        return f"{self.what} damaged while the server was down"

    async def inflict(self, scene: Scene) -> None:
        with scene.down("server"):
            scene.kill("server")
            folder = scene.field.run / "diary"
            where = folder / "state" if self.what == "checkpoint" else folder
            found = [path for path in where.glob("*") if path.is_file() and path.stat().st_size]
            if self.what == "log":
                found = [path for path in found if "diary" in path.name]
            if found:
                scene.went_back = True
                self._damage(max(found, key=lambda path: path.stat().st_mtime_ns))
            scene.start("server")

    def _damage(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("r+b") as file:
            # The tail of a log; anywhere in a checkpoint.
            first = max(0, size - 400) if self.what == "log" else 0
            for _ in range(5):
                file.seek(self.chance.randrange(first, size))
                file.write(bytes([self.chance.randrange(256)]))

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class ClockSet:
    """The clock of the whole machine, forward or back, and right again."""

    chance: random.Random
    name: str = "clock set forward or back by hours, then right again"
    _true: float = field(default_factory=lambda: time.time() - time.monotonic())

    async def inflict(self, scene: Scene) -> None:
        if os.environ.get("FEDAST_MAY_SET_CLOCK") != "1":
            raise Unavailable("sets this machine's clock; FEDAST_MAY_SET_CLOCK=1 allows it")
        try:
            jump = self.chance.choice([-30, -3, 3, 30]) * 3600.0
            time.clock_settime(time.CLOCK_REALTIME, time.time() + jump)
            await asyncio.sleep(self.chance.uniform(1.0, 3.0))
        finally:
            time.clock_settime(time.CLOCK_REALTIME, self._true + time.monotonic())

    async def recovered(self, scene: Scene) -> bool:
        return True


FAULTS: Mapping[str, Callable[[random.Random], Harm]] = {
    "kill-server": partial(Killed, who="server"),
    "end-server": partial(Killed, who="server", number=signal.SIGTERM),
    "stop-server": partial(Stopped, who="server"),
    "kill-client": partial(Killed, who="client"),
    "end-client": partial(Killed, who="client", number=signal.SIGTERM),
    "stop-client": partial(Stopped, who="client"),
    "kill-nats": NatsKilled,
    "stop-nats": partial(Stopped, who="nats-server"),
    "kill-all": AllKilled,
    "cut-client": partial(LinkCut, who="client"),
    "cut-server": partial(LinkCut, who="server"),
    "full-server": partial(DiskFull, who="server"),
    "full-nats": partial(DiskFull, who="nats-server"),
    "power": PowerCut,
    "delete-store": StoreDeleted,
    "older-store": StoreOlder,
    "damage-checkpoint": partial(FileDamaged, what="checkpoint"),
    "damage-log": partial(FileDamaged, what="log"),
    "clock": ClockSet,
}
