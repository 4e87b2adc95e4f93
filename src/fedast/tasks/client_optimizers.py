"""Client optimizers: how a client's copy of the model moves in every local step.

- ``sgd``:   p <- p - lr g, with momentum v <- momentum v + g and p <- p - lr v (Nesterov:
  p - lr (g + momentum v)),
- ``adam``:  Kingma, Ba: "Adam", ICLR 2015,
- ``adamw``: Loshchilov, Hutter: "Decoupled Weight Decay Regularization", ICLR 2019.

All take the step of the class of that name in ``torch.optim``. The learning rate is the task's
``client_lr``, and weight decay the task's ``weight_decay``: ``adamw`` shrinks the parameters by it,
the others add it to the gradient. With any of them, FedProx's term pulls towards the model that
the client was given (Li et al.: "Federated Optimization in Heterogeneous Networks", MLSys 2020),
the gradient can be clipped, and the learning rate can fall by a schedule.

**Clients are stateless**: moments start at zero with every request, and nothing of them is sent.
An update is still what the model moved, divided by client_lr and the number of steps, so the
server's step is the same fraction of that movement whatever the clients' optimizer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, TypeAlias, final

from pydantic import BeforeValidator, Field, model_validator

from fedast.parts.options import Options, Section
from fedast.parts.registry import Registry

if TYPE_CHECKING:
    import torch

    Rate: TypeAlias = float | torch.Tensor


class ClientOptimizer(Protocol):
    """The rule of an optimizer; what it remembers is kept for it.

    Tensors are one parameter of one client, or of many clients at once with another axis in
    front. So it must treat every entry by itself; one that does not is only used serially.
    """

    def state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """What it remembers of a parameter, by name: tensors of zeros, as a training begins."""
        ...

    def step(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: Mapping[str, torch.Tensor],
        lr: Rate,
    ) -> None:
        """Change parameter and state in place. ``lr`` is a number, or a tensor to multiply by."""
        ...


class Schedule(Section):
    """How the clients' learning rate falls from ``client_lr``."""

    use: Literal["constant", "linear", "cosine"] = "constant"
    """constant: it does not."""
    final: float = Field(0.0, ge=0, le=1)
    """The part of ``client_lr`` that is left at the end."""
    rounds: int | None = Field(None, ge=1)
    """It falls over so many rounds and stays there; the round is that of the model that the client
    is given. Default: over the steps of every local training, and starts anew with the next."""

    def factors(self, steps: int, version: int) -> list[float]:
        """What ``client_lr`` is multiplied by in each step from the model of a round."""
        if self.rounds is not None:
            return [self._at(min(version / self.rounds, 1.0))] * steps
        return [self._at(step / steps) for step in range(steps)]

    def _at(self, part: float) -> float:
        if self.use == "constant":
            return 1.0
        left = 1.0 - part if self.use == "linear" else (1.0 + math.cos(math.pi * part)) / 2.0
        return self.final + (1.0 - self.final) * left


def _table(given: object) -> object:
    return {"use": given} if isinstance(given, str) else given


class ClientOptimizerOptions(Options, ABC):
    """Options of a client optimizer; those here hold for all of them."""

    proximal: float = Field(0.0, ge=0, le=1e6)
    """FedProx's mu: mu/2 times the squared distance from the model that the client was given is
    added to the loss (not to the one that is reported)."""
    clip: float | None = Field(None, gt=0)
    """A longer gradient of a step (FedProx's term included) is shortened to this norm."""
    schedule: Annotated[Schedule, BeforeValidator(_table)] = Schedule()
    """How the learning rate falls: constant, linear, cosine, or a table such as
    { use = "cosine", final = 0.1, rounds = 200 }."""

    @property
    def plain(self) -> bool:
        """Whether a step is p <- p - lr (g + decay p), which hand-written kernels can do."""
        return False

    @abstractmethod
    def build(self, *, weight_decay: float) -> ClientOptimizer: ...


class SGD(ClientOptimizerOptions):
    """Stochastic gradient descent (the paper), with momentum if that is set."""

    name: ClassVar[str] = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    """What is kept of the last step; it starts at zero with every request."""
    nesterov: bool = False
    """Nesterov's momentum."""

    @model_validator(mode="after")
    def _matching(self) -> SGD:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        return self

    @property
    def plain(self) -> bool:
        extras = self.momentum or self.proximal or self.clip is not None
        return not extras and self.schedule.use == "constant"

    def build(self, *, weight_decay: float) -> ClientOptimizer:
        return _SGD(weight_decay, self.momentum, self.nesterov)


class _Moments(ClientOptimizerOptions):
    beta1: float = Field(0.9, ge=0, lt=1)
    """What is kept of the first moment."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """What is kept of the second moment."""
    epsilon: float = Field(1e-8, gt=0, le=1)
    """Added to the square root of the second moment."""

    def build(self, *, weight_decay: float) -> ClientOptimizer:
        return _Adam(
            (self.beta1, self.beta2), self.epsilon, weight_decay, decoupled=isinstance(self, AdamW)
        )


class Adam(_Moments):
    """Adam. A step moves each parameter by about client_lr, which must be far below SGD's."""

    name: ClassVar[str] = "adam"


class AdamW(_Moments):
    """Adam with weight decay that shrinks the parameters instead of changing the gradient."""

    name: ClassVar[str] = "adamw"


CLIENT_OPTIMIZERS: Registry[ClientOptimizerOptions] = Registry(
    "client_optimizers",
    ClientOptimizerOptions,  # type: ignore[type-abstract]
    [__name__],
)


@final
class _SGD:
    def __init__(self, weight_decay: float, momentum: float, nesterov: bool) -> None:
        self._decay = weight_decay
        self._momentum = momentum
        self._nesterov = nesterov

    def state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"velocity": parameter.new_zeros(parameter.shape)} if self._momentum else {}

    def step(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: Mapping[str, torch.Tensor],
        lr: Rate,
    ) -> None:
        direction = gradient.add(parameter, alpha=self._decay)
        if self._momentum:
            velocity = state["velocity"].mul_(self._momentum).add_(direction)
            if self._nesterov:
                direction.add_(velocity, alpha=self._momentum)
            else:
                direction = velocity
        if isinstance(lr, float):
            parameter.sub_(direction, alpha=lr)
        else:
            parameter.sub_(lr * direction)


@final
class _Adam:
    def __init__(
        self, betas: tuple[float, float], epsilon: float, weight_decay: float, *, decoupled: bool
    ) -> None:
        self._betas = betas
        self._epsilon = epsilon
        self._decay = weight_decay
        self._decoupled = decoupled

    def state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        import torch

        return {
            "first": parameter.new_zeros(parameter.shape),
            "second": parameter.new_zeros(parameter.shape),
            # Counted on the device, where a captured graph can count it; in double precision,
            # because one minus a power of beta2 has few digits left in single.
            "steps": parameter.new_zeros((), dtype=torch.float64),
        }

    def step(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: Mapping[str, torch.Tensor],
        lr: Rate,
    ) -> None:
        beta1, beta2 = self._betas
        steps = state["steps"].add_(1)
        if self._decoupled:
            parameter.mul_(1 - lr * self._decay)
        else:
            gradient = gradient.add(parameter, alpha=self._decay)
        first = state["first"].lerp_(gradient, 1 - beta1)
        second = state["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = (second / (1 - beta2**steps)).sqrt_().add_(self._epsilon)
        parameter.sub_(lr * (first / (1 - beta1**steps)) / spread)
