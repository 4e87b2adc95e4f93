"""How far a task is: its rounds, its evaluations, and how it ends.

Theory of operation. A task is *open* while it may receive requests. It ends in
one of two ways. If nothing is left to find out, it is finished at once. If its
last model has not been evaluated yet (round or time limit), it is *closing*:
out of the allocation, waiting for that one evaluation, which decides whether it
finished by its target after all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import final

from fedast.core.protocol import (
    Aggregate,
    Command,
    Evaluate,
    Evaluated,
    Finish,
    FinishReason,
    IllegalEvent,
    RequestId,
    StopReason,
    TaskSpec,
    TaskStatus,
)


def _mean(values: list[float]) -> float:
    return values[0] if len(values) == 1 else math.fsum(values) / len(values)


@final
class Progress:
    """How far one task is: what an algorithm remembers of it between events."""

    __slots__ = ("asked", "closing", "finished", "judged", "latest", "round", "spec")

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.round = 0
        self.asked = -1
        """The newest round whose evaluation was asked for."""
        self.judged = -1
        """The newest round whose evaluation has come back."""
        self.latest: list[float] = []
        """The metric of the latest evaluations, as many as the target must be held for."""
        self.closing: FinishReason | None = None
        self.finished: FinishReason | None = None

    @property
    def open(self) -> bool:
        return self.finished is None and self.closing is None

    def evaluate(self) -> Evaluate:
        self.asked = self.round
        return Evaluate(self.spec.name, self.round)

    def advance(
        self, requests: Iterable[RequestId], weights: Iterable[float] | None = None
    ) -> list[Command]:
        """One more round from these updates; the task is closing if it was the last."""
        self.round += 1
        factors = None if weights is None else tuple(weights)
        commands: list[Command] = [Aggregate(self.spec.name, self.round, tuple(requests), factors)]
        last = self.spec.max_rounds is not None and self.round >= self.spec.max_rounds
        if last or self.round % self.spec.evaluate_every == 0:
            commands.append(self.evaluate())
        if last:
            self.closing = FinishReason.ROUNDS
        return commands

    def check(self, event: Evaluated) -> None:
        if event.round > self.asked:
            raise IllegalEvent(f"task {event.task!r}: round {event.round} was not to be evaluated")

    def judge(self, event: Evaluated) -> FinishReason | None:
        """Whether this evaluation ends the task."""
        self.judged = max(self.judged, event.round)
        if self.finished is not None:
            return None
        if not (math.isfinite(event.metric) and math.isfinite(event.loss)):
            return FinishReason.DIVERGED
        self.latest = [*self.latest, event.metric][-self.spec.hold :]
        if len(self.latest) == self.spec.hold and self.spec.reached(_mean(self.latest)):
            return FinishReason.TARGET
        return self.closing if event.round == self.round else None

    def finish(self, reason: FinishReason) -> Finish:
        self.closing, self.finished = None, reason
        return Finish(self.spec.name, reason)

    def stop(self, reason: StopReason) -> Command | None:
        """Stopped from outside: finished at once, or closing until its model is evaluated.

        The command to send, or None if an evaluation that is already on its
        way will decide.
        """
        ending = FinishReason(reason.value)
        if reason is not StopReason.TIME or self.judged == self.round:
            return self.finish(ending)
        if self.closing is None:
            self.closing = ending
        return self.evaluate() if self.asked < self.round else None

    def status(
        self, in_flight: int, *, active_requests: int, buffer_size: int = 1, buffered: int = 0
    ) -> TaskStatus:
        """Where the task stands, for the live table and for monitoring."""
        return TaskStatus(
            name=self.spec.name,
            round=self.round,
            active_requests=active_requests,
            in_flight=in_flight,
            buffer_size=buffer_size,
            buffered=buffered,
            finished=self.finished,
        )
