"""The transport over Flower's Grid: a ServerApp's side, and a ClientApp that answers one request.

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
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, final

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedast.core.protocol import ClientId
from fedast.federation import wire
from fedast.federation.agent import Agent, Training
from fedast.federation.transport import (
    ControlCommand,
    Delivery,
    Gone,
    Greeted,
    Incoming,
    TransportError,
    Uploaded,
)

log = logging.getLogger("fedast.flower")

NodeId: TypeAlias = int
_RECORD, _MODEL = "fedast", "fedast.model"
_UNREACHED = {3, 4, 5}
"""Flower's codes for a message or a reply that ran out of time, and for a node that is gone."""
_GREET_EVERY = 3.0
_ASK_AGAIN = 30.0
"""Seconds after which a node that could not say hello is asked again."""
_HELLO_WITHIN = 300.0
_LONGEST_HELLO = 65536
_PULLS_PER_SECOND = 40.0
"""With many nodes each is looked at less often, so that the SuperLink has time for them."""
T = TypeVar("T")


# --- what is kept -------------------------------------------------------------------------------


def _write(path: Path, data: bytes) -> None:
    """Durable, and whole or not at all."""
    draft = path.with_name(f"{path.name}.part")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@final
class Spool:
    """What Flower does not keep: models, unacknowledged replies, and the nodes' numbers."""

    def __init__(self, folder: Path) -> None:
        self._models, self._uploads = folder / "models", folder / "uploads"
        self._nodes = folder / "nodes.json"
        for path in (self._models, self._uploads):
            path.mkdir(parents=True, exist_ok=True)
        table = json.loads(self._nodes.read_text()) if self._nodes.exists() else {}
        self.numbers: dict[NodeId, ClientId] = {int(k): v for k, v in table.items()}

    def node(self, client: ClientId) -> NodeId | None:
        return next((node for node, number in self.numbers.items() if number == client), None)

    def number(self, node: NodeId) -> ClientId:
        """The client that this node is: the next free number when it is first seen."""
        if node not in self.numbers:
            self.numbers[node] = len(self.numbers)
            _write(self._nodes, json.dumps(self.numbers).encode())
        return self.numbers[node]

    def keep_model(self, name: str, data: bytes) -> None:
        _write(self._models / name, data)

    def drop_model(self, name: str) -> None:
        (self._models / name).unlink(missing_ok=True)

    def model(self, name: str) -> bytes | None:
        path = self._models / name
        return path.read_bytes() if path.exists() else None

    def keep(self, upload: Uploaded) -> None:
        head = asdict(replace(upload, data=b""))
        del head["sequence"], head["data"]
        text = json.dumps(head).encode() + b"\n" + upload.data
        _write(self._uploads / f"{upload.sequence:015d}", text)

    def kept(self) -> list[Uploaded]:
        found = []
        for path in sorted(self._uploads.iterdir()):
            if path.name.isdecimal():
                line, _, data = path.read_bytes().partition(b"\n")
                found.append(Uploaded(int(path.name), data=data, **json.loads(line)))
        return found

    def delete_upto(self, sequence: int) -> None:
        for path in self._uploads.iterdir():
            if path.name.isdecimal() and int(path.name) <= sequence:
                path.unlink()


# --- the ServerApp's side -----------------------------------------------------------------------


