"""Sync-UCB-ST: clients as the arms of a bandit, scored by their training losses.

Client selection for several models as a multi-armed bandit over training losses,
a synchronous baseline of the FedAST paper (section 5; its reference MM_ucb).

The rule. Every (client, task) pair has a discounted upper confidence bound,
L/N + sqrt(2 ln(T)/N): L sums the losses of the rounds in which the client
returned an update of the task, N counts them, T counts all rounds, all three
discounted by gamma per round. Each round the tasks take their best clients
among the available ones (a few more than are needed), in an order that rotates,
so that no task always chooses first. In the first round every client gets every
task, and all updates are waited for: after it every pair has a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, final

from pydantic import Field

from fedast.algorithms.options import SyncOptions
from fedast.algorithms.rounds import Returned
from fedast.algorithms.sync_st import Shares
from fedast.core.protocol import ClientId, Pool, TaskName, TaskSpec
from fedast.core.streams import Stream


@final
class UpperConfidenceBounds:
    wants_loss = True

    def __init__(self, *, gamma: float = 0.99, extra: int = 5, per_batch: bool = True) -> None:
        """``per_batch``: a loss counts times its task's batch size, as in the authors' code."""
        self._gamma = gamma
        self._extra = extra
        self._per_batch = per_batch
        self._shares = Shares()
        self._rounds = 0
        self._scores: dict[tuple[ClientId, TaskName], tuple[float, float, int]] = {}
        """(L, N, round of the last change): discounts are caught up on when they are needed."""
        self._batch_sizes: dict[TaskName, int] = {}

    def assign(
        self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream
    ) -> Sequence[Sequence[ClientId]]:
        self._batch_sizes = {task.name: task.batch_size for task in tasks}
        if self._rounds == 0:
            return [list(pool.everyone()) for _ in tasks]
        clients = list(pool.available(stream, self._extra))
        stream.shuffle(clients)  # equal scores are told apart by chance
        spare = min(self._extra, max(0, len(clients) - len(tasks)))
        sizes = self._shares.sizes(len(clients) - spare, tasks)
        groups: list[list[ClientId]] = [[] for _ in tasks]
        free = clients
        for place in range(len(tasks)):
            number = (place + self._rounds) % len(tasks)
            groups[number] = self._best(free, tasks[number].name)[: sizes[number]]
            taken = set(groups[number])
            free = [client for client in free if client not in taken]
        return groups

    def _best(self, clients: Sequence[ClientId], task: TaskName) -> list[ClientId]:
        return sorted(clients, key=lambda client: -self.score(client, task))

    def waits_for_all(self) -> bool:
        return self._rounds == 0

    def learn(self, returned: Sequence[Returned]) -> None:
        self._rounds += 1
        for update in returned:
            if update.loss is None or not math.isfinite(update.loss):
                continue
            key = update.client, update.task
            scale = self._batch_sizes.get(update.task, 1) if self._per_batch else 1
            total, count, last = self._scores.get(key, (0.0, 0.0, self._rounds))
            faded = self._gamma ** (self._rounds - last)
            self._scores[key] = (
                total * faded + scale * update.loss, count * faded + 1.0, self._rounds
            )  # fmt: skip

    def score(self, client: ClientId, task: TaskName) -> float:
        """The upper confidence bound; infinite for a pair that was never seen."""
        found = self._scores.get((client, task))
        if found is None:
            return math.inf
        total, count, last = found
        faded = self._gamma ** (self._rounds - last)
        horizon = float(self._rounds)
        if self._gamma < 1.0:
            horizon = (1.0 - self._gamma**self._rounds) / (1.0 - self._gamma)
        return total / count + math.sqrt(2.0 * math.log(max(1.0, horizon)) / (count * faded))


class SyncUCBST(SyncOptions):
    """Sync-UCB-ST: synchronous rounds, clients by upper confidence bounds of their losses."""

    name: ClassVar[str] = "sync-ucb-st"
    display_name: ClassVar[str] = "Sync-UCB-ST"
    colour: ClassVar[str] = "#8B005D"
    gamma: float = Field(0.99, gt=0, le=1)
    """Discount of past rounds."""
    extra: int = Field(5, ge=0)
    """Available clients beyond those that are used, to choose from."""
    loss: Literal["batch", "mean"] = "batch"
    """A client's mean training loss times the batch size (the authors' code), or as it is."""

    def assignment(self) -> UpperConfidenceBounds:
        return UpperConfidenceBounds(
            gamma=self.gamma, extra=self.extra, per_batch=self.loss == "batch"
        )
