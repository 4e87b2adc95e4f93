"""Which client gets a request: client selection as a rule of its own.

For every place a few *candidates* are drawn uniformly and the rule keeps the
best of them, after Cho, Wang, Joshi: "Towards Understanding Biased Client
Selection in Federated Learning", AISTATS 2022 (power of choice). It costs a few
draws whatever the number of clients, works with any pool, and with one
candidate it is the uniform choice, draw by draw.

- ``uniform``: no choice, one candidate. Every client takes part equally often in
  expectation, which the objective of the paper, the plain mean of the clients'
  losses, asks for.
- ``speed``: the candidate whose past work took least time beside others' work
  on the same tasks; one that has not been seen counts as average.
- ``loss``: the candidate with the highest training loss it last reported for
  the task; one that has not been seen comes first.

The last two learn from what clients returned, and bias the objective towards
fast or badly served clients: that is their price.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol, final

from pydantic import Field

from fedast.core.protocol import ClientId, Pool, TaskName
from fedast.core.streams import Stream
from fedast.parts.options import Options
from fedast.parts.registry import Registry


class Selection(Protocol):
    @property
    def candidates(self) -> int:
        """How many clients are drawn for one place."""
        ...

    @property
    def wants_loss(self) -> bool: ...

    def best(self, task: TaskName, candidates: Sequence[ClientId]) -> ClientId:
        """The candidate that gets the request; there is at least one."""
        ...

    def learn(self, client: ClientId, task: TaskName, work_time: float, loss: float | None) -> None:
        """An update came back."""
        ...


def draw(
    selection: Selection,
    task: TaskName,
    pool: Pool,
    stream: Stream,
    holders: Collection[ClientId],
) -> ClientId | None:
    """One client for one more request of a task, or None if the pool gives no candidate."""
    drawn = [pool.draw(stream, holders) for _ in range(selection.candidates)]
    found = [client for client in drawn if client is not None]
    return selection.best(task, found) if found else None


class SelectionOptions(Options, ABC):
    """Options of a client selection."""

    @abstractmethod
    def build(self) -> Selection | None:
        """The selection; None is the uniform choice of one client."""


class Uniform(SelectionOptions):
    """Any client, uniformly at random (the paper)."""

    name: ClassVar[str] = "uniform"

    def build(self) -> None:
        return None


class Speed(SelectionOptions):
    """The fastest of a few random candidates, by their past work."""

    name: ClassVar[str] = "speed"
    candidates: int = Field(2, ge=1, le=1000)
    """Clients that are chosen from."""

    def build(self) -> Selection:
        return SpeedSelection(self.candidates)


class Loss(SelectionOptions):
    """The candidate with the highest training loss it last reported for the task."""

    name: ClassVar[str] = "loss"
    candidates: int = Field(2, ge=1, le=1000)
    """Clients that are chosen from."""

    def build(self) -> Selection:
        return LossSelection(self.candidates)


SELECTIONS: Registry[SelectionOptions] = Registry(
    "selections",
    SelectionOptions,  # type: ignore[type-abstract]
    [__name__],
)


@final
class SpeedSelection:
    wants_loss = False

    def __init__(self, candidates: int = 2) -> None:
        self.candidates = candidates
        self._usual: dict[TaskName, tuple[int, float]] = {}
        """Per task: how many updates, and their mean work time."""
        self._slowness: dict[ClientId, float] = {}
        """A client's work time over the usual one of its task, smoothed."""

    def best(self, task: TaskName, candidates: Sequence[ClientId]) -> ClientId:
        return min(candidates, key=lambda client: self._slowness.get(client, 1.0))

    def learn(self, client: ClientId, task: TaskName, work_time: float, loss: float | None) -> None:
        count, mean = self._usual.get(task, (0, 0.0))
        mean += (work_time - mean) / (count + 1)
        self._usual[task] = (count + 1, mean)
        if mean > 0.0:
            ratio = work_time / mean
            before = self._slowness.get(client, ratio)
            self._slowness[client] = 0.75 * before + 0.25 * ratio


@final
class LossSelection:
    wants_loss = True

    def __init__(self, candidates: int = 2) -> None:
        self.candidates = candidates
        self._losses: dict[tuple[ClientId, TaskName], float] = {}

    def best(self, task: TaskName, candidates: Sequence[ClientId]) -> ClientId:
        return max(candidates, key=lambda client: self._losses.get((client, task), math.inf))

    def learn(self, client: ClientId, task: TaskName, work_time: float, loss: float | None) -> None:
        # A NaN loss says nothing about who should be asked.
        if loss is not None and math.isfinite(loss):
            self._losses[(client, task)] = loss
