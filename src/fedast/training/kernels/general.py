"""Stacked copies of any module that torch.func can map over; the fallback, and a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from fedast.training.kernels.net import Descent, Layout


@final
class GeneralNet:
    saturated = None

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        copies: int,
        descent: Descent,
        used: tuple[bool, ...],
    ) -> None:
        """``used`` says which parameters the loss depends on; SGD leaves the others as they are."""
        self._module = module
        self._layout = Layout.of(module)
        self._descent = descent
        first = next(module.parameters())
        self._parameters = {
            name: first.new_zeros((copies, *shape))
            for name, shape in zip(self._layout.names, self._layout.shapes, strict=True)
        }
        self._trained = [
            name for name, takes_part in zip(self._layout.names, used, strict=True) if takes_part
        ]

        def one(
            parameters: dict[str, torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            return loss(functional_call(module, parameters, (inputs,)), labels)

        self._gradients = vmap(grad_and_value(one))

    def load(self, flat: torch.Tensor) -> None:
        for mine, given in zip(self._parameters.values(), self._layout.split(flat), strict=True):
            mine.copy_(given)

    def read(self) -> torch.Tensor:
        return self._layout.join(list(self._parameters.values()))

    def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self._module.train()  # an evaluation may have switched it to eval mode
        gradients, losses = self._gradients(self._parameters, inputs, labels)
        parameters = [self._parameters[name] for name in self._trained]
        keep = 1.0 - self._descent.rate * self._descent.decay
        torch._foreach_mul_(parameters, keep)
        torch._foreach_add_(
            parameters, [gradients[name] for name in self._trained], alpha=-self._descent.rate
        )
        assert isinstance(losses, torch.Tensor)
        return losses
