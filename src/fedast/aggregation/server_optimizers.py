"""How the model moves along a round's direction.

The direction is the mean update, a mean gradient; times eta_c tau it is what the
clients' models moved on average, g (before minus after). With the server rate
eta_s the model takes the step

- ``plain``:    eta_s g (FedAvg at eta_s = 1; the paper's rule),
- ``momentum``: eta_s v with v = beta v + g (Hsu, Qi, Brown: "Measuring the
  Effects of Non-Identical Data Distribution", 2019),
- ``adam``, ``yogi``: eta_s m / (sqrt(v) + epsilon) with m and v the running
  first and second moments of g (Reddi et al.: "Adaptive Federated
  Optimization", ICLR 2021; no bias correction, v starts at epsilon^2),
- ``fadas``: the same with the largest v so far, and with the rate cut to one
  over the largest delay of the round's updates where that delay is above a
  threshold (Wang, Wang, Lu, Chen: "FADAS", ICML 2024).

Only parameters are stepped. Running statistics, such as those of batch
normalisation, are averaged over clients, whatever the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, assert_never, final

import torch

from fedast.aggregation.settings import Adaptive, Momentum, Plain, Step


class Stepper(Protocol):
    """One task's step rule at work, with what it remembers."""

    def step(self, direction: torch.Tensor, delay: int) -> torch.Tensor:
        """What to take off the model; ``delay`` is the largest among the round's updates."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """What it remembers, by name."""
        ...

    def restore(self, state: Mapping[str, torch.Tensor]) -> None: ...


def start(how: Step, initial: torch.Tensor, trained: int, *, rate: float, scale: float) -> Stepper:
    """Ready to step models like ``initial``, whose first ``trained`` entries SGD trains.

    ``rate`` is eta_s and ``scale`` eta_c tau.
    """
    match how:
        case Plain():
            return _Plain(rate * scale)
        case Momentum():
            return _Momentum(how.beta, rate * scale, initial, trained)
        case Adaptive():
            return _Adaptive(how, rate, scale, initial, trained)
        case _:
            assert_never(how)


@final
class _Plain:
    def __init__(self, rate: float) -> None:
        self._rate = rate

    def step(self, direction: torch.Tensor, delay: int) -> torch.Tensor:
        return self._rate * direction

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        pass


@final
class _Momentum:
    def __init__(self, beta: float, rate: float, initial: torch.Tensor, trained: int) -> None:
        self._beta = beta
        self._rate = rate
        self._velocity = torch.zeros_like(initial[:trained])

    def step(self, direction: torch.Tensor, delay: int) -> torch.Tensor:
        trained = len(self._velocity)
        self._velocity = self._beta * self._velocity + direction[:trained]
        return self._rate * torch.cat([self._velocity, direction[trained:]])

    def state(self) -> dict[str, torch.Tensor]:
        return {"velocity": self._velocity}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._velocity = state["velocity"].to(self._velocity)


@final
class _Adaptive:
    def __init__(
        self, how: Adaptive, rate: float, scale: float, initial: torch.Tensor, trained: int
    ) -> None:
        self._how = how
        self._rate = rate
        self._scale = scale
        self._first = torch.zeros_like(initial[:trained])
        self._second = torch.full_like(initial[:trained], how.epsilon**2)
        self._largest = self._second.clone()

    def step(self, direction: torch.Tensor, delay: int) -> torch.Tensor:
        how, trained = self._how, len(self._first)
        moved = self._scale * direction
        g = moved[:trained]
        square = g.square()
        self._first = how.beta1 * self._first + (1 - how.beta1) * g
        if how.rule == "yogi":
            sign = torch.sign(self._second - square)
            self._second = self._second - (1 - how.beta2) * sign * square
        else:
            self._second = how.beta2 * self._second + (1 - how.beta2) * square
        self._largest = torch.maximum(self._largest, self._second)
        spread = self._largest if how.rule == "fadas" else self._second
        rate = self._rate
        if how.rule == "fadas" and delay > how.patience:
            rate = min(rate, 1.0 / delay)
        step = rate * self._first / (spread.sqrt() + how.epsilon)
        return torch.cat([step, moved[trained:]])

    def state(self) -> dict[str, torch.Tensor]:
        return {"first": self._first, "second": self._second, "largest": self._largest}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._first = state["first"].to(self._first)
        self._second = state["second"].to(self._second)
        self._largest = state["largest"].to(self._largest)
