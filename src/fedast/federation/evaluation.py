"""Evaluation by clients: who is asked about a model, who has answered, and what it comes to.

Bookkeeping only. The server sends the questions, hands the answers in, and says when time has
passed; nothing of this is durable, since a question that a crash left open is asked anew.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np

from fedast.core.protocol import ClientId, TaskName, Version
from fedast.core.streams import Stream

Key: TypeAlias = tuple[TaskName, Version]
"""Which model: a task's, after so many rounds."""
_MOST_POINTS = 1_000_000
"""No client's evaluation counts for more points than these, whatever it says."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The mean of those who answered, weighted by their points."""

    key: Key
    metric: float
    loss: float


@dataclass
class _Poll:
    token: str
    waiting: set[ClientId]
    late_at: float
    found: list[tuple[float, float, int]] = field(default_factory=list)
    """Metric, loss and number of points of those who have answered."""


@final
class Polls:
    def __init__(self, seed: int, evaluators: int, patience: float) -> None:
        """``patience``: seconds for the first time that a model is asked about; twice as many
        each further time, since trainings may be before it in every queue."""
        self._seed = seed
        self._evaluators = evaluators
        self._patience = patience
        self._open: dict[Key, _Poll] = {}
        self._unanswered: Counter[Key] = Counter()
        self._not_before: dict[Key, float] = {}

    def may_ask(self, key: Key, now: float) -> bool:
        """It is not being asked about, and if it was in vain, that was a while ago."""
        return key not in self._open and now >= self._not_before.get(key, 0.0)

    def ask(self, key: Key, here: Sequence[ClientId], now: float) -> tuple[str, list[ClientId]]:
        """A token for the question, and whom to ask, which follows from the seed; others each
        time, since those who could not answer may never."""
        stream = Stream.of(self._seed, "evaluate", *key, self._unanswered[key])
        count = min(len(here), self._evaluators)
        chosen = [here[place] for place in stream.sample(len(here), count)]
        token = secrets.token_hex(12)  # asked again, it is another question
        patience = self._patience * 2 ** min(6, self._unanswered[key])
        self._unanswered[key] += 1
        self._open[key] = _Poll(token, set(chosen), now + patience)
        return token, chosen

    def about(self, token: str) -> Key | None:
        """The model that a question still open is about."""
        return next((key for key, poll in self._open.items() if poll.token == token), None)

    def waits_for(self, key: Key, client: ClientId) -> bool:
        return key in self._open and client in self._open[key].waiting

    def answer(self, key: Key, client: ClientId, metric: float, loss: float, points: int) -> None:
        poll = self._open[key]
        poll.waiting.discard(client)
        poll.found.append((metric, loss, min(points, _MOST_POINTS)))

    def give_up(self, key: Key, client: ClientId) -> None:
        """There will be no answer of this client."""
        self._open[key].waiting.discard(client)

    def pass_time(self, now: float, here: Collection[ClientId]) -> None:
        """Nobody waits for clients that are gone, or for anybody after the patience is over."""
        for poll in self._open.values():
            poll.waiting = {c for c in poll.waiting if c in here and now <= poll.late_at}

    def close(self, now: float) -> list[Verdict]:
        """End the polls that wait for nobody; one without an answer has to be asked again."""
        ended = [key for key, poll in self._open.items() if not poll.waiting]
        verdicts = []
        for key in ended:
            found = self._open.pop(key).found
            if not found:
                self._not_before[key] = now + min(30.0, 0.25 * 2 ** min(9, self._unanswered[key]))
            else:
                del self._unanswered[key]
                self._not_before.pop(key, None)
                metric, loss, weight = np.array(found, np.float64).T
                mean = np.average(np.stack((metric, loss)), axis=1, weights=weight)
                verdicts.append(Verdict(key, float(mean[0]), float(mean[1])))
        return verdicts
