"""Local steps with any client optimizer, of one client or of many side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from fedast.tasks.task import Training


def rates(how: Training, version: int) -> list[float]:
    """The learning rate of each step of a local training from the model of a round."""
    factors = how.client_optimizer.schedule.factors(how.local_steps, version)
    return [how.client_lr * factor for factor in factors]


@final
class Stepper:
    """Steps a model's parameters in place. What it remembers never moves, for captured graphs."""

    def __init__(self, how: Training, parameters: Sequence[torch.Tensor], *, stacked: bool) -> None:
        """``stacked``: parameters have a first axis of clients."""
        options = how.client_optimizer
        self._parameters = [parameter.detach() for parameter in parameters]
        self._stacked = stacked
        self._optimizer = options.build(weight_decay=how.weight_decay)
        self._clip = options.clip
        self._proximal = options.proximal
        self._given = [p.clone() for p in self._parameters] if options.proximal else []
        self._states = [self._optimizer.state(parameter) for parameter in self._parameters]

    @torch.no_grad()
    def begin(self) -> None:
        """A local training begins from the parameters as they are now, with nothing remembered."""
        for given, parameter in zip(self._given, self._parameters, strict=bool(self._given)):
            given.copy_(parameter)
        for state in self._states:
            for value in state.values():
                value.zero_()

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor | None], lr: float | torch.Tensor) -> None:
        """One step with one rate, or one per client; without a gradient a parameter stays."""
        found = [gradient for gradient in gradients if gradient is not None]
        here = [n for n, gradient in enumerate(gradients) if gradient is not None]
        if self._proximal:
            found = [
                gradient.add(self._parameters[n] - self._given[n], alpha=self._proximal)
                for n, gradient in zip(here, found, strict=True)
            ]
        if self._clip is not None and found:
            shrink = (self._clip / (self._norm(found) + 1e-6)).clamp(max=1.0)
            found = [gradient * self._spread(shrink, gradient) for gradient in found]
        for n, gradient in zip(here, found, strict=True):
            parameter = self._parameters[n]
            rate = lr if isinstance(lr, float) else self._spread(lr, parameter)
            self._optimizer.step(parameter, gradient, self._states[n], rate)

    def _norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Of all gradients together; of each client's, where they are stacked."""
        along = 1 if self._stacked else 0
        parts = [g.reshape(*g.shape[:along], -1).norm(dim=along) for g in gradients]
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack(parts), dim=0)
        return total

    def _spread(self, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """One value per client, shaped to multiply what has more axes."""
        return values.view(-1, *(1,) * (like.dim() - 1)) if self._stacked else values