@final
class FlowerServer:
    def __init__(
        self, grid: Grid, folder: Path, *, ttl: float, poll: float = 0.3, patience: float = 120.0
    ) -> None:
        """``ttl``: seconds after which Flower gives a request up. ``poll``: between two looks.
        ``patience``: seconds in which a reply that is there must have been transferred."""
        self._grid = grid
        self._spool = Spool(folder)
        self._ttl = ttl
        self._every = poll
        self._patience = patience
        self._out: dict[ClientId, dict[str, str]] = {}
        """What each client has to answer, in this order: Flower's ids, and names of requests (or
        nothing, for our own question)."""
        self._pulls: dict[ClientId, asyncio.Task[None]] = {}
        self._hellos: dict[ClientId, bytes] = {}
        self._asked: dict[ClientId, float] = {}
        """When nodes that have not said hello were asked to."""
        self._since: dict[ClientId, str] = {}
        """When a node was last started, by Flower's words."""
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
        records = {_RECORD: ConfigRecord({"client": client, "name": name, "request": data})}
        found = await asyncio.to_thread(self._spool.model, model)
        if found is not None:
            records[_MODEL] = ConfigRecord({"data": found})
        if not await self._push(client, name, MessageType.TRAIN, records, self._ttl):
            self._forget(client)  # who is gone loses its requests

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
                raise TransportError("Flower takes no message as large as this model")
            return False
        self._out.setdefault(client, {})[str(found[0])] = name
        return True

    async def _patiently(self, do: Callable[[], T]) -> T:
        """Whatever is wrong with the SuperLink or the disk, it may pass."""
        wait = 0.5
        while True:
            try:
                return await _beside(do)
            except Exception as error:  # of httpx, of Flower, of the disk
                log.warning("%s: %s; trying again", type(error).__name__, str(error)[:200])
            await asyncio.sleep(wait)
            wait = min(5.0, wait * 2)

    async def withdraw(self, client: ClientId, name: str) -> None:
        """Flower cannot take it back; its reply will come, late."""

    async def hand_out_again(self, client: ClientId) -> None:
        """Flower holds nothing back for a client that is there."""

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
        """Look again and again: what there is to pull, and who is there."""
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
        """A client's replies, if there are any. They come from a stranger: whatever is wrong with
        them is its own fault, and takes nobody else's time."""
        try:
            async with asyncio.timeout(self._patience):
                found = await _beside(lambda: list(self._grid.pull_messages(ids)))
        except TimeoutError:
            self._resolve(client, ids[0], failed="its reply does not come", blame=True)
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
            mine = mine if mine in ids else ids[0]  # no client answers for another
            if message.has_error():
                unreached = message.error.code in _UNREACHED
                self._resolve(client, mine, failed=_why(message), blame=not unreached)
                continue
            try:
                data = message.content[_RECORD]["data"]
            except (KeyError, TypeError, ValueError):
                data = None
            if isinstance(data, bytes):
                self._resolve(client, mine, data)
            else:
                self._resolve(client, mine, failed="its reply is not one of fedast", blame=True)

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
            # Under the name that the request had: nobody answers for another.
            self._keep(client, name, data, failed, blame)
        elif failed is None and self._is_hello(data):
            self._hellos[client] = data
            self._greetings.append(Greeted(client, data))
        else:
            log.warning("client %d cannot say hello: %s", client, failed or "it is no hello")
        self._news.set()

    @staticmethod
    def _is_hello(data: bytes) -> bool:
        try:
            wire.decode(data[:_LONGEST_HELLO], wire.Hello)
        except wire.WireError as error:
            log.warning("a hello that is none: %s", error)
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
        except OSError as error:  # if we die before it is committed, it is asked for again
            log.error("an upload cannot be kept on disk: %s", error)
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
                # It was started again: what it had is gone, and what it can do may be another.
                self._since[client] = since
                for message_id in list(self._out.get(client, {})):
                    self._resolve(client, message_id, failed="its node was started again")
                self._asked.pop(client, None)
                self._hellos.pop(client, None)
            await self._greet(client, now)

    def _forget(self, client: ClientId) -> None:
        """It is gone; when it comes back, it is asked again what it can do."""
        self._since.pop(client, None)
        self._hellos.pop(client, None)
        self._asked.pop(client, None)
        self._greetings.append(Gone(client))
        self._news.set()

    async def _greet(self, client: ClientId, now: float) -> None:
        """A node is there: ask what it can do, once, and from then on answer for it."""
        if client in self._hellos:
            self._greetings.append(Greeted(client, self._hellos[client]))
            self._news.set()
            return
        waiting = "" in self._out.get(client, {}).values()
        if now - self._asked.get(client, -1e9) > _ASK_AGAIN and not waiting:
            self._asked[client] = now
            records = {_RECORD: ConfigRecord({"client": client})}
            await self._push(client, "", MessageType.QUERY, records, _HELLO_WITHIN)

    async def acknowledge(self, sequence: int) -> None:
        await asyncio.to_thread(self._spool.delete_upto, sequence)

    async def answer(self, command: ControlCommand, data: bytes) -> None:
        """Control commands cannot be sent over Flower."""

    async def close(self) -> None:
        for task in [self._watching, *self._pulls.values()]:
            if task is not None:
                task.cancel()


