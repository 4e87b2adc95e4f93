"""A learner that records its answers, so that a run can be resumed.

A run is a function of its configuration and of what the data plane answered:
evaluations, variances, training losses. To resume, the control plane (the
algorithm, the clock, the queues, the log) runs again from the start with the
recorded answers, which takes microseconds per update (longer for Sync-Bayes-ST,
which fits a Gaussian process every round). At the checkpoint's step its tensors
are put in place, and training goes on.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.learner.protocol import Evaluation, Learner

_RAW = -sys.float_info.max
"""Comes before the metric and loss of the newest model, where there is an evaluation of it beside
the one that decides. No metric has this value."""


_MORE = math.nextafter(_RAW, 0.0)
"""Comes, with their number, before the values of a task's further metrics."""


class ReplayFailed(Exception):
    """A replay took another course than the recorded run."""


class ResumableLearner(Learner, Protocol):
    """A learner whose tensors can be saved, and put back after a replay without training."""

    def skip_aggregation(self, task: TaskName, requests: tuple[RequestId, ...]) -> None:
        """Count an aggregation, and release its requests, without computing the next model."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor that a run needs to continue, by name."""
        ...

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take back what ``state`` gave, after a replay of the same commands.

        Raises ``LookupError`` or ``ValueError`` if the tensors do not fit.
        """
        ...


def check_all_used(tensors: Mapping[str, torch.Tensor], used: set[str]) -> None:
    """Tensors that are left over belong to a run that took another course."""
    left = tensors.keys() - used
    if left:
        raise LookupError(f"this run has no use for {min(left)}")


@final
class RecordingLearner:
    def __init__(self, learner: ResumableLearner, answers: Sequence[float] | None = None) -> None:
        """``answers``: as ``repeat`` takes them."""
        self._learner = learner
        self._given = None if answers is None else iter(answers)
        self.answers: list[float] = []
        self.longest_evaluation: float | None = None
        """Seconds of real time; None before the first one."""

    def repeat(self, answers: Sequence[float]) -> None:
        """Give these answers from now on, until ``go_live``."""
        self._given = iter(answers)

    def go_live(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The replay is over: what was answered so far led to these tensors."""
        if self._given is not None and next(self._given, None) is not None:
            raise ReplayFailed("it asked the data plane fewer questions than were recorded")
        self._given = None
        try:
            self._learner.restore(tensors)
        except (LookupError, ValueError) as error:
            raise ReplayFailed(f"its tensors do not fit ({error})") from error

    def take(self) -> tuple[float, ...]:
        """The answers since the last call."""
        taken = tuple(self.answers)
        self.answers.clear()
        return taken

    def dispatch(
        self, request: RequestId, task: TaskName, client: ClientId, version: Version
    ) -> None:
        self._learner.dispatch(request, task, client, version)

    def accept(self, request: RequestId, task: TaskName) -> None:
        self._learner.accept(request, task)

    def drop(self, request: RequestId, task: TaskName) -> None:
        self._learner.drop(request, task)

    def training_loss(self, request: RequestId, task: TaskName) -> float:
        if self._given is not None:
            return self._next()
        return self._note(self._learner.training_loss(request, task))

    def aggregate(
        self,
        task: TaskName,
        requests: tuple[RequestId, ...],
        weights: tuple[float, ...] | None = None,
    ) -> None:
        if self._given is not None:
            self._learner.skip_aggregation(task, requests)
        else:
            self._learner.aggregate(task, requests, weights)

    def variance(self, task: TaskName) -> float:
        if self._given is not None:
            return self._next()
        return self._note(self._learner.variance(task))

    def evaluate(self, task: TaskName) -> Evaluation:
        if self._given is not None:
            first = self._next()
            more: tuple[float, ...] = ()
            raw: tuple[float, float] | None = None
            if first == _MORE:
                more = tuple(self._next() for _ in range(int(self._next())))
                first = self._next()
            if first == _RAW:
                raw = self._next(), self._next()
                first = self._next()
            return Evaluation(first, self._next(), raw=raw, more=more)
        began = time.perf_counter()
        found = self._learner.evaluate(task)
        self.longest_evaluation = max(self.longest_evaluation or 0.0, time.perf_counter() - began)
        if found.more:
            self.answers.extend((_MORE, float(len(found.more)), *found.more))
        if found.raw is not None:
            self.answers.extend((_RAW, *found.raw))
        self.answers.extend((found.metric, found.loss))
        return found

    def _note(self, answer: float) -> float:
        self.answers.append(answer)
        return answer

    def _next(self) -> float:
        assert self._given is not None
        answer = next(self._given, None)
        if answer is None:
            raise ReplayFailed("it asked the data plane more questions than were recorded")
        return self._note(answer)
