"""A transport within one process, for tests and experiments: no network, same promises."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import final

from fedast.core.protocol import ClientId
from fedast.federation.transport import (
    ControlCommand,
    Delivery,
    Fenced,
    Greeted,
    Incoming,
    StorageLost,
    Uploaded,
)


@dataclass
class Hub:
    """The queues of one federation; it outlives its server and clients."""

    patience: float = 30.0
    models: dict[str, bytes] = field(default_factory=dict)
    queues: dict[ClientId, OrderedDict[str, bytes]] = field(default_factory=dict)
    taken: dict[tuple[ClientId, str], float] = field(default_factory=dict)
    """When requests that were delivered are delivered again."""
    uploads: dict[int, Uploaded] = field(default_factory=dict)
    names: set[tuple[ClientId, str]] = field(default_factory=set)
    sequences: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    acknowledged: int = 0
    epoch: int = 0
    server: MemoryServer | None = None
    """The one that started last."""
    told: asyncio.Queue[Incoming] = field(default_factory=asyncio.Queue)
    answers: dict[str, bytes] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def stir(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def fail(self, client: ClientId, name: str, why: str, blame: bool) -> None:
        """A request fails in a way that the transport notices."""
        self.queues.get(client, OrderedDict()).pop(name, None)
        self.taken.pop((client, name), None)
        self.keep(client, name, b"", failed=why, blame=blame)

    def keep(
        self,
        client: ClientId,
        name: str,
        data: bytes,
        failed: str | None = None,
        blame: bool = False,
    ) -> None:
        """Store something for the server under the next sequence number."""
        sequence = next(self.sequences)
        self.uploads[sequence] = Uploaded(sequence, client, name, data, failed=failed, blame=blame)
        self.stir()

    def lose(self) -> None:
        """Lose everything that is stored."""
        for stored in (self.models, self.queues, self.taken, self.uploads, self.names):
            stored.clear()
        self.told.put_nowait(StorageLost("the hub was emptied"))
        self.stir()


@final
class MemoryServer:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._read = 0
        self._limit = 0

    async def start(self, after: int, limit: int) -> str:
        hub = self._hub
        hub.server = self
        hub.sequences = itertools.count(max(next(hub.sequences), after + 1))  # it may be a new hub
        if after < hub.acknowledged:  # the log went back: all that is open is sent anew
            hub.epoch += 1
            hub.acknowledged = after
            hub.queues.clear()
            hub.taken.clear()
        self._read, self._limit = after, limit
        return f"x{hub.epoch}" if hub.epoch else ""

    def _check(self) -> None:
        if self._hub.server is not self:
            raise Fenced("another server has started in this process")

    async def publish(self, name: str, data: bytes) -> None:
        self._hub.models[name] = data

    async def retire(self, name: str) -> None:
        self._hub.models.pop(name, None)

    async def send(self, client: ClientId, name: str, data: bytes, model: str) -> None:
        self._hub.queues.setdefault(client, OrderedDict()).setdefault(name, data)
        self._hub.stir()

    async def tell(self, client: ClientId, data: bytes | None) -> None:
        await self.withdraw(client, "notice")
        if data is not None:
            await self.send(client, "notice", data, "")

    async def withdraw(self, client: ClientId, name: str) -> None:
        if (client, name) not in self._hub.taken:
            self._hub.queues.get(client, OrderedDict()).pop(name, None)

    async def redeliver(self, client: ClientId) -> None:
        for key in [key for key in self._hub.taken if key[0] == client]:
            del self._hub.taken[key]
        self._hub.stir()

    async def receive(self, timeout: float) -> Incoming | None:
        end = asyncio.get_running_loop().time() + timeout
        while True:
            self._check()
            for sequence, found in self._hub.uploads.items():
                if sequence > self._read:
                    self._read = sequence
                    whole = len(found.data) <= self._limit
                    return replace(found, data=found.data[: self._limit], oversized=not whole)
            if not self._hub.told.empty():
                return self._hub.told.get_nowait()
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            try:
                await asyncio.wait_for(self._hub.changed.wait(), left)
            except TimeoutError:
                return None

    async def acknowledge(self, sequence: int) -> None:
        self._check()
        self._hub.acknowledged = max(self._hub.acknowledged, sequence)
        for old in [p for p in self._hub.uploads if p <= sequence]:
            del self._hub.uploads[old]

    async def answer(self, command: ControlCommand, data: bytes) -> None:
        self._hub.answers[command.reply] = data
        self._hub.stir()

    async def close(self) -> None:
        pass


@final
class _MemoryDelivery:
    def __init__(self, hub: Hub, client: ClientId, name: str, data: bytes) -> None:
        self._hub = hub
        self._key = (client, name)
        self.data = data

    async def working(self) -> None:
        if self._key in self._hub.taken:
            now = asyncio.get_running_loop().time()
            self._hub.taken[self._key] = now + self._hub.patience

    async def done(self) -> None:
        self._hub.taken.pop(self._key, None)
        self._hub.queues.get(self._key[0], OrderedDict()).pop(self._key[1], None)
        self._hub.stir()

    async def give_back(self) -> None:
        self._hub.taken.pop(self._key, None)
        self._hub.stir()


@final
class MemoryClient:
    def __init__(self, hub: Hub, client: ClientId) -> None:
        self._hub = hub
        self._client = client

    @property
    def patience(self) -> float:
        return self._hub.patience

    async def next(self, timeout: float) -> Delivery | None:
        clock = asyncio.get_running_loop().time
        end = clock() + timeout
        while True:
            found = self._take(clock())
            if found is not None:
                return found
            left = end - clock()
            if left <= 0:
                return None
            try:
                await asyncio.wait_for(self._hub.changed.wait(), min(left, 0.05))
            except TimeoutError:
                continue

    def _take(self, now: float) -> Delivery | None:
        """The first of the queue, unless the client has one already."""
        queue = self._hub.queues.get(self._client, OrderedDict())
        for name, data in queue.items():
            key = (self._client, name)
            if self._hub.taken.get(key, 0.0) > now:
                return None
            self._hub.taken[key] = now + self._hub.patience
            return _MemoryDelivery(self._hub, self._client, name, data)
        return None

    async def fetch(self, name: str) -> bytes | None:
        return self._hub.models.get(name)

    async def upload(self, name: str, data: bytes) -> None:
        if (self._client, name) not in self._hub.names:
            self._hub.names.add((self._client, name))
            self._hub.keep(self._client, name, data)

    async def hello(self, data: bytes) -> None:
        self._hub.told.put_nowait(Greeted(self._client, data))
        self._hub.stir()

    async def close(self) -> None:
        pass


async def send_command(hub: Hub, data: bytes, timeout: float = 5.0) -> bytes:
    """Send a control command to the server and wait for its answer."""
    reply = f"reply-{uuid.uuid4().hex}"
    hub.told.put_nowait(ControlCommand(data, reply))
    hub.stir()
    async with asyncio.timeout(timeout):
        while reply not in hub.answers:
            await hub.changed.wait()
    return hub.answers.pop(reply)