async def _beside(do: Callable[[], T]) -> T:
    """In a thread of its own, which nobody waits for at the end: Flower may hold it for hours."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_unless_done(set_it: Callable[[], None]) -> None:
        if not future.done():
            set_it()

    def work() -> None:
        try:
            found = do()
        except BaseException as error:  # Flower ends runs with one of these
            reason = error
            outcome = lambda: future.set_exception(reason)  # noqa: E731
        else:
            outcome = lambda: future.set_result(found)  # noqa: E731
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(set_unless_done, outcome)

    threading.Thread(target=work, daemon=True).start()
    return await future


def _why(message: Any) -> str:
    return f"Flower's error {message.error.code}: {(message.error.reason or '')[-300:]}"


def server_app(serve: Callable[[Grid, Context], Coroutine[Any, Any, None]]) -> ServerApp:
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        asyncio.run(serve(grid, context))

    app.main()(main)
    return app


# --- the ClientApp's side -----------------------------------------------------------------------


@final
class _InHand:
    def __init__(self, data: bytes) -> None:
        self.data = data

    async def working(self) -> None:
        pass

    async def done(self) -> None:
        pass

    async def give_back(self) -> None:
        pass


@final
class OneRequest:
    """The transport of a ClientApp, which lives for one message: what to do, and the answer."""

    def __init__(self, message: Message) -> None:
        self.name: str = message.content[_RECORD]["name"]
        self._request: bytes = message.content[_RECORD]["request"]
        record = message.content.get(_MODEL)
        self._model: bytes | None = None if record is None else record["data"]
        self.answer: bytes | None = None

    @property
    def patience(self) -> float:
        return 3600.0

    async def next(self, timeout: float) -> Delivery | None:
        return _InHand(self._request)

    async def fetch(self, name: str) -> bytes | None:
        return self._model

    async def upload(self, name: str, data: bytes) -> None:
        if self.answer is None:
            self.answer = data

    async def hello(self, data: bytes) -> None:
        pass

    async def close(self) -> None:
        pass


def reply(message: Message, data: bytes) -> Message:
    return Message(RecordDict({_RECORD: ConfigRecord({"data": data})}), reply_to=message)


def client_app(training: Callable[[Context], Training]) -> ClientApp:
    """``training`` is asked anew for every message: Flower starts a process for each."""
    app = ClientApp()
    software = f"fedast {version('fedast')}, flwr {version('flwr')}"

    def hello(message: Message, context: Context) -> Message:
        number = int(message.content[_RECORD]["client"])
        tasks = tuple(training(context).tasks)
        return reply(message, wire.encode(wire.Hello(number, software, tasks)))

    def work(message: Message, context: Context) -> Message:
        transport = OneRequest(message)
        number = int(message.content[_RECORD]["client"])
        agent = Agent(number, transport, training(context), software=software)

        async def go() -> None:
            delivery = await transport.next(0.0)
            assert delivery is not None
            await agent.serve(delivery)

        asyncio.run(go())
        return reply(message, transport.answer or b"")

    app.query()(hello)
    app.train()(work)
    return app
