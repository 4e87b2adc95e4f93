"""A learner that remembers its answers, so that a run can be taken up where it was.

A run is a function of its configuration and of what the data plane answered:
evaluations, variances, training losses. With those written down, everything
else (the algorithm, the clock, the queues, the log) is had again by running it
from the start with the same answers, which takes microseconds per update
(Sync-Bayes-ST thinks longer, once a round); only then are the tensors of a
checkpoint put in place and training goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.learner.learner import TorchLearner
from fedast.learner.protocol import Evaluation


class ReplayFailed(Exception):
    """A replay went another way than what was recorded."""


@final
class RecordingLearner:
    def __init__(self, learner: TorchLearner, answers: Sequence[float] | None = None) -> None:
        """With ``answers`` it gives those, until ``go_live``."""
        self._learner = learner
        self._given = None if answers is None else iter(answers)
        self.answers: list[float] = []

    def repeat(self, answers: Sequence[float]) -> None:
        """Give these answers from now on, until ``go_live``."""
        self._given = iter(answers)

    def go_live(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The replay is over: what was answered so far led to these tensors."""
        if self._given is not None and next(self._given, None) is not None:
            raise ReplayFailed("it asks less of the data plane than was recorded")
        self._given = None
        try:
            self._learner.restore(tensors)
        except (LookupError, ValueError) as error:
            raise ReplayFailed(f"its tensors do not fit ({error})") from error

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
            self._learner.pass_over(task, requests)
        else:
            self._learner.aggregate(task, requests, weights)

    def variance(self, task: TaskName) -> float:
        if self._given is not None:
            return self._next()
        return self._note(self._learner.variance(task))

    def evaluate(self, task: TaskName) -> Evaluation:
        if self._given is not None:
            return Evaluation(self._next(), self._next())
        found = self._learner.evaluate(task)
        return Evaluation(self._note(found.metric), self._note(found.loss))

    def _note(self, answer: float) -> float:
        self.answers.append(answer)
        return answer

    def _next(self) -> float:
        assert self._given is not None
        answer = next(self._given, None)
        if answer is None:
            raise ReplayFailed("it asks more of the data plane than was recorded")
        return self._note(answer)
