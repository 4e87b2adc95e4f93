"""One server at a time: NATS records who serves, in a stream with one message.

A server writes its record when it starts, when it acknowledges uploads, and every second or so;
each time only if the record is still the one that it wrote last (NATS compares the sequence
number). If it is not, another server has taken over, and this one is ``Fenced``: it stops before it
deletes anything. A new server takes over at once if the old one was stopped, or was at the same
place (the lock on the folder shows that it is dead); otherwise it first checks whether the old one
is still writing.

The record also says up to which number uploads were acknowledged. A server whose log ends before
that went back: it needs a new epoch (see ``transport``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import final

from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from fedast.federation.nats.names import SERVER_SUBJECT, SERVING
from fedast.federation.transport import Fenced

log = logging.getLogger("fedast.nats")
_OTHERS_WRITE = {10071, 10164}  # JetStream's codes for "wrong last sequence"
_NO_MESSAGE = 10037
_WATCH = 8.0
"""Seconds for which a new server waits for a sign of life of the old one."""


@dataclass(frozen=True)
class Record:
    term: int = 0
    """How many servers there have been."""
    session: str = ""
    """A process that serves; empty if it ended cleanly."""
    where: str = ""
    since: str = ""
    acknowledged: int = 0
    epoch: str = ""


@final
class Fence:
    def __init__(self, js: JetStreamContext, where: str) -> None:
        """``where``: machine and folder of this server."""
        self._js = js
        self._where = where
        self._mine = Record(session=secrets.token_hex(8), where=where)
        self._sequence = 0
        """Of the record in the stream."""
        self._lock = asyncio.Lock()

    @property
    def term(self) -> int:
        """1 for the first server."""
        return self._mine.term

    @property
    def epoch(self) -> str:
        return self._mine.epoch

    async def take(self, after: int) -> bool:
        """Become the server, with a log that ends at upload ``after``; whether that is the
        beginning of a new epoch. ``Fenced`` if another one is serving."""
        found, sequence = await self._found()
        if found.session and found.where != self._where:
            log.warning("%s served this federation; is it still there?", found.where)
            end = asyncio.get_running_loop().time() + _WATCH
            while asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.5)
                again, now = await self._found()
                if again.session and now != sequence:
                    raise Fenced(
                        f"another server is serving this federation, since {again.since}: "
                        f"{again.where}; stop it first, or leave this one stopped"
                    )
                if not again.session:
                    break
            else:
                log.warning("%s gave no sign of life in %g s; taking over", found.where, _WATCH)
            found, sequence = await self._found()
        back = after < found.acknowledged
        self._mine = replace(
            self._mine,
            term=found.term + 1,
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            acknowledged=after,
            epoch=_new_epoch() if back else found.epoch,
        )
        self._sequence = sequence
        await self._write(self._mine)
        return back

    async def begin_epoch(self) -> str:
        """What was uploaded before may have to be uploaded again, under other names."""
        async with self._lock:
            await self._write(replace(self._mine, epoch=_new_epoch()))
        return self._mine.epoch

    async def renew(self, acknowledged: int = 0) -> None:
        """We still serve, and uploads up to this number are acknowledged. ``Fenced`` if we do not
        serve any more; on any other error it is unknown."""
        async with self._lock:
            upto = max(acknowledged, self._mine.acknowledged)
            await self._write(replace(self._mine, acknowledged=upto))

    async def release(self) -> None:
        """Another server may start at once."""
        async with self._lock:
            await self._write(replace(self._mine, session=""))

    async def _write(self, record: Record) -> None:
        data = json.dumps(asdict(record)).encode()
        try:
            self._sequence = await self._publish(data)
        except APIError as error:
            if error.err_code not in _OTHERS_WRITE:
                raise
            # An attempt of ours whose answer was lost, or NATS has come back with an older record.
            found, self._sequence = await self._found()
            if found.session != self._mine.session and found.term >= record.term:
                raise Fenced(
                    f"another server has taken over this federation at {found.since}: "
                    f"{found.where}; this one must not go on"
                ) from error
            self._sequence = await self._publish(data)
        self._mine = record

    async def _publish(self, data: bytes) -> int:
        expected = {"Nats-Expected-Last-Subject-Sequence": str(self._sequence)}
        return (await self._js.publish(SERVER_SUBJECT, data, headers=expected)).seq

    async def _found(self) -> tuple[Record, int]:
        """The record in NATS and its sequence number; an empty one if there is none."""
        try:
            message = await self._js.get_last_msg(SERVING, SERVER_SUBJECT)
        except NotFoundError as error:
            if error.err_code != _NO_MESSAGE:  # there is no stream
                raise
            return Record(), 0
        return Record(**json.loads(message.data or b"{}")), message.seq or 0


def _new_epoch() -> str:
    return f"x{secrets.token_hex(4)}"
