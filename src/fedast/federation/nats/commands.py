"""Control commands and questions, as they come over NATS.

They do not wait behind uploads. Questions have a subject of their own, on which a key that may do
nothing else may ask; whoever has it must not be able to keep the server from its work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import final

from nats.aio.client import Client
from nats.aio.msg import Msg

from fedast.federation.nats.names import CONTROL_SUBJECT, STATUS_SUBJECT
from fedast.federation.transport import OBSERVER_KEY, ControlCommand

_MOST_COMMANDS, _MOST_QUESTIONS = 64, 16
_BETWEEN_QUESTIONS = 0.05
"""Seconds."""


@final
class Commands:
    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake`` is called when there is something."""
        self._wake = wake
        self._commands: deque[ControlCommand] = deque()
        self._questions: deque[ControlCommand] = deque()
        self._next_question = 0.0

    async def subscribe(self, connection: Client) -> None:
        await connection.subscribe(CONTROL_SUBJECT, cb=self._commanded)
        await connection.subscribe(STATUS_SUBJECT, cb=self._asked)

    async def _commanded(self, message: Msg) -> None:
        if len(self._commands) < _MOST_COMMANDS:
            self._commands.append(ControlCommand(message.data, message.reply))
            self._wake()

    async def _asked(self, message: Msg) -> None:
        if len(self._questions) < _MOST_QUESTIONS:
            self._questions.append(ControlCommand(message.data, message.reply, OBSERVER_KEY))
            self._wake()

    def next(self) -> ControlCommand | None:
        """The next command; without one, the next question, but not too many of them."""
        if self._commands:
            return self._commands.popleft()
        now = asyncio.get_running_loop().time()
        if not self._questions or now < self._next_question:
            return None
        self._next_question = now + _BETWEEN_QUESTIONS
        return self._questions.popleft()
