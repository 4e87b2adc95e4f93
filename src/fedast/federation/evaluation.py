"""Federated evaluation: which clients are asked about a model, who has answered, and the result.

Bookkeeping only: ``evaluator`` sends the requests, passes on the answers and says how much time has
passed; ``pooling`` turns the answers into one result. None of this is durable, because an
evaluation that a crash interrupted is asked for again.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from fedast.core.protocol import ClientId, TaskName, Version
from fedast.core.streams import Stream
from fedast.federation.pooling import Answer

Key: TypeAlias = tuple[TaskName, Version]
"""Which model is evaluated."""
_MAX_DOUBLINGS = 6


@dataclass(frozen=True, slots=True)
class Answered:
    """An attempt that has ended: what each client said."""

    key: Key
    answers: dict[ClientId, Answer]


@dataclass
class _Pending:
    tokens: dict[ClientId, str]
    """One for each client, so that nobody can answer for another client."""
    waiting: set[ClientId]
    deadline: float
    answers: dict[ClientId, Answer] = field(default_factory=dict)


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

    def ask(self, key: Key, clients: Sequence[ClientId], now: float) -> dict[ClientId, str]:
        """Begin an attempt: the clients to ask, each with its token. They are drawn from the run's
        seed, anew for each attempt, since those who could not answer may never be able to."""
        attempt = self._attempts[key]
        stream = Stream.of(self._seed, "evaluate", *key, attempt)
        count = min(len(clients), self._evaluators)
        # Answers to an earlier attempt do not count, so each attempt has tokens of its own.
        tokens = {
            clients[index]: secrets.token_hex(12) for index in stream.sample(len(clients), count)
        }
        deadline = now + self._timeout * 2 ** min(_MAX_DOUBLINGS, attempt)
        self._attempts[key] += 1
        self._pending[key] = _Pending(tokens, set(tokens), deadline)
        return dict(tokens)

    def about(self, client: ClientId, token: str) -> Key | None:
        """The model that this client was asked about with this token and has not answered yet."""
        for key, pending in self._pending.items():
            if client in pending.waiting and pending.tokens[client] == token:
                return key
        return None

    def answer(self, key: Key, client: ClientId, answer: Answer) -> None:
        pending = self._pending[key]
        pending.waiting.discard(client)
        pending.answers[client] = answer

    def give_up(self, key: Key, client: ClientId) -> None:
        """This client will not answer."""
        self._pending[key].waiting.discard(client)

    def pass_time(self, now: float, here: Collection[ClientId]) -> None:
        """Stop waiting for clients that have left, and for everybody after the deadline."""
        for pending in self._pending.values():
            pending.waiting = {c for c in pending.waiting if c in here and now <= pending.deadline}

    def close(self, now: float) -> list[Answered]:
        """End the attempts that wait for nobody. One without any answer has no result; the model
        may be asked about again a little later."""
        ended = [key for key, pending in self._pending.items() if not pending.waiting]
        answered = []
        for key in ended:
            answers = self._pending.pop(key).answers
            if not answers:
                self._not_before[key] = now + min(30.0, 0.25 * 2 ** min(9, self._attempts[key]))
            else:
                del self._attempts[key]
                self._not_before.pop(key, None)
                answered.append(Answered(key, answers))
        return answered
