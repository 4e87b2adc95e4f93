"""Publishing and sending again, when the server has come back or the transport has lost something.

No client is blamed for what is missing then, and every client gets its full time again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import final

from fedast.federation.driver import Send
from fedast.federation.evaluator import Evaluator
from fedast.federation.leases import Leases
from fedast.federation.publishing import Publisher
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerState
from fedast.federation.transport import StorageLost

log = logging.getLogger("fedast.server")
_READ_FIRST = 5.0
"""Seconds for which open requests are not sent again while there are uploads to read."""


@final
class Resending:
    def __init__(
        self,
        *,
        state: ServerState,
        publisher: Publisher,
        evaluator: Evaluator,
        leases: Leases,
        recorder: Recorder,
        send: Callable[[Send], Awaitable[None]],
    ) -> None:
        self._state = state
        self._publisher = publisher
        self._evaluator = evaluator
        self._leases = leases
        self._recorder = recorder
        self._send = send
        self.pending = False
        """Open requests have to be sent again."""
        self._by = 0.0

    def soon(self) -> None:
        self.pending, self._by = True, self._recorder.now + _READ_FIRST

    async def publish(self) -> None:
        """At the start: models that the last commit decided on and nobody published, before they
        are replaced."""
        if self.pending and self._state.sequence == 0:
            # Without a single upload, a transport cannot tell a loss from the beginning.
            await self._publisher.publish_again()
        for send in list(self._state.driver.open.values()):
            await self._publisher.publish(send.task, send.version)
        for task, version in list(self._state.driver.asked):
            await self._publisher.publish(task, version)

    async def storage_lost(self, loss: StorageLost) -> None:
        state = self._state
        if loss.epoch is not None:
            self._publisher.epoch = loss.epoch
        self._leases.restart(state.pool.here, self._recorder.now)
        missing = await self._publisher.publish_again()
        if state.models:
            log.warning(
                "%s: %d models were published again, %d open requests will be sent again",
                loss.why, len(state.models) - len(missing), len(state.driver.open),
            )  # fmt: skip
        for task, version in missing:
            # If the transport has lost it too, the clients say so, and get other requests.
            log.warning("there is no copy of %s, version %d, to publish again", task, version)
        self.soon()

    async def go_on(self, *, idle: bool) -> None:
        """Send what is still open, once the uploads that answer some of it have been read (if they
        never end: after a while)."""
        if not self.pending or not (idle or self._recorder.now >= self._by):
            return
        self.pending = False
        for send in list(self._state.driver.open.values()):
            await self._send(send)
        for task, version in list(self._state.driver.asked):
            await self._evaluator.ask(task, version)
