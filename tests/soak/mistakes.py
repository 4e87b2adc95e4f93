"""An operator's ordinary mistakes and ordinary work, in the middle of training."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import final

from nats.aio.client import Client

from fedast.federation.nats.connection import TROUBLE, close, connect
from fedast.federation.nats.names import MODELS, REQUESTS, SERVER_INBOX, UPDATES
from fedast.federation.nats.setup import SERVER, client_name, register_of
from tests.soak.forked import Forked
from tests.soak.harm import Harm
from tests.soak.scene import Scene

STREAMS = (REQUESTS, UPDATES, MODELS)


@final
@dataclass
class StreamHurt:
    """Somebody with the server's key deletes or purges a stream, or deletes a queue."""

    chance: random.Random
    how: str
    """``DELETE`` or ``PURGE``."""

    @property
    def name(self) -> str:
        return f"stream {self.how.lower()}d with the server's key"

    async def inflict(self, scene: Scene) -> None:
        connection = await _as_server(scene)
        try:
            stream = self.chance.choice(STREAMS)
            with suppress(*TROUBLE):
                await connection.request(f"$JS.API.STREAM.{self.how}.{stream}", b"", timeout=5)
        finally:
            await close(connection)

    async def recovered(self, scene: Scene) -> bool:
        return await streams(scene) >= set(STREAMS)


@final
@dataclass
class QueueDeleted:
    chance: random.Random
    name: str = "queue of a client deleted with the server's key"

    async def inflict(self, scene: Scene) -> None:
        connection = await _as_server(scene)
        try:
            subject = f"$JS.API.CONSUMER.DELETE.{REQUESTS}.{scene.some_client()}"
            with suppress(*TROUBLE):
                await connection.request(subject, b"", timeout=5)
        finally:
            await close(connection)

    async def recovered(self, scene: Scene) -> bool:
        return True


async def _as_server(scene: Scene) -> Client:
    return await connect(
        [scene.bed.url], scene.bed.keys(SERVER), name="operator", inbox_prefix=SERVER_INBOX,
        patience=20,
    )  # fmt: skip


async def streams(scene: Scene) -> set[str]:
    """The streams that there are."""
    try:
        async with asyncio.timeout(10):
            connection = await _as_server(scene)
            try:
                found = await connection.jetstream(timeout=4).streams_info()
            finally:
                await close(connection)
    except TROUBLE:
        return set()
    return {info.config.name for info in found if info.config.name}


@final
@dataclass
class FolderRestored:
    """The server's folder is put back to a copy of some seconds before."""

    chance: random.Random
    name: str = "server's folder restored from a copy"

    async def inflict(self, scene: Scene) -> None:
        run, copy = scene.field.run, scene.folder / "copy-of-run"
        shutil.rmtree(copy, ignore_errors=True)
        with scene.down("server"):
            scene.kill("server")
            shutil.copytree(run, copy)
            scene.start("server")
        await asyncio.sleep(self.chance.uniform(1.0, 4.0))
        with scene.down("server"):
            scene.kill("server")
            scene.went_back = True
            shutil.rmtree(run)
            shutil.copytree(copy, run)
            scene.start("server")

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class SecondServer:
    """Somebody starts a second server with the same key, in the same folder or another one."""

    chance: random.Random
    name: str = "second server on the same streams"

    async def inflict(self, scene: Scene) -> None:
        field, same = scene.field, self.chance.random() < 0.5
        out = field.run if same else scene.folder / "second"
        shutil.rmtree(scene.folder / "second", ignore_errors=True)
        creds = str(scene.bed.layout.credentials(SERVER))
        second = Forked(
            ["serve", str(field.config), "--creds", creds, "--out", str(out), "--server",
             scene.bed.url],
            scene.folder / "second.log",
        )  # fmt: skip
        try:
            end = time.monotonic() + self.chance.uniform(2.0, 5.0)
            while second.poll() is None and time.monotonic() < end:
                await asyncio.sleep(0.1)
        finally:
            second.kill()
            second.wait(20)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class MemberReplaced:
    """One honest client is expelled, and another one is admitted."""

    chance: random.Random
    name: str = "client expelled and another one admitted"

    async def inflict(self, scene: Scene) -> None:
        number = self.chance.choice(sorted(scene.honest))
        name = client_name(number)
        scene.expected.add(name)
        scene.honest.discard(number)
        with register_of(scene.bed.layout) as register:
            register.expel([name])
        scene.admit_honest()

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class KeyRenewed:
    chance: random.Random
    who: str

    @property
    def name(self) -> str:
        return f"key of the {self.who} renewed"

    async def inflict(self, scene: Scene) -> None:
        name = scene.some_client() if self.who == "client" else self.who
        with scene.down(name):
            with register_of(scene.bed.layout) as register:
                if name == "nats-server":
                    register.renew_nats()
                else:
                    register.issue([name])
            scene.bed.reload()
            if name == "nats-server":
                return
            await asyncio.sleep(self.chance.uniform(0.0, 1.0))
            scene.kill(name)
            scene.start(name)

    async def recovered(self, scene: Scene) -> bool:
        return True


@final
@dataclass
class PausedAWhile:
    chance: random.Random
    name: str = "paused and resumed (fedast ctl), the server killed meanwhile"

    async def inflict(self, scene: Scene) -> None:
        paused = await scene.ask("pause")
        if paused is not None and self.chance.random() < 0.7:
            with scene.down("server"):
                scene.kill("server")
                scene.start("server")
        while not scene.ended and await scene.ask("resume") is None:
            await asyncio.sleep(0.2)

    async def recovered(self, scene: Scene) -> bool:
        found = await scene.status()
        return found is not None and not found["paused"]


MISTAKES: Mapping[str, Callable[[random.Random], Harm]] = {
    "delete-stream": partial(StreamHurt, how="DELETE"),
    "purge-stream": partial(StreamHurt, how="PURGE"),
    "delete-queue": QueueDeleted,
    "restore": FolderRestored,
    "second-server": SecondServer,
    "replace-member": MemberReplaced,
    "renew-client": partial(KeyRenewed, who="client"),
    "renew-nats": partial(KeyRenewed, who="nats-server"),
    "pause": PausedAWhile,
}
