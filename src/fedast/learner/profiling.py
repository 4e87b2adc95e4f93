"""Where the time of a run goes: a stopwatch around a learner and its trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.learner.protocol import Evaluation, Learner
from fedast.training.trainer import AheadTrainer, Job, Trainer, Update

T = TypeVar("T")


@final
class Profiler:
    """Seconds by name; nested work is counted once, under its own name."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {"training": 0.0, "evaluation": 0.0, "aggregation": 0.0}
        self.sizes: dict[TaskName, list[int]] = {}
        """Clients in each trained batch."""
        self._device = device
        self._inner: list[float] = []

    def by_work(self) -> dict[str, float]:
        """Seconds of what a run's time series tells apart."""
        seconds = self.seconds
        return {
            "train": seconds["training"],
            "evaluate": seconds["evaluation"],
            "aggregate": seconds["aggregation"],
        }

    def time(self, name: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        self._inner.append(0.0)
        try:
            done = work()
            if self._device.type == "cuda":  # else the time counts where the value is first read
                torch.cuda.synchronize(self._device)
            return done
        finally:
            whole = time.perf_counter() - began
            self.seconds[name] += whole - self._inner.pop()
            if self._inner:
                self._inner[-1] += whole


@final
class ProfiledTrainer:
    def __init__(self, trainer: Trainer, profiler: Profiler) -> None:
        self._trainer = trainer
        self._ahead = trainer if isinstance(trainer, AheadTrainer) else None
        self._profiler = profiler

    def limit(self, task: TaskName) -> int:
        return self._trainer.limit(task)

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        self._profiler.sizes.setdefault(task, []).append(len(jobs))
        return self._profiler.time("training", lambda: self._trainer.train(task, jobs))

    def ahead(self, task: TaskName) -> bool:
        return self._ahead is not None and self._ahead.ahead(task)

    def plan(self, jobs: Sequence[tuple[TaskName, Job]]) -> None:
        if self._ahead is not None:
            self._profiler.time("training", partial(self._ahead.plan, jobs))

    def bound(self, task: TaskName) -> list[RequestId]:
        return [] if self._ahead is None else self._ahead.bound(task)

    def spread(self, task: TaskName, model: Any, function: Any, pieces: Sequence[Any]) -> list[Any]:
        assert self._ahead is not None
        return self._ahead.spread(task, model, function, pieces)

    def close(self) -> None:
        self._trainer.close()


@final
class ProfiledLearner:
    def __init__(self, learner: Learner, profiler: Profiler) -> None:
        self._learner = learner
        self._profiler = profiler

    def dispatch(
        self, request: RequestId, task: TaskName, client: ClientId, version: Version
    ) -> None:
        self._learner.dispatch(request, task, client, version)

    def accept(self, request: RequestId, task: TaskName) -> None:
        self._learner.accept(request, task)

    def drop(self, request: RequestId, task: TaskName) -> None:
        self._learner.drop(request, task)

    def training_loss(self, request: RequestId, task: TaskName) -> float:
        return self._learner.training_loss(request, task)

    def aggregate(
        self,
        task: TaskName,
        requests: tuple[RequestId, ...],
        weights: tuple[float, ...] | None = None,
    ) -> None:
        self._profiler.time("aggregation", lambda: self._learner.aggregate(task, requests, weights))

    def variance(self, task: TaskName) -> float:
        return self._profiler.time("aggregation", lambda: self._learner.variance(task))

    def evaluate(self, task: TaskName) -> Evaluation:
        return self._profiler.time("evaluation", lambda: self._learner.evaluate(task))
