"""Federated evaluation: which clients are asked about a model, who has answered, and the result.

Bookkeeping only: ``evaluator`` sends the requests, passes the answers in and says when time has
passed. Nothing of this is durable, since an evaluation that a crash interrupted is asked for again.
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
"""Which model is evaluated."""
_MAX_SAMPLES = 1_000_000
"""A client's weight is its number of samples, but never more than this: it is only a claim."""
_MAX_DOUBLINGS = 6


@dataclass(frozen=True, slots=True)
class Outcome:
    """The mean over the clients that answered, weighted by their numbers of samples."""

    key: Key
    metric: float
    loss: float


@dataclass
class _Pending:
    token: str
    waiting: set[ClientId]
    deadline: float
    answers: list[tuple[float, float, int]] = field(default_factory=list)
    """Metric, loss and number of samples of each client that has answered."""


@final
class FederatedEvaluation:
    def __init__(self, seed: int, evaluators: int, timeout: float) -> None:
        """``timeout``: seconds for the first attempt at a model; each further attempt gets twice
        as many, since trainings may come before it in every queue."""
        self._seed = seed
        self._evaluators = evaluators
        self._timeout = timeout
        self._pending: dict[Key, _Pending] = {}
        self._attempts: Counter[Key] = Counter()
        self._not_before: dict[Key, float] = {}

    def may_ask(self, key: Key, now: float) -> bool:
        """It is not pending, and the last attempt, if it failed, was a while ago."""
        return key not in self._pending and now >= self._not_before.get(key, 0.0)

    def ask(self, key: Key, clients: Sequence[ClientId], now: float) -> tuple[str, list[ClientId]]:
        """Begin an attempt: its token, and the clients to ask. They are drawn from the run's seed,
        anew for each attempt, since those who could not answer may never be able to."""
        attempt = self._attempts[key]
        stream = Stream.of(self._seed, "evaluate", *key, attempt)
        count = min(len(clients), self._evaluators)
        chosen = [clients[index] for index in stream.sample(len(clients), count)]
        token = secrets.token_hex(12)  # answers to an earlier attempt do not count
        deadline = now + self._timeout * 2 ** min(_MAX_DOUBLINGS, attempt)
        self._attempts[key] += 1
        self._pending[key] = _Pending(token, set(chosen), deadline)
        return token, chosen

    def about(self, token: str) -> Key | None:
        """The model that a pending attempt with this token is about."""
        return next((key for key, found in self._pending.items() if found.token == token), None)

    def waits_for(self, key: Key, client: ClientId) -> bool:
        return key in self._pending and client in self._pending[key].waiting

    def answer(self, key: Key, client: ClientId, metric: float, loss: float, samples: int) -> None:
        pending = self._pending[key]
        pending.waiting.discard(client)
        pending.answers.append((metric, loss, min(samples, _MAX_SAMPLES)))

    def give_up(self, key: Key, client: ClientId) -> None:
        """This client will not answer."""
        self._pending[key].waiting.discard(client)

    def pass_time(self, now: float, here: Collection[ClientId]) -> None:
        """Stop waiting for clients that have left, and for everybody after the deadline."""
        for pending in self._pending.values():
            pending.waiting = {c for c in pending.waiting if c in here and now <= pending.deadline}

    def close(self, now: float) -> list[Outcome]:
        """End the attempts that wait for nobody. One without any answer has no outcome; the model
        may be asked about again a little later."""
        ended = [key for key, pending in self._pending.items() if not pending.waiting]
        outcomes = []
        for key in ended:
            answers = self._pending.pop(key).answers
            if not answers:
                self._not_before[key] = now + min(30.0, 0.25 * 2 ** min(9, self._attempts[key]))
            else:
                del self._attempts[key]
                self._not_before.pop(key, None)
                metric, loss, weight = np.array(answers, np.float64).T
                mean = np.average(np.stack((metric, loss)), axis=1, weights=weight)
                outcomes.append(Outcome(key, float(mean[0]), float(mean[1])))
        return outcomes
