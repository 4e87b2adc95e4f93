"""Handing events to an algorithm: the loop that the simulator and a federation share.

Theory of operation. An event goes to the algorithm, and the commands that come back are carried
out in order. Some are questions, and their answers are events in turn. The answer to
``MeasureVariances`` comes before anything else that is waiting, because the algorithm admits no
other event until then; the answer to ``Evaluate`` is an ordinary event and takes its turn. When
nothing is waiting any more, the first event has been handled, and the driver may go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedast.core.protocol import (
    Algorithm,
    Command,
    Evaluated,
    Event,
    Observer,
    VariancesMeasured,
)


def deliver(
    event: Event,
    now: float,
    algorithm: Algorithm,
    execute: Callable[[Command], Event | None],
    observer: Observer,
) -> None:
    """Deal with one event and all that follows from it; ``execute`` gives a question's answer."""
    waiting: list[Event] = []
    while True:
        first: Event | None = None
        for command in algorithm.handle(event):
            observer.commanded(now, command)
            answer = execute(command)
            if answer is None:
                continue
            if isinstance(answer, VariancesMeasured):
                first = answer
            else:
                if isinstance(answer, Evaluated):
                    observer.evaluated(now, answer)
                    if answer.raw is not None:  # of no concern to the algorithm
                        answer = replace(answer, raw=None)
                waiting.append(answer)
        if first is not None:
            event = first
        elif waiting:
            event = waiting.pop(0)
        else:
            return
