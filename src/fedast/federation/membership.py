"""Which clients are trusted: strikes, failures and quarantine.

A client is quarantined after ``strikes`` strikes (an invalid update, a flood of useless uploads,
never answering), or after ten failed trainings in a row. Every ``forgive_after`` good updates one
strike is forgiven, and an operator can pardon a client. All of this follows from the write-ahead
log alone. The pool knows who is connected now (``driver.LivePool``).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import final

from fedast.core.protocol import ClientId

_FAILURES_IN_A_ROW = 10
_REASONS_KEPT = 5


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a client has a strike or a failure, and when."""

    time: float
    why: str


@final
class Membership:
    def __init__(self, strikes: int, forgive_after: int = 20) -> None:
        self._allowed = strikes
        self._forgive_after = forgive_after
        self.quarantined: set[ClientId] = set()
        self.strikes: Counter[ClientId] = Counter()
        self.failures: Counter[ClientId] = Counter()
        """Trainings that failed, since the client's last update."""
        self._good: Counter[ClientId] = Counter()
        """Updates since the last strike was given or forgiven, of clients that have strikes."""
        self._reasons: dict[ClientId, deque[Reason]] = {}

    def strike(self, client: ClientId, now: float = 0.0, why: str | None = None) -> None:
        self.strikes[client] += 1
        del self._good[client]
        self._note(client, now, why)

    def failed(self, client: ClientId, now: float = 0.0, why: str | None = None) -> None:
        self.failures[client] += 1
        self._note(client, now, why)

    def succeeded(self, client: ClientId) -> None:
        del self.failures[client]
        if client not in self.strikes:
            return
        self._good[client] += 1
        if self._good[client] >= self._forgive_after:
            del self._good[client]
            self.strikes[client] -= 1
            if self.strikes[client] <= 0:
                del self.strikes[client]

    def quarantine(self, client: ClientId) -> None:
        self.quarantined.add(client)

    def pardon(self, client: ClientId) -> None:
        """Everything is forgotten."""
        self.quarantined.discard(client)
        for counts in (self.strikes, self.failures, self._good):
            del counts[client]
        self._reasons.pop(client, None)

    def to_quarantine(self, client: ClientId) -> bool:
        """Whether it has used up its chances and is not quarantined yet."""
        return client not in self.quarantined and (
            self.strikes[client] >= self._allowed or self.failures[client] >= _FAILURES_IN_A_ROW
        )

    def reasons(self, client: ClientId) -> list[Reason]:
        """The latest few, oldest first."""
        return list(self._reasons.get(client, ()))

    def _note(self, client: ClientId, now: float, why: str | None) -> None:
        if why is not None:
            kept = self._reasons.setdefault(client, deque(maxlen=_REASONS_KEPT))
            kept.append(Reason(now, why))
