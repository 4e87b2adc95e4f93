"""The ServerApp's side of the transport over Flower's Grid.

Theory of operation. Flower gives one queue per SuperNode, first come first served, and a reply that
can be pulled once. The rest of what a transport promises is added here, in a folder of the
ServerApp: the model goes with every request (Flower stores equal contents once); a reply is written
down before anybody sees it and stays until it is acknowledged, so that a restarted ServerApp finds
it again; every node gets a number, for good. Flower does not announce who comes and goes: nodes
that it lists are greeted for, and one that it no longer lists has left. Replies are untrusted:
those of each client are pulled separately, in a thread of their own.

What cannot be added: a request that its client did not finish is not delivered again but comes back
as an error after a while, and what was sent cannot be withdrawn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedast.core.protocol import ClientId
from fedast.federation import wire
from fedast.federation.backoff import retry
from fedast.federation.flower.client import MODEL, RECORD
from fedast.federation.flower.spool import Spool
from fedast.federation.flower.threads import in_thread
from fedast.federation.transport import (
    ControlCommand,
    Gone,
    Greeted,
    Incoming,
    TransportError,
    Uploaded,
)

log = logging.getLogger("fedast.flower")

_UNREACHED = {3, 4, 5}
"""Flower's codes for a message or a reply that expired, and for a node that has left."""
_GREET_EVERY = 3.0
_ASK_AGAIN = 30.0
"""Seconds after which a node that could not answer is asked again."""
_HELLO_WITHIN = 300.0
_LONGEST_HELLO = 65536
_PULLS_PER_SECOND = 40.0
"""With many nodes each is polled less often, so that the SuperLink keeps up."""
T = TypeVar("T")


