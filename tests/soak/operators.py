"""More of an operator's work: functions of one's own that fail, backups, pardons, commands."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from fedast.federation.backup import back_up, restore
from tests.soak.harm import Harm
from tests.soak.scene import BROKEN, Scene


@final
@dataclass
class OwnCodeFails:
    """A function of the operator's raises for a while; it is repaired, and the server started."""

    chance: random.Random
    name: str = "operator's own function raises, until it is repaired"

    async def inflict(self, scene: Scene) -> None:
        flag = scene.folder / BROKEN
        server = scene.field.processes["server"]
        before = (scene.folder / "server.log").stat().st_size
        with scene.down("server"):
            flag.touch()
            try:
                end = time.monotonic() + 100
                while server.poll() is None:
                    assert time.monotonic() < end, "the server goes on without its function"
                    await asyncio.sleep(0.1)
            finally:
                flag.unlink()
            said = (scene.folder / "server.log").read_bytes()[before:].decode(errors="replace")
            if server.returncode == 0:  # it had finished
                return
            assert "ZeroDivisionError" in said, said[-300:]
            assert "in weight" in said, said[-300:]
            scene.start("server")

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class BackupRestored:
    """``federation backup`` while it trains; some seconds later its records are put back."""

    chance: random.Random
    name: str = "records restored from a backup that was made in training"

    async def inflict(self, scene: Scene) -> None:
        file, place = scene.folder / "backup.tar.gz", scene.folder / "restored"
        file.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        run = scene.field.run
        await asyncio.to_thread(back_up, scene.bed.layout, file, run)
        await asyncio.sleep(self.chance.uniform(0.5, 3.0))
        await asyncio.to_thread(restore, file, place)
        with scene.down("server"):
            scene.kill("server")
            scene.went_back = True
            shutil.rmtree(run)
            shutil.copytree(place / "run", run)
            scene.start("server")

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class Pardoned:
    """``fedast ctl pardon`` for those that were quarantined: hostile ones are so again."""

    chance: random.Random
    name: str = "quarantined clients pardoned"

    async def inflict(self, scene: Scene) -> None:
        found = await scene.status(30.0)
        for client in found["quarantined"] if found else ():
            await scene.ask("pardon", f"client-{client}")
        await scene.ask("pardon", "client-0")

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class BadCommands:
    """Commands that there are not, and arguments that mean nothing."""

    chance: random.Random
    name: str = "commands that make no sense"

    async def inflict(self, scene: Scene) -> None:
        for verb in ("", "x\n2026 ERROR", "add", "stop", "pardon", "status", "y" * 10_000):
            argument = self.chance.choice(["", "nobody", "\x1b[2J", "-1", "9" * 400])
            answer = await scene.ask(verb, argument)
            assert answer is None or verb == "status" or answer.startswith("refused"), answer[:100]

    async def recovered(self, scene: Scene) -> bool:
        return True


OPERATORS: Mapping[str, Callable[[random.Random], Harm]] = {
    "own-code": OwnCodeFails,
    "backup": BackupRestored,
    "pardon": Pardoned,
    "bad-commands": BadCommands,
}
