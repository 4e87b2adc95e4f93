"""A federation without clocks and processes: each step is decided by the test, so that two runs of
the same steps must leave the same records, whatever happened to the server in between."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from fedast.config.load import parse
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.federation import wire
from fedast.federation.memory import Hub, MemoryClient, MemoryServer
from fedast.records.run import SERIES, write_result
from fedast.records.series import read
from fedast.run.federate import Federation

CLIENTS = 3
ALGORITHMS: dict[str, dict[str, object]] = {
    "fedast-d": {"requests": 8, "ratio": 2, "variance_window": 2, "period": 0.25,
                 "staleness_weight": "polynomial", "selection": "speed"},
    "fedbuff": {"requests": 3, "ratio": 1.5},
    "sync-st": {"first_k": 1},
    "sync-bayes-st": {"first_k": 2, "candidates": 3},
}  # fmt: skip


def scripted_config(
    name: str,
    *,
    algorithm: dict[str, object] | None = None,
    federation: dict[str, object] | None = None,
    **task: object,
) -> RunConfig:
    """``task``: settings of both tasks."""
    usual: dict[str, object] = {
        "max_rounds": 12,
        "evaluate_every": 2,
        "target": 0.9999,
        "options": {"max_samples": 50},
    }
    table: dict[str, object] = {
        "seed": 5,
        "algorithm": {"name": name, **ALGORITHMS.get(name, {}), **(algorithm or {})},
        "simulation": {"clients": CLIENTS},
        "federation": federation or {},
        "tasks": [
            {"use": "synthetic", "name": called, **usual, **task} for called in ("first", "second")
        ],
    }
    return resolve(parse(table))


@final
class Scripted:
    """A server in a folder, and clients that answer when they are told to."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.hub = Hub()
        self.time = 0.0
        self.federation: Federation | None = None

    @property
    def running(self) -> Federation:
        assert self.federation is not None
        return self.federation

    async def start(self) -> None:
        """Start the server, for the first time or again."""
        self.hub.told, self.hub.changed = asyncio.Queue(), asyncio.Event()
        federation = Federation(
            self.config, MemoryServer(self.hub), self.folder, clock=lambda: self.time
        )
        self.federation = federation
        try:
            federation.recover()
        except BaseException:
            federation.close()
            self.federation = None
            raise
        server = federation.server
        epoch = await server._transport.start(server.state.sequence, server._publisher.upload_limit)
        server._publisher.epoch = epoch or ""
        await server._resending.publish()
        if server._resending.pending:
            await self._read()
            await server._resending.go_on(idle=True)

    async def join(self, client: int) -> None:
        await self._greet(client, bye=False)

    async def leave(self, client: int) -> None:
        await self._greet(client, bye=True)

    async def _greet(self, client: int, *, bye: bool) -> None:
        tasks = tuple(task.name or "" for task in self.config.tasks)
        hello = wire.Hello(client=client, software="test", tasks=tasks, idle=False, bye=bye)
        await MemoryClient(self.hub, client).hello(wire.encode(hello))
        await self._read()

    async def begin(self) -> None:
        await self.running.server._tick()

    async def answer(self, client: int) -> bool:
        """The next request of this client is trained and its update handled; whether it has one."""
        self.time += 0.03125
        delivery = await MemoryClient(self.hub, client).next(0.0)
        if delivery is None:
            return False
        request = wire.decode(delivery.data, wire.Request)
        entry = wire.Update(
            request=request.id,
            token=request.token,
            task=request.task,
            vector=trained(request.id, request.size),
            loss=1.0 / (1 + request.id),
            work_seconds=0.5 + client,
            samples=10,
        )
        await MemoryClient(self.hub, client).upload(
            f"{request.id}-{request.token}", wire.encode(entry)
        )
        await delivery.done()
        await self._read()
        return True

    async def _read(self) -> None:
        server = self.running.server
        while (incoming := await server._transport.receive(0.0)) is not None:
            await server._handle(incoming)

    async def commit(self) -> None:
        await self.running.server._committer.commit(force=True)

    def crash(self) -> None:
        """The process ends: what was not written is gone, and the lock is free."""
        events = self.running._events
        events._waiting.clear()
        self.running.close()
        self.federation = None

    def end(self) -> dict[str, bytes]:
        """Stop in good order; the records, of the time series what does not go by real time."""
        self.running._events.flush()
        write_result(self.folder, self.running.result())
        self.running._series.end("interrupted")
        self.crash()
        names = ("events.jsonl", "curves.csv", "result.json")
        found = {name: (self.folder / name).read_bytes() for name in names}
        rows = [row for row in read(self.folder / SERIES)[0] if isinstance(row, list)]
        decided = [[row[0], *row[2:]] for row in rows if row[0] in "erf"]
        totals = [row[2:] for row in rows if row[0] == "h"][-1]
        return {**found, SERIES: json.dumps([decided, totals], sort_keys=True).encode()}


def trained(request: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """What a client sends: always the same for the same request."""
    return np.array(
        [0.01 * math.sin(request * 7.0 + place) for place in range(size)], dtype=np.float32
    )


async def play(scripted: Scripted, clients: Sequence[int]) -> None:
    """These clients answer one after the other (or else the next that has a request), each update
    with a commit of its own."""
    for client in clients:
        if client >= CLIENTS:
            await scripted.answer(client)
        elif not await scripted.answer(client):
            for other in range(CLIENTS):
                if await scripted.answer(other):
                    break
        await scripted.commit()
