"""Delayed Nesterov: momentum that is brought up to date only once in a while.

A step is eta_s (g + beta m). The momentum m stays as it is for ``every`` rounds; then it becomes
beta m plus the mean of their g. In a direction that persists a model so goes 1 / (1 - beta) times
as far. (Liu et al.: "Asynchronous Local-SGD Training for Language Modeling", 2024, with c = 1/N.)

Why the delay. Ordinary momentum answers even later to what is a latency old already, so with it
asynchronous training oscillates at rates that are stable without. Such an oscillation has a period
of about three latencies. Momentum that lags by a little more than one latency is then out of phase
with it and damps it: with ``every`` at 1.25 times the mean staleness the stable rate is even a
little higher than without momentum; at 0.8 times it is lower (docs/faster.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self, final

from pydantic import Field

from fedast.aggregation.server_optimizers import ServerOptimizer, ServerOptimizerOptions

if TYPE_CHECKING:
    import torch


_LATENCIES = 1.25
"""The lag of the momentum at which it damps most."""


class DelayedNesterov(ServerOptimizerOptions):
    """Momentum that is brought up to date once per latency, which does not make training swing."""

    name: ClassVar[str] = "delayed-nesterov"
    beta: float = Field(0.5, ge=0, lt=1)
    """What is kept of the momentum, and how much of it a step adds; 0 is sgd."""
    every: int | None = Field(None, ge=1)
    """Rounds after which the momentum is brought up to date; default: 1.25 times the staleness
    that is to be expected, R/b."""

    def complete(self, staleness: float) -> Self:
        if self.every is not None:
            return self
        return self.model_copy(update={"every": max(1, round(_LATENCIES * staleness))})

    def build(
        self, initial: torch.Tensor, trained: int, *, lr: float, scale: float
    ) -> ServerOptimizer:
        return _DelayedNesterov(self.beta, self.every or 1, lr * scale, initial, trained)


@final
class _DelayedNesterov:
    def __init__(
        self, beta: float, every: int, rate: float, initial: torch.Tensor, trained: int
    ) -> None:
        self._beta = beta
        self._every = every
        self._rate = rate
        self._momentum = initial.new_zeros(trained)
        self._sum = initial.new_zeros(trained)
        """Of the directions since the momentum was brought up to date."""
        self._rounds = 0
        """Since then."""

    def step(self, direction: torch.Tensor, staleness: int) -> torch.Tensor:
        trained = len(self._momentum)
        self._sum = self._sum + direction[:trained]
        self._rounds += 1
        if self._rounds == self._every:
            self._momentum = self._beta * self._momentum + self._sum / self._every
            self._sum = self._sum.new_zeros(trained)
            self._rounds = 0
        step = self._rate * direction
        step[:trained] += (self._rate * self._beta) * self._momentum
        return step

    def state(self) -> dict[str, torch.Tensor]:
        import torch

        rounds = torch.tensor(self._rounds)
        return {"momentum": self._momentum, "sum": self._sum, "rounds": rounds}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._momentum = state["momentum"].to(self._momentum)
        self._sum = state["sum"].to(self._sum)
        self._rounds = int(state["rounds"])
