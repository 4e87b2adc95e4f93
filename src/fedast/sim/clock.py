"""The virtual clock: a heap of (time, sequence, item). Time moves here and nowhere else."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class Clock(Generic[T]):
    """Items come out by time; items of equal time in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, T]] = []
        self._sequence = 0

    def schedule(self, time: float, item: T) -> None:
        if not time >= self.now:
            raise ValueError(f"cannot schedule at {time}, it is {self.now} already")
        heappush(self._heap, (time, self._sequence, item))
        self._sequence += 1

    def advance(self) -> T | None:
        """The next item, with ``now`` at its time; None when nothing is scheduled."""
        if not self._heap:
            return None
        self.now, _, item = heappop(self._heap)
        return item
