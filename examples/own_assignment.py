"""A synchronous algorithm of your own: an assignment that says who trains what in a round.

The tasks whose clients last reported the higher training losses get more of the clients. All else
(rounds, stragglers, first k, tasks that come and go) is what synchronous algorithms share.

python examples/own_assignment.py
fedast run examples/own-assignment.toml
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


class SyncByLoss(SyncOptions):
    """Sync-by-loss: synchronous rounds, more clients for the tasks with the higher losses."""

    name: ClassVar[str] = "sync-by-loss"
    power: float = Field(1.0, ge=0)
    """0 splits the clients evenly."""

    def assignment(self) -> Assignment:
        return ByLoss(self.power)


if __name__ == "__main__":
    from own_tasks import diabetes, manual

    from fedast import Simulation, simulate

    tasks = [diabetes(30, seed=1), manual(30, seed=1)]
    world = Simulation(clients=30, max_time=100.0)
    outcome = simulate(tasks, SyncByLoss(first_k=3), world, seed=1)
    for name, result in outcome.result.tasks.items():
        print(f"{name}: {result.metric} {result.final:.3f}, {result.finish_reason}")
