"""Control commands: ``fedast ctl`` and ``fedast federation status``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

from fedast.core.protocol import ClientId, StopReason
from fedast.federation import wire
from fedast.federation.log_events import Paused, Resumed, TasksEnded, TaskStarted
from fedast.federation.metrics import ServerMetrics
from fedast.federation.recorder import Recorder
from fedast.federation.state import ServerState


@final
class ControlCommands:
    def __init__(
        self,
        *,
        state: ServerState,
        metrics: ServerMetrics,
        recorder: Recorder,
        stop: Callable[[], None],
        pardon: Callable[[ClientId], Awaitable[None]] | None = None,
    ) -> None:
        """``stop`` ends the server; ``pardon`` lifts a client's quarantine."""
        self._pardon = pardon
        self._state = state
        self._metrics = metrics
        self._recorder = recorder
        self._stop = stop

    async def handle(self, data: bytes) -> bytes:
        """Execute an encoded command; the encoded answer, which says ``refused: why`` if it was
        not executed."""
        try:
            answer = await self._execute(wire.decode(data, wire.Control))
        except wire.WireError as error:
            answer = f"refused: {error}"
        return wire.encode(wire.Control("answer", answer=answer))

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
