"""Control commands: ``fedast ctl`` and ``fedast federation status``.

Two keys exist for them: one may command, the other may only ask for the status. NATS enforces that
with permissions on two subjects, and this module once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import final

from fedast.core.protocol import ClientId, StopReason
from fedast.federation import wire
from fedast.federation.audit import AuditTrail
from fedast.federation.log_events import Paused, Resumed, TasksEnded, TaskStarted
from fedast.federation.metrics import ServerMetrics
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerState
from fedast.federation.transport import CONTROL_KEY

log = logging.getLogger("fedast.server")
_STATUS = "status"


@final
class ControlCommands:
    def __init__(
        self,
        *,
        state: ServerState,
        metrics: ServerMetrics,
        recorder: Recorder,
        stop: Callable[[], None],
        audit: AuditTrail | None = None,
        pardon: Callable[[ClientId], Awaitable[None]] | None = None,
    ) -> None:
        """``stop`` ends the server; ``audit`` records what was commanded; ``pardon`` lifts a
        client's quarantine."""
        self._pardon = pardon
        self._state = state
        self._metrics = metrics
        self._recorder = recorder
        self._stop = stop
        self._audit = audit

    async def handle(self, data: bytes, key: str = CONTROL_KEY) -> bytes:
        """Execute an encoded command given with this key; the encoded answer, which says
        ``refused: why`` if it was not executed."""
        try:
            command = wire.decode(data, wire.Control)
        except wire.WireError as error:
            command, answer = wire.Control("?"), f"refused: {error}"
        else:
            if key == CONTROL_KEY or command.verb == _STATUS:
                answer = await self._execute(command)
            else:
                answer = (
                    f"refused: the key {key!r} may only ask for the status; commands need "
                    f"the key {CONTROL_KEY!r}"
                )
        if command.verb != _STATUS:
            answer = await self._recorded(key, command, answer)
        return wire.encode(wire.Control("answer", answer=answer))

    async def _recorded(self, key: str, command: wire.Control, answer: str) -> str:
        """The answer, once it is in the audit trail."""
        log.info("command %r %r with the key %r: %s", command.verb, command.argument, key, answer)
        if self._audit is None:
            return answer
        try:
            await asyncio.to_thread(self._audit.write, key, command.verb, command.argument, answer)
        except OSError as error:
            log.error("%s: a command cannot be recorded: %s", self._audit.path, error)
            return f"{answer} (but it is not in the audit trail: {error})"
        return answer

    async def _execute(self, command: wire.Control) -> str:
        state, task = self._state, command.argument
        match command.verb:
            case "status":
                return self._metrics.status(
                    state.driver, state.pool, state.membership, self._recorder.now
                )
            case "pause":
                await self._recorder.record(Paused())
                return "paused: no new requests go out"
            case "resume":
                await self._recorder.record(Resumed())
                return "resumed"
            case "stop" | "add" if not state.training:
                return "refused: training has not begun yet"
            case "stop" if task in state.driver.unfinished:
                await self._recorder.record(TasksEnded((task,), StopReason.REMOVED))
                return f"task {task} is stopped"
            case "stop":
                return f"refused: no task {task!r} is being trained"
            case "add" if task in state.later:
                await self._recorder.record(TaskStarted(task))
                return f"task {task} is added"
            case "add":
                available = ", ".join(state.later) or "none"
                return f"refused: no task {task!r} can be added; available: {available}"
            case "pardon":
                number = command.argument.removeprefix("client-")
                client = int(number) if number.isascii() and number.isdecimal() else -1
                if self._pardon is None or client not in state.membership.quarantined:
                    return f"refused: no client {command.argument!r} is quarantined"
                await self._pardon(client)
                return f"client {client} is pardoned; it joins again with its next heartbeat"
            case "halt":
                self._stop()
                return "the server commits and ends; start it again to continue"
            case _:
                return f"refused: unknown command {command.verb!r}"