@final
class FlowerServer:
    def __init__(
        self, grid: Grid, folder: Path, *, ttl: float, poll: float = 0.3, patience: float = 120.0
    ) -> None:
        """``ttl``: seconds after which Flower gives up a request. ``poll``: seconds between two
        looks for replies. ``patience``: seconds that transferring a reply may take."""
        self._grid = grid
        self._spool = Spool(folder)
        self._ttl = ttl
        self._every = poll
        self._patience = patience
        self._out: dict[ClientId, dict[str, str]] = {}
        """What each client has yet to answer, in order: Flower's message ids and the names of the
        requests; the name of our own question (see ``_greet``) is empty."""
        self._pulls: dict[ClientId, asyncio.Task[None]] = {}
        self._hellos: dict[ClientId, bytes] = {}
        self._asked: dict[ClientId, float] = {}
        """When nodes that have not answered our question were asked."""
        self._since: dict[ClientId, str] = {}
        """When a node was last started, according to Flower."""
        self._greetings: deque[Greeted | Gone] = deque()
        self._uploads: deque[Uploaded] = deque()
        self._news = asyncio.Event()
        self._sequence = 0
        self._limit = 0
        self._watching: asyncio.Task[None] | None = None

    async def start(self, after: int, limit: int) -> None:
        self._limit = limit
        self._sequence = after
        for upload in self._spool.kept():
            self._sequence = max(self._sequence, upload.sequence)
            if upload.sequence > after:
                self._uploads.append(upload)
        self._watching = asyncio.create_task(self._watch())

    async def publish(self, name: str, data: bytes) -> None:
        await self._patiently(lambda: self._spool.keep_model(name, data))

    async def retire(self, name: str) -> None:
        await asyncio.to_thread(self._spool.drop_model, name)

    async def send(self, client: ClientId, name: str, data: bytes, model: str) -> None:
        if name in self._out.get(client, {}).values():
            return
        records = {RECORD: ConfigRecord({"client": client, "name": name, "request": data})}
        found = await asyncio.to_thread(self._spool.model, model)
        if found is not None:
            records[MODEL] = ConfigRecord({"data": found})
        if not await self._push(client, name, MessageType.TRAIN, records, self._ttl):
            self._forget(client)  # its requests are lost

    async def _push(
        self, client: ClientId, name: str, kind: str, records: dict[str, ConfigRecord], ttl: float
    ) -> bool:
        node = self._spool.node(client)
        if node is None:
            return False
        message = Message(RecordDict(records), node, kind, ttl=ttl)
        found = await self._patiently(lambda: list(self._grid.push_messages([message])))
        if not found or not found[0]:
            there = await self._patiently(lambda: list(self._grid.get_node_ids()))
            if not found and node in there:
                raise TransportError("Flower does not accept a message as large as this model")
            return False
        self._out.setdefault(client, {})[str(found[0])] = name
        return True

    async def _patiently(self, do: Callable[[], T]) -> T:
        """Whatever is wrong with the SuperLink or the disk may be temporary."""

        def failed(error: Exception) -> None:  # of httpx, of Flower, of the disk
            log.warning("%s: %s; trying again", type(error).__name__, str(error)[:200])

        attempt = partial(in_thread, do)
        return await retry(attempt, failed, on=(Exception,), first=0.5, longest=5.0)

    async def withdraw(self, client: ClientId, name: str) -> None:
        """Flower cannot withdraw it; its reply will come late."""

    async def redeliver(self, client: ClientId) -> None:
        """Not needed: Flower has delivered everything to a client that is here."""

    async def receive(self, timeout: float) -> Incoming | None:
        clock = asyncio.get_running_loop().time
        end = clock() + timeout
        while True:
            self._news.clear()
            if self._watching is not None and self._watching.done():
                self._watching.result()
            if self._greetings:
                return self._greetings.popleft()
            if self._uploads:
                return self._uploads.popleft()
            try:
                await asyncio.wait_for(self._news.wait(), max(0.0, end - clock()))
            except TimeoutError:
                return None

    async def _watch(self) -> None:
        """Pull replies and see who is connected, forever."""
        clock = asyncio.get_running_loop().time
        greeted = -1e9
        try:
            while True:
                for client in [c for c, task in self._pulls.items() if task.done()]:
                    self._pulls.pop(client).result()
                for client, out in self._out.items():
                    if out and client not in self._pulls:
                        self._pulls[client] = asyncio.create_task(self._pull(client, list(out)))
                if clock() - greeted >= _GREET_EVERY:
                    greeted = clock()
                    await self._see_who_is_there(greeted)
                await asyncio.sleep(max(self._every, len(self._pulls) / _PULLS_PER_SECOND))
        finally:
            self._news.set()

    async def _pull(self, client: ClientId, ids: list[str]) -> None:
        """Pull a client's replies, if there are any. They are untrusted: whatever is wrong with
        them is this client's fault, and must not delay the others."""
        try:
            async with asyncio.timeout(self._patience):
                found = await in_thread(lambda: list(self._grid.pull_messages(ids)))
        except TimeoutError:
            self._resolve(client, ids[0], failed="its reply did not arrive in time", blame=True)
            return
        except Exception as error:  # of httpx, or of whatever Flower makes of a broken reply
            if isinstance(error, OSError) or type(error).__module__.startswith("http"):
                log.warning("pulling replies: %s; trying again", error)
            elif len(ids) > 1:
                for one in ids:
                    await self._pull(client, [one])
            else:
                log.exception("client %d: its reply cannot be read", client)
                self._resolve(client, ids[0], failed="its reply cannot be read", blame=True)
            return
        for message in found:
            mine = message.metadata.reply_to_message_id
            mine = mine if mine in ids else ids[0]  # no client can answer for another
            if message.has_error():
                unreached = message.error.code in _UNREACHED
                self._resolve(client, mine, failed=_why(message), blame=not unreached)
                continue
            try:
                data = message.content[RECORD]["data"]
            except (KeyError, TypeError, ValueError):
                data = None
            if isinstance(data, bytes):
                self._resolve(client, mine, data)
            else:
                self._resolve(client, mine, failed="its reply has no record of fedast", blame=True)

    def _resolve(
        self,
        client: ClientId,
        message_id: str,
        data: bytes = b"",
        *,
        failed: str | None = None,
        blame: bool = False,
    ) -> None:
        name = self._out.get(client, {}).pop(message_id, None)
        if name is None:
            return
        if name:
            # Under the request's own name: no client can answer for another.
            self._keep(client, name, data, failed, blame)
        elif failed is None and self._is_hello(data):
            self._hellos[client] = data
            self._greetings.append(Greeted(client, data))
        else:
            log.warning("client %d cannot join: %s", client, failed or "its answer is not a hello")
        self._news.set()

    @staticmethod
    def _is_hello(data: bytes) -> bool:
        try:
            wire.decode(data[:_LONGEST_HELLO], wire.Hello)
        except wire.WireError as error:
            log.warning("a hello cannot be decoded: %s", error)
            return False
        return True

    def _keep(
        self, client: ClientId, name: str, data: bytes, failed: str | None, blame: bool
    ) -> None:
        self._sequence += 1
        upload = Uploaded(
            self._sequence,
            client,
            name,
            data[: self._limit],
            len(data) > self._limit,
            failed,
            blame,
        )
        try:
            self._spool.keep(upload)
        except OSError as error:  # if we die before the commit, it is requested again
            log.error("an upload cannot be stored on disk: %s", error)
        self._uploads.append(upload)

    async def _see_who_is_there(self, now: float) -> None:
        nodes = await self._patiently(lambda: list(self._grid.get_nodes()))
        here: dict[ClientId, str] = {}
        for node in sorted(nodes, key=lambda node: self._spool.numbers.get(node.node_id, 1 << 64)):
            here[self._spool.number(node.node_id)] = node.last_activated_at
        for client in [client for client in self._since if client not in here]:
            self._forget(client)
        for client, since in here.items():
            if self._since.setdefault(client, since) != since:
                # It was restarted: it lost its requests, and its tasks may differ.
                self._since[client] = since
                for message_id in list(self._out.get(client, {})):
                    self._resolve(client, message_id, failed="its node was restarted")
                self._asked.pop(client, None)
                self._hellos.pop(client, None)
            await self._greet(client, now)

    def _forget(self, client: ClientId) -> None:
        """It has left; if it comes back, it is asked again which tasks it has."""
        self._since.pop(client, None)
        self._hellos.pop(client, None)
        self._asked.pop(client, None)
        self._greetings.append(Gone(client))
        self._news.set()

    async def _greet(self, client: ClientId, now: float) -> None:
        """Ask a node once which tasks it has, and from then on send heartbeats for it."""
        if client in self._hellos:
            self._greetings.append(Greeted(client, self._hellos[client]))
            self._news.set()
            return
        waiting = "" in self._out.get(client, {}).values()
        if now - self._asked.get(client, -1e9) > _ASK_AGAIN and not waiting:
            self._asked[client] = now
            records = {RECORD: ConfigRecord({"client": client})}
            await self._push(client, "", MessageType.QUERY, records, _HELLO_WITHIN)

    async def acknowledge(self, sequence: int) -> None:
        await asyncio.to_thread(self._spool.delete_upto, sequence)

    async def answer(self, command: ControlCommand, data: bytes) -> None:
        """Control commands cannot be sent over Flower."""

    async def close(self) -> None:
        for task in [self._watching, *self._pulls.values()]:
            if task is not None:
                task.cancel()


def _why(message: Any) -> str:
    return f"Flower's error {message.error.code}: {(message.error.reason or '')[-300:]}"


def server_app(serve: Callable[[Grid, Context], Coroutine[Any, Any, None]]) -> ServerApp:
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        asyncio.run(serve(grid, context))

    app.main()(main)
    return app
