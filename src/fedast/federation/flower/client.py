"""The ClientApp's side of the transport over Flower's Grid: one message, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import final

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedast.federation import wire
from fedast.federation.agent import Agent, Training
from fedast.federation.transport import Delivery

RECORD, MODEL = "fedast", "fedast.model"
"""Names of the records in a message."""


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
    """The transport of a ClientApp, which lives for one message and its answer."""

    def __init__(self, message: Message) -> None:
        self.name: str = message.content[RECORD]["name"]
        self._request: bytes = message.content[RECORD]["request"]
        record = message.content.get(MODEL)
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
    return Message(RecordDict({RECORD: ConfigRecord({"data": data})}), reply_to=message)


def client_app(training: Callable[[Context], Training]) -> ClientApp:
    """``training`` is called for every message: Flower starts a process for each."""
    app = ClientApp()
    software = f"fedast {version('fedast')}, flwr {version('flwr')}"

    def hello(message: Message, context: Context) -> Message:
        number = int(message.content[RECORD]["client"])
        tasks = tuple(training(context).tasks)
        return reply(message, wire.encode(wire.Hello(number, software, tasks)))

    def work(message: Message, context: Context) -> Message:
        transport = OneRequest(message)
        number = int(message.content[RECORD]["client"])
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
