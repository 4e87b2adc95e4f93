"""The algorithm of this project: synchronous rounds, more clients for the tasks that are behind.

An assignment says which clients train which task in a round. All else (rounds, stragglers, tasks
that come and go) is what synchronous algorithms share. For an asynchronous algorithm, see
`fedast examples own_algorithm.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from fedast import SyncOptions
from fedast.algorithms.rounds import Assignment, Returned
from fedast.algorithms.sync_st import Shares, cut
from fedast.core.protocol import ClientId, Pool, TaskName, TaskSpec
from fedast.core.streams import Stream


class ByLoss:
    """Clients in proportion to a power of each task's mean training loss in the last round."""

    wants_loss = True

    def __init__(self, power: float) -> None:
        self._power = power
        self._shares = Shares()
        self._losses: dict[TaskName, float] = {}

    def assign(
        self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream
    ) -> Sequence[Sequence[ClientId]]:
        clients = list(pool.available(stream))
        stream.shuffle(clients)
        wanted = [
            replace(task, share=max(self._losses.get(task.name, 1.0), 1e-6) ** self._power)
            for task in tasks
        ]
        return cut(clients, self._shares.sizes(len(clients), wanted))

    def waits_for_all(self) -> bool:
        return False

    def learn(self, returned: Sequence[Returned]) -> None:
        by_task: dict[TaskName, list[float]] = {}
        for update in returned:
            if update.loss is not None:
                by_task.setdefault(update.task, []).append(update.loss)
        self._losses |= {task: sum(losses) / len(losses) for task, losses in by_task.items()}


class MoreForTheSlow(SyncOptions):
    """Synchronous rounds with more clients for the tasks with the higher losses."""

    name: ClassVar[str] = "more-for-the-slow"
    power: float = Field(1.0, ge=0)
    """0 splits the clients evenly."""

    def assignment(self) -> Assignment:
        return ByLoss(self.power)
