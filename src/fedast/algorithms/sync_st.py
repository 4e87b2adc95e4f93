"""Sync-ST: synchronous simultaneous training with straggler mitigation.

FedAvg extended to several models: Bhuyan, Moharir, Joshi: "Multi-Model
Federated Learning with Provable Guarantees", 2022; the main baseline of the
FedAST paper.

The rule. Each round the clients that are available are split over the open
tasks, at random in given shares, or round-robin, so that a client trains every
task once per cycle. The rest is ``rounds.py``: each task takes its first k
updates, and the round ends when the slowest task has its k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, final

from pydantic import SerializeAsAny

from fedast.algorithms.options import SyncOptions
from fedast.algorithms.rounds import Assignment, Returned
from fedast.algorithms.selection import SELECTIONS, Selection, SelectionOptions, Uniform
from fedast.core.apportion import largest_remainder
from fedast.core.protocol import ClientId, Pool, TaskName, TaskSpec
from fedast.core.streams import Stream
from fedast.parts.errors import ConfigError
from fedast.parts.registry import Part


@final
class Shares:
    """Whole numbers of clients by share; what a task loses to rounding it gets in a later round."""

    def __init__(self) -> None:
        self._owed: dict[TaskName, float] = {}

    def sizes(self, clients: int, tasks: Sequence[TaskSpec]) -> list[int]:
        total = sum(task.share for task in tasks)
        quotas = [clients * task.share / total + self._owed.get(task.name, 0.0) for task in tasks]
        sizes = largest_remainder(clients, [max(0.0, quota) for quota in quotas])
        self._owed = {
            task.name: quota - size for task, quota, size in zip(tasks, quotas, sizes, strict=True)
        }
        return sizes


def cut(clients: Sequence[ClientId], sizes: Sequence[int]) -> list[Sequence[ClientId]]:
    """Consecutive groups of the given sizes."""
    groups, start = [], 0
    for size in sizes:
        groups.append(clients[start : start + size])
        start += size
    return groups


@final
class RandomPartition:
    """The available clients, shuffled and cut by share.

    With a ``selection``, as many clients as otherwise take part, each the best of its few
    candidates for its task: in a pool that can give more clients than take part.
    """

    def __init__(self, selection: Selection | None = None) -> None:
        self._shares = Shares()
        self._selection = selection

    @property
    def wants_loss(self) -> bool:
        return self._selection is not None and self._selection.wants_loss

    def assign(
        self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream
    ) -> Sequence[Sequence[ClientId]]:
        clients = list(pool.available(stream))
        places = len(clients)
        selection = self._selection
        if selection is not None and selection.candidates > 1:
            clients = list(pool.available(stream, (selection.candidates - 1) * places))
            places = min(places, len(clients))
        stream.shuffle(clients)
        groups = cut(range(places), self._shares.sizes(places, tasks))
        if selection is None:
            return [[clients[place] for place in group] for group in groups]
        return [
            [selection.best(task.name, clients[place::places]) for place in group]
            for task, group in zip(tasks, groups, strict=True)
        ]

    def waits_for_all(self) -> bool:
        return False

    def learn(self, returned: Sequence[Returned]) -> None:
        if self._selection is not None:
            for one in returned:
                self._selection.learn(one.client, one.task, one.work_time, one.loss)


@final
class RoundRobin:
    """In each cycle of as many rounds as tasks a client draws a group; groups rotate over tasks."""

    wants_loss = False

    def __init__(self) -> None:
        self._rounds = 0

    def assign(
        self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream
    ) -> Sequence[Sequence[ClientId]]:
        clients = pool.available(stream)
        cycle, turn = divmod(self._rounds, len(tasks))
        draws = stream.child("group", cycle)
        groups: list[list[ClientId]] = [[] for _ in tasks]
        for client in clients:
            groups[(draws.at(client).below(len(tasks)) + turn) % len(tasks)].append(client)
        self._rounds += bool(clients)
        return groups

    def waits_for_all(self) -> bool:
        return False

    def learn(self, returned: Sequence[Returned]) -> None:
        pass


class SyncST(SyncOptions):
    """Sync-ST: synchronous rounds, clients split over the tasks, first k updates count."""

    name: ClassVar[str] = "sync-st"
    display_name: ClassVar[str] = "Sync-ST"
    colour: ClassVar[str] = "#E69F00"
    split: Literal["random", "round-robin"] = "random"
    """How clients are split: at random by the tasks' shares, or each task in turn."""
    selection: Annotated[SerializeAsAny[SelectionOptions], Part(SELECTIONS)] = Uniform()
    """Which of a few random candidates takes part (random split only; fedast list selections)."""

    def assignment(self) -> Assignment:
        if self.split == "round-robin":
            return RoundRobin()
        return RandomPartition(self.selection.build())

    def check(self, *, active_cap: int | None, until: str) -> None:
        if isinstance(self.selection, Uniform):
            return
        if self.split == "round-robin":
            raise ConfigError("algorithm.selection", "goes with a random split only")
        if active_cap is None:
            raise ConfigError(
                "algorithm.selection",
                "needs simulation.availability active_cap: elsewhere all who can take part do",
            )
