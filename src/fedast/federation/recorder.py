"""The seam through which the parts of the server record what happened."""

from __future__ import annotations

from typing import Protocol

from fedast.federation.log_events import LogEvent
from fedast.training.trainer import Update


class Recorder(Protocol):
    @property
    def now(self) -> float:
        """Seconds since the federation began, not counting the time that the server was down."""
        ...

    async def record(self, event: LogEvent, update: Update | None = None) -> None:
        """Log an event, apply it, and carry out what follows from it."""
        ...

    def note(self, event: LogEvent) -> None:
        """Log and apply an event from which nothing follows."""
        ...
