"""Heartbeats: who joins, who leaves, and who is not admitted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import final

from fedast.core.protocol import ClientId, TaskName
from fedast.federation import wire
from fedast.federation.conduct import Conduct
from fedast.federation.evaluator import Evaluator
from fedast.federation.leases import Leases
from fedast.federation.log_events import ClientJoined, ClientLeft
from fedast.federation.notices import Notices, other_format
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerState
from fedast.federation.transport import Greeted, ServerTransport
from fedast.federation.untrusted import printable

log = logging.getLogger("fedast.server")


@final
class Greetings:
    def __init__(
        self,
        *,
        state: ServerState,
        leases: Leases,
        conduct: Conduct,
        evaluator: Evaluator,
        notices: Notices,
        transport: ServerTransport,
        recorder: Recorder,
        tasks: Sequence[TaskName],
    ) -> None:
        """``tasks``: those that a client must know."""
        self._state = state
        self._leases = leases
        self._conduct = conduct
        self._evaluator = evaluator
        self._notices = notices
        self._transport = transport
        self._recorder = recorder
        self._tasks = tasks

    async def heard(self, greeting: Greeted) -> None:
        """A heartbeat; the first one makes a client join."""
        client, state = greeting.client, self._state
        if client in state.pool and not self._conduct.hears_hello(client):
            self._leases.seen(client, self._recorder.now)
            return
        try:
            hello = wire.decode(greeting.data, wire.Hello)
            if hello.client != client:
                raise wire.WireError(f"it says that it is client {hello.client}")
        except wire.WireError as error:
            await self._notices.refuse(client, other_format(greeting.data) or str(error))
            return
        if client in state.membership.quarantined:
            await self._notices.refuse(client, "it is quarantined; the server's log says why")
            return
        self._leases.seen(client, self._recorder.now)
        self._evaluator.greeted(hello)
        if hello.bye:
            await self.left(client, "it said goodbye")
        elif client not in state.pool:
            missing = [name for name in self._tasks if name not in hello.tasks]
            if missing:
                lacks = (
                    f"it lacks the tasks {', '.join(missing)}; give it the server's configuration"
                )
                await self._notices.refuse(client, lacks)
                return
            await self._notices.admitted(client)
            log.info("client %d joined (%s)", client, printable(hello.software))
            await self._recorder.record(ClientJoined(client))
        elif hello.idle and self._leases.to_redeliver(
            client, state.requests_of(client), self._recorder.now
        ):
            log.warning("client %d is idle but has requests; delivering them again", client)
            await self._transport.redeliver(client)

    async def left(self, client: ClientId, why: str) -> None:
        if client in self._state.pool:
            log.info("client %d left: %s", client, why)
            await self._recorder.record(ClientLeft(client))
