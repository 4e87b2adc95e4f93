"""Useless messages from clients: counted, reported now and then, and limited.

A client can send useless messages much faster than they can be logged. So none of them is logged or
recorded by itself: every half minute one line per client says how many there were. Each client has
an *allowance* of them, large enough for what honest clients send after a crash of the server; a
client that exceeds it is flooding.
"""

from __future__ import annotations

from collections import Counter
from typing import final

from fedast.core.protocol import ClientId

_SAY_EVERY = 30.0
_MOST_LINES = 20
"""Clients that are named in one report."""


@final
class Allowance:
    """For each client ``burst`` messages at once, and ``per_second`` in the long run."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left: dict[ClientId, tuple[float, float]] = {}
        """How many each has left, as of when."""

    def take(self, client: ClientId, now: float) -> bool:
        """Whether one more is within the allowance."""
        left, when = self._left.get(client, (self._burst, now))
        left = min(self._burst, left + self._per_second * max(0.0, now - when))
        within = left >= 1.0
        self._left[client] = (left - 1.0 if within else left), now
        return within

    def renew(self, client: ClientId) -> None:
        self._left.pop(client, None)


@final
class IgnoredMessages:
    def __init__(self, now: float) -> None:
        self._since = now
        self._counts: dict[ClientId, Counter[str]] = {}
        self._told: dict[tuple[ClientId, str], float] = {}

    def count(self, client: ClientId, what: str) -> None:
        """``what``: one of a few words of ours, never of the client's."""
        self._counts.setdefault(client, Counter())[what] += 1

    def may_tell(self, client: ClientId, what: str, now: float) -> bool:
        """Whether it is time for another line of this kind that the client causes; if not, it is
        counted."""
        if now - self._told.get((client, what), -_SAY_EVERY) < _SAY_EVERY:
            self.count(client, what)
            return False
        self._told[client, what] = now
        return True

    def report(self, now: float, *, force: bool = False) -> list[str]:
        """Lines for the log, if it is time for them."""
        passed = now - self._since
        if passed < _SAY_EVERY and not force:
            return []
        self._since = now
        counts, self._counts = self._counts, {}
        most = sorted(counts, key=lambda client: -counts[client].total())
        lines = [
            f"client {client}: {counts[client].total():,} messages ignored in the last "
            f"{passed:.0f} s ({_listed(counts[client])})"
            for client in most[:_MOST_LINES]
        ]
        others = most[_MOST_LINES:]
        if others:
            total = sum(counts[client].total() for client in others)
            lines.append(f"{len(others)} other clients: {total:,} messages ignored")
        return lines


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what}: {count:,}" for what, count in counts.most_common())
