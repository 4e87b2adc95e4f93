"""Fetching messages of a pull consumer, whatever headers they have.

A client chooses the headers of what it uploads. nats-py takes a message with a header ``Status``
for one of NATS's own and fails on it, again after every restart. What NATS itself says here has no
reply subject; a stored message has always one, which a client cannot choose.
"""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any, final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fedast.federation.nats.connection import Connection

_NANOSECONDS = 1_000_000_000
_ANSWER = 2.0
"""Seconds in which NATS must answer."""
_ACK = "$JS.ACK."


@final
class Pull:
    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = connection.new_inbox()
        self._numbers = count()
        self._subscription: Subscription | None = None

    async def fetch(self, batch: int, timeout: float) -> list[Msg]:
        """Up to ``batch`` messages; ``TimeoutError`` if there are none for ``timeout`` seconds."""
        found = await self._ask({"batch": batch, "no_wait": True}, batch, _ANSWER)
        if not found:
            waiting = {"batch": 1, "expires": int(timeout * _NANOSECONDS)}
            found = await self._ask(waiting, 1, timeout + _ANSWER)
        if not found:
            raise TimeoutError
        return found

    async def _ask(self, request: dict[str, Any], batch: int, timeout: float) -> list[Msg]:
        if self._subscription is None:
            self._subscription = await self._connection.subscribe(f"{self._inbox}.*")
        reply = f"{self._inbox}.{next(self._numbers)}"
        await self._connection.publish(self._subject, json.dumps(request).encode(), reply=reply)
        clock = asyncio.get_running_loop().time
        end = clock() + timeout
        found: list[Msg] = []
        while len(found) < batch:
            try:
                message = await self._subscription.next_msg(max(0.001, end - clock()))
            except TimeoutError:
                break
            if message.reply.startswith(_ACK):
                found.append(message)  # perhaps of an earlier request: the order is the same
            elif message.subject == reply:
                break  # NATS says that there is nothing more
        return found

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()
