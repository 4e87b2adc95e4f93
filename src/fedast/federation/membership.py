"""Which clients are trusted: strikes, failures and quarantine.

A client is quarantined for good after ``strikes`` invalid updates (or unanswered requests), or
after ten failed trainings in a row. Who is here now is the pool's business (``driver.LivePool``).
"""

from __future__ import annotations

from collections import Counter
from typing import final

from fedast.core.protocol import ClientId

_FAILURES_IN_A_ROW = 10


@final
class Membership:
    def __init__(self, strikes: int) -> None:
        self._allowed = strikes
        self.quarantined: set[ClientId] = set()
        self.strikes: Counter[ClientId] = Counter()
        self.failures: Counter[ClientId] = Counter()
        """Trainings that failed, since the client's last update."""

    def strike(self, client: ClientId) -> None:
        self.strikes[client] += 1

    def failed(self, client: ClientId) -> None:
        self.failures[client] += 1

    def succeeded(self, client: ClientId) -> None:
        del self.failures[client]

    def quarantine(self, client: ClientId) -> None:
        self.quarantined.add(client)

    def to_quarantine(self, client: ClientId) -> bool:
        """Whether it has used up its chances and is not quarantined yet."""
        return client not in self.quarantined and (
            self.strikes[client] >= self._allowed or self.failures[client] >= _FAILURES_IN_A_ROW
        )
