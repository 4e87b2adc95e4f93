"""How far a task is in an asynchronous algorithm: its progress, active requests and buffer."""

from __future__ import annotations

import math
from typing import final

from fedast.core.progress import Progress
from fedast.core.protocol import RequestId, TaskName, TaskSpec

RATIO_LIMIT = 37
"""The R/b up to which the paper finds a fixed ratio to work."""


def buffer_size_for(requests: int, ratio: float, minimum: int = 1) -> int:
    """b for R active requests: the size nearest to the ratio R/b that a task started with.

    One more where rounding would take R/b above the paper's limit although the
    task started within it; never below the task's own minimum.
    """
    size = max(1, round(requests / ratio))
    if requests / size > RATIO_LIMIT >= ratio:
        size += 1
    return max(minimum, size)


def least_requests(spec: TaskSpec) -> int:
    """What Realloc leaves a task at least: one buffer slot's worth of requests, R/b, and enough to
    fill its smallest buffer."""
    worth = math.ceil(spec.active_requests / spec.buffer_size - 1e-9)
    return max(1, spec.min_buffer_size, worth)


@final
class AsyncProgress:
    """A task's ``Progress`` with what only asynchronous algorithms have: its target of active
    requests and its buffer. It never leaves the algorithm."""

    __slots__ = ("buffer", "buffer_size", "progress", "ratio", "target", "updates", "weights")

    def __init__(self, progress: Progress, buffered: bool) -> None:
        spec = progress.spec
        self.progress = progress
        self.target = spec.active_requests
        self.buffer_size = spec.buffer_size if buffered else 1
        self.ratio = spec.active_requests / spec.buffer_size if buffered else None
        self.buffer: list[RequestId] = []
        self.weights: list[float] = []
        """Of the updates in the buffer, if staleness is weighted."""
        self.updates = 0

    @property
    def name(self) -> TaskName:
        return self.progress.spec.name

    @property
    def min_requests(self) -> int:
        """Requests that fill the smallest buffer the task may have."""
        return 1 if self.ratio is None else self.progress.spec.min_buffer_size

    @property
    def min_after_realloc(self) -> int:
        """Requests that Realloc leaves the task at least."""
        return 1 if self.ratio is None else least_requests(self.progress.spec)

    def retarget(self, target: int) -> None:
        self.target = target
        if self.ratio is not None:
            minimum = self.progress.spec.min_buffer_size
            self.buffer_size = buffer_size_for(target, self.ratio, minimum)
