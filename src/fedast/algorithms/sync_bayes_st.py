"""Sync-Bayes-ST: assignments by Bayesian optimisation.

Zhou et al.: "Efficient Device Scheduling with Multi-Job Federated Learning"
(BODS), AAAI 2022, as the FedAST paper uses it (its reference MM_bobs).

The rule. A round's assignment is a 0/1 vector over clients x tasks; its cost is
alpha times the sum over tasks of the slowest work time that counted, plus
(1 - alpha) times the sum over tasks of the variance, over clients, of how many
updates of theirs have counted so far. A Gaussian process with a Matern kernel
is fitted to the costs of past rounds; of 75 random partitions of the available
clients (a few more than are needed) the one with the highest expected
improvement is used. The first round is random. Work times are those of past
rounds only, and only the latest ``history`` rounds are kept, which bounds the
cost of a decision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedast.algorithms.options import SyncOptions
from fedast.algorithms.rounds import Returned
from fedast.algorithms.sync_st import Shares, cut
from fedast.core.protocol import ClientId, Pool, TaskName, TaskSpec
from fedast.core.streams import Stream

Pairs = frozenset[tuple[ClientId, TaskName]]
Vector = npt.NDArray[np.float64]


@final
class BayesianOptimisation:
    wants_loss = False

    def __init__(
        self, *, alpha: float = 0.25, candidates: int = 75, extra: int = 5, history: int = 300
    ) -> None:
        self._alpha = alpha
        self._candidates = candidates
        self._extra = extra
        self._history = history
        self._shares = Shares()
        self._clients = 0
        self._current: Pairs = frozenset()
        self._past: list[Pairs] = []
        self._apart: Vector = np.zeros((0, 0))
        """Distances between past assignments, kept so that a round adds one row."""
        self._costs: list[float] = []
        self._counts: Counter[tuple[ClientId, TaskName]] = Counter()
        """How many updates of each client have counted, by task."""

    def assign(
        self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream
    ) -> Sequence[Sequence[ClientId]]:
        self._clients = len(pool.everyone())
        clients = list(pool.available(stream, self._extra))
        spare = min(self._extra, max(0, len(clients) - len(tasks)))
        sizes = self._shares.sizes(len(clients) - spare, tasks)
        choices = []
        for _ in range(self._candidates if self._past else 1):
            stream.shuffle(clients)
            choices.append(cut(list(clients), sizes))
        pairs = [_pairs(choice, tasks) for choice in choices]
        best = self._most_promising(pairs) if self._past else 0
        self._current = pairs[best]
        return choices[best]

    def waits_for_all(self) -> bool:
        return False

    def learn(self, returned: Sequence[Returned]) -> None:
        self._counts.update((update.client, update.task) for update in returned)
        row = distances([self._current], self._past)[0] if self._past else np.zeros(0)
        self._apart = np.block([[self._apart, row[:, None]], [row[None, :], np.zeros((1, 1))]])
        self._past.append(self._current)
        self._costs.append(self.cost(returned))
        del self._past[: -self._history], self._costs[: -self._history]
        self._apart = self._apart[-self._history :, -self._history :]

    def cost(self, returned: Sequence[Returned]) -> float:
        """The cost of the round that these updates ended, counts included."""
        slowest: dict[TaskName, float] = {}
        for update in returned:
            slowest[update.task] = max(update.work_time, slowest.get(update.task, 0.0))
        sums: Counter[TaskName] = Counter()
        squares: Counter[TaskName] = Counter()
        for (_, task), count in self._counts.items():
            sums[task] += count
            squares[task] += count * count
        clients = max(1, self._clients)
        variance = sum(squares[task] / clients - (sums[task] / clients) ** 2 for task in sums)
        return float(self._alpha * sum(slowest.values()) + (1.0 - self._alpha) * variance)

    def _most_promising(self, candidates: Sequence[Pairs]) -> int:
        costs = np.array(self._costs)
        centre, spread = costs.mean(), costs.std() or 1.0
        between = distances(candidates, self._past)
        mean, deviation = posterior(self._apart, between, (costs - centre) / spread)
        best = (costs.min() - centre) / spread
        return int(expected_improvement(mean, deviation, best).argmax())


def _pairs(groups: Sequence[Sequence[ClientId]], tasks: Sequence[TaskSpec]) -> Pairs:
    return frozenset(
        (client, task.name) for task, group in zip(tasks, groups, strict=True) for client in group
    )


def distances(left: Sequence[Pairs], right: Sequence[Pairs]) -> Vector:
    """Euclidean distances of 0/1 vectors, given by their ones."""
    apart = [[len(a) + len(b) - 2 * len(a & b) for b in right] for a in left]
    found: Vector = np.sqrt(np.array(apart, dtype=np.float64))
    return found


def matern(distance: Vector, scale: float) -> Vector:
    """The Matern kernel with nu = 5/2."""
    r = math.sqrt(5.0) * distance / scale
    found: Vector = (1.0 + r + r * r / 3.0) * np.exp(-r)
    return found


def posterior(
    apart: Vector, between: Vector, values: Vector, noise: float = 1e-3
) -> tuple[Vector, Vector]:
    """Mean and deviation of a zero-mean process at the candidates, after the past values.

    ``apart`` are the distances of past points, ``between`` those of candidates
    and past points. The length scale is the mean of the latter: almost all
    assignments are about equally far apart.
    """
    scale = float(between.mean()) or 1.0
    kernel = matern(apart, scale) + noise * np.eye(len(apart))
    cross = matern(between, scale)
    solved: Any = np.linalg.solve(kernel, np.column_stack([values, cross.T]))
    mean = cross @ solved[:, 0]
    variance = 1.0 - np.einsum("ij,ji->i", cross, solved[:, 1:])
    return mean, np.sqrt(np.maximum(variance, 1e-12))


def expected_improvement(mean: Vector, deviation: Vector, best: float) -> Vector:
    """How far below ``best`` a cost is expected to fall: E[max(0, best - cost)]."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    below = 0.5 * (1.0 + np.array([math.erf(x / math.sqrt(2.0)) for x in z]))
    found: Vector = (best - mean) * below + deviation * density
    return found


class SyncBayesST(SyncOptions):
    """Sync-Bayes-ST: synchronous rounds, assignments by Bayesian optimisation."""

    name: ClassVar[str] = "sync-bayes-st"
    display_name: ClassVar[str] = "Sync-Bayes-ST"
    colour: ClassVar[str] = "#CC79A7"
    alpha: float = Field(0.25, ge=0, le=1)
    """Weight of the slowest work times in the cost; the rest is for even participation."""
    candidates: int = Field(75, ge=1)
    """Random assignments that are compared in a round."""
    extra: int = Field(5, ge=0)
    """Available clients beyond those that are used, to choose from."""
    history: int = Field(300, ge=1, le=2000)
    """Past rounds that are remembered."""

    def assignment(self) -> BayesianOptimisation:
        return BayesianOptimisation(
            alpha=self.alpha,
            candidates=self.candidates,
            extra=self.extra,
            history=self.history,
        )
