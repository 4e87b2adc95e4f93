"""Fetching messages of a pull consumer: many at a time, whatever headers they have, or one at a
time, for as long as it takes.

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
from nats.js.errors import APIError

from fedast.federation.nats.connection import Connection

_NANOSECONDS = 1_000_000_000
_ANSWER = 2.0
"""Seconds in which NATS must answer."""
_ACK = "$JS.ACK."
_NOTHING_CAME = ("404", "408")


def _subject(stream: str, consumer: str) -> str:
    return f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"


@final
class Pull:
    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        self._connection = connection
        self._subject = _subject(stream, consumer)
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


@final
class LongPull:
    """The messages of a queue, one at a time. NATS is asked once, and answers when there is one:
    with thousands of clients that mostly wait, asking often would be most of what NATS has to do.
    What is asked outlives a call of ``next``.

    NATS says if the queue is gone, or was gone when we asked. It says nothing if it forgets what we
    asked, but then it was started again, or was another node of a cluster. So we ask again after
    connecting again, and after ``lasts`` seconds in any case."""

    def __init__(self, connection: Connection, stream: str, consumer: str, lasts: float) -> None:
        self._connection = connection
        self._subject = _subject(stream, consumer)
        self._inbox = connection.new_inbox()
        self._lasts = lasts
        self._numbers = count()
        self._subscription: Subscription | None = None
        self._reply = ""
        self._until = 0.0
        """When what we asked is over, if no answer has come."""
        self._connected = 0
        """How often we had connected again when we asked."""

    async def next(self, timeout: float) -> Msg | None:
        """Raises what NATS says if there is no such queue."""
        if self._subscription is None:  # (it stays: NATS allows few, and nats-py renews it)
            self._subscription = await self._connection.subscribe(f"{self._inbox}.*")
        if not self._subscription.pending_msgs:
            await self._ask()
        try:
            message = await self._subscription.next_msg(timeout)
        except TimeoutError:
            return None
        if message.reply.startswith(_ACK):
            self._until = 0.0
            return message
        if message.subject == self._reply:  # else it is about something that we do not wait for
            self._until = 0.0
            if (message.headers or {}).get("Status") not in _NOTHING_CAME:
                raise APIError.from_msg(message)
        return None

    async def _ask(self) -> None:
        now, connected = asyncio.get_running_loop().time(), self._connection.stats["reconnects"]
        if now < self._until and connected == self._connected:
            return
        self._reply = f"{self._inbox}.{next(self._numbers)}"
        request = {"batch": 1, "expires": int(self._lasts * _NANOSECONDS)}
        await self._connection.publish(
            self._subject, json.dumps(request).encode(), reply=self._reply
        )
        self._until, self._connected = now + self._lasts + _ANSWER, connected
