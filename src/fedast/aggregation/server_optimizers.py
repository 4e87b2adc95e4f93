"""Server optimizers: how the model moves along a round's direction.

The direction is the mean update, a mean gradient; times eta_c tau it is what the
clients' models moved on average, g (before minus after). With the server
learning rate eta_s the model takes the step

- ``sgd``:      eta_s g (FedAvg at eta_s = 1; the paper's rule),
- ``momentum``: eta_s v with v = beta v + g (Hsu, Qi, Brown: "Measuring the
  Effects of Non-Identical Data Distribution", 2019),
- ``adam``, ``yogi``: eta_s m / (sqrt(v) + epsilon) with m and v the running
  first and second moments of g (Reddi et al.: "Adaptive Federated
  Optimization", ICLR 2021; no bias correction, v starts at epsilon^2),
- ``fadas``: the same with the largest v so far, and with the rate cut to one
  over the largest staleness of the round's updates where that staleness is above a
  threshold (Wang, Wang, Lu, Chen: "FADAS", ICML 2024),
- ``delayed-nesterov``: eta_s (g + beta m), where m stays as it is for ``every`` rounds and then
  becomes beta m plus the mean of their g (Liu et al.: "Asynchronous Local-SGD Training for
  Language Modeling", 2024; why it lags: ``delayed_nesterov.py``).

Only parameters are stepped. Running statistics, such as those of batch
normalisation, are averaged over clients, whatever the optimizer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, final

from pydantic import Field

from fedast.parts.options import Options
from fedast.parts.registry import Registry

if TYPE_CHECKING:
    import torch

ADAPTIVE_LR = 0.01
"""The default server learning rate of adaptive optimizers: their step does not scale
with the updates."""


class ServerOptimizer(Protocol):
    """One task's optimizer at work, with what it remembers."""

    def step(self, direction: torch.Tensor, staleness: int) -> torch.Tensor:
        """What to subtract from the model; ``staleness`` is the largest among the round's
        updates."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """What it remembers, by name."""
        ...

    def restore(self, state: Mapping[str, torch.Tensor]) -> None: ...


class ServerOptimizerOptions(Options, ABC):
    """Options of a server optimizer."""

    adaptive: ClassVar[bool] = False
    """Whether the step's length is the learning rate itself, whatever the updates' length."""

    def complete(self, staleness: float) -> Self:
        """With what depends on the expected mean staleness (R/b) filled in, as ``config.toml``
        keeps it."""
        return self

    @abstractmethod
    def build(
        self, initial: torch.Tensor, trained: int, *, lr: float, scale: float
    ) -> ServerOptimizer:
        """Ready to step models like ``initial``, whose first ``trained`` entries are trained.

        ``lr`` is eta_s and ``scale`` eta_c tau.
        """


class SGD(ServerOptimizerOptions):
    """The model steps by server_lr times the mean update (the paper)."""

    name: ClassVar[str] = "sgd"

    def build(
        self, initial: torch.Tensor, trained: int, *, lr: float, scale: float
    ) -> ServerOptimizer:
        return _SGD(lr * scale)


class Momentum(ServerOptimizerOptions):
    """Server momentum (FedAvgM)."""

    name: ClassVar[str] = "momentum"
    beta: float = Field(0.9, ge=0, lt=1)
    """What is kept of the last step; 0 is sgd."""

    def build(
        self, initial: torch.Tensor, trained: int, *, lr: float, scale: float
    ) -> ServerOptimizer:
        return _Momentum(self.beta, lr * scale, initial, trained)


class _Adaptive(ServerOptimizerOptions):
    adaptive = True

    beta1: float = Field(0.9, ge=0, lt=1)
    """What is kept of the first moment."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """What is kept of the second moment."""
    epsilon: float = Field(1e-3, gt=0, le=1)
    """Added to the square root of the second moment, which starts at its square."""

    def build(
        self, initial: torch.Tensor, trained: int, *, lr: float, scale: float
    ) -> ServerOptimizer:
        rule = _Rule(
            self.beta1,
            self.beta2,
            self.epsilon,
            yogi=isinstance(self, Yogi),
            patience=self.patience if isinstance(self, Fadas) else None,
        )
        return _Moments(rule, lr, scale, initial, trained)


class Adam(_Adaptive):
    """FedAdam. Adaptive optimizers have a server_lr of 0.01, unless the task sets its own."""

    name: ClassVar[str] = "adam"


class Yogi(_Adaptive):
    """FedYogi."""

    name: ClassVar[str] = "yogi"


class Fadas(_Adaptive):
    """FADAS: adaptive, with a rate of at most one over the staleness where updates come late."""

    name: ClassVar[str] = "fadas"
    patience: int = Field(10, ge=1)
    """Above this largest staleness s of a round's updates the rate is at most 1/s (which matters
    where server_lr is above that: at 0.01 only for a staleness above 100)."""


SERVER_OPTIMIZERS: Registry[ServerOptimizerOptions] = Registry(
    "server_optimizers",
    ServerOptimizerOptions,  # type: ignore[type-abstract]
    [__name__, "fedast.aggregation.delayed_nesterov"],
)


@final
class _SGD:
    def __init__(self, rate: float) -> None:
        self._rate = rate

    def step(self, direction: torch.Tensor, staleness: int) -> torch.Tensor:
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
        self._velocity = initial.new_zeros(trained)

    def step(self, direction: torch.Tensor, staleness: int) -> torch.Tensor:
        trained = len(self._velocity)
        self._velocity = self._beta * self._velocity + direction[:trained]
        step = self._rate * direction
        step[:trained] = self._rate * self._velocity
        return step

    def state(self) -> dict[str, torch.Tensor]:
        return {"velocity": self._velocity}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._velocity = state["velocity"].to(self._velocity)


@dataclass(frozen=True, slots=True)
class _Rule:
    beta1: float
    beta2: float
    epsilon: float
    yogi: bool
    patience: int | None
    """The staleness up to which FADAS keeps its rate."""


@final
class _Moments:
    def __init__(
        self, rule: _Rule, lr: float, scale: float, initial: torch.Tensor, trained: int
    ) -> None:
        self._rule = rule
        self._lr = lr
        self._scale = scale
        self._first = initial.new_zeros(trained)
        self._second = initial.new_full((trained,), rule.epsilon**2)
        self._largest = self._second.clone()

    def step(self, direction: torch.Tensor, staleness: int) -> torch.Tensor:
        rule, trained = self._rule, len(self._first)
        moved = self._scale * direction
        g = moved[:trained]
        square = g.square()
        self._first = rule.beta1 * self._first + (1 - rule.beta1) * g
        if rule.yogi:
            sign = (self._second - square).sign()
            self._second = self._second - (1 - rule.beta2) * sign * square
        else:
            self._second = rule.beta2 * self._second + (1 - rule.beta2) * square
        self._largest = self._largest.maximum(self._second)
        spread = self._second if rule.patience is None else self._largest
        lr = self._lr
        if rule.patience is not None and staleness > rule.patience:
            lr = min(lr, 1.0 / staleness)
        step = moved.clone()
        step[:trained] = lr * self._first / (spread.sqrt() + rule.epsilon)
        return step

    def state(self) -> dict[str, torch.Tensor]:
        return {"first": self._first, "second": self._second, "largest": self._largest}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._first = state["first"].to(self._first)
        self._second = state["second"].to(self._second)
        self._largest = state["largest"].to(self._largest)
