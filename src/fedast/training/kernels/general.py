"""Stacked copies of any module that torch.func can map over; the fallback, and a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from fedast.tasks.task import Training
from fedast.training.kernels.net import Layout
from fedast.training.stepping import Stepper


@final
class GeneralNet:
    saturated = None

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        copies: int,
        how: Training,
        used: tuple[bool, ...],
    ) -> None:
        """``used`` says which parameters the loss depends on; the others stay as they are."""
        self._module = module
        self._layout = Layout.of(module)
        self._how = how
        first = next(module.parameters())
        self._parameters = {
            name: first.new_zeros((copies, *shape))
            for name, shape in zip(self._layout.names, self._layout.shapes, strict=True)
        }
        self._trained = [
            name for name, takes_part in zip(self._layout.names, used, strict=True) if takes_part
        ]
        optimizer = how.client_optimizer
        self.lr = first.new_zeros(copies) if optimizer.schedule.use != "constant" else None
        trained = [self._parameters[name] for name in self._trained]
        self._stepper = None if optimizer.plain else Stepper(how, trained, stacked=True)

        def one(
            parameters: dict[str, torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor
        ) -> torch.Tensor:
            return loss(functional_call(module, parameters, (inputs,)), labels)

        self._gradients = vmap(grad_and_value(one))

    def load(self, flat: torch.Tensor) -> None:
        for mine, given in zip(self._parameters.values(), self._layout.split(flat), strict=True):
            mine.copy_(given)
        if self._stepper is not None:
            self._stepper.begin()

    def read(self) -> torch.Tensor:
        return self._layout.join(list(self._parameters.values()))

    def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self._module.train()  # an evaluation may have switched it to eval mode
        gradients, losses = self._gradients(self._parameters, inputs, labels)
        found = [gradients[name] for name in self._trained]
        if self._stepper is not None:
            self._stepper.step(found, self._how.client_lr if self.lr is None else self.lr)
        else:  # the same for all parameters at once, which is faster
            parameters = [self._parameters[name] for name in self._trained]
            torch._foreach_mul_(parameters, 1.0 - self._how.client_lr * self._how.weight_decay)
            torch._foreach_add_(parameters, found, alpha=-self._how.client_lr)
        assert isinstance(losses, torch.Tensor)
        return losses
