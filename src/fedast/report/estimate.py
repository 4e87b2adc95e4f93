"""Estimate when a task will end, from its learning curve so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedast.core.protocol import TaskSpec
from fedast.records.metrics import Point

_RECENT = 6


def expected_finish(curve: Sequence[Point], spec: TaskSpec, limit: float | None) -> float | None:
    """The simulated time at which the task will end, or None if there is nothing to go by.

    The earliest of: a straight line through the latest evaluations, extended to the target; the
    round limit at the average pace so far; the time limit.
    """
    ends = [limit] if limit is not None else []
    if len(curve) >= 2 and curve[-1].time > curve[0].time:
        last = curve[-1]
        if spec.max_rounds is not None and last.round > 0:
            ends.append(last.time / last.round * spec.max_rounds)
        recent = curve[-_RECENT:]
        times = np.array([point.time for point in recent])
        values = np.array([point.value for point in recent])
        if spec.target is not None and len(recent) >= 3 and np.isfinite(values).all():
            slope, level = np.polyfit(times - last.time, values, 1)
            ahead = (spec.target - level) / slope if slope else -1.0
            if ahead > 0.0:
                ends.append(float(last.time + ahead))
    return min(ends) if ends else None
