"""Stacked copies of any module that torch.func can map over; the fallback, and a reference."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, final

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedast.tasks.task import Training
from fedast.training.kernels.mapping import has_kernels
from fedast.training.kernels.net import Layout, Precision
from fedast.training.kernels.stacked_attention import StackedAttention
from fedast.training.kernels.stacked_conv import stacked_convolutions
from fedast.training.kernels.stacked_norm import stacked_norms
from fedast.training.kernels.stacked_recurrent import stacked_recurrence
from fedast.training.stepping import Stepper

Tensors = dict[str, torch.Tensor]


@final
class GeneralNet:
    """Trained parameters and floating-point buffers have a row per copy. Frozen parameters and
    integer buffers (counters, masks) are kept once: they are the same for all."""

    takes = None

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        copies: int,
        how: Training,
        used: tuple[bool, ...],
        *,
        draws: bool = False,
        precision: Precision = "tf32",
    ) -> None:
        """``used`` says which parameters the loss depends on; the others stay as they are.
        ``draws``: the module draws random numbers. ``precision``: with fp16, convolutions on a GPU
        multiply in it."""
        self._module = module
        self._layout = Layout.of(module)
        self._how = how
        first = next(p for p in module.parameters() if p.requires_grad)

        def stacked(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().expand(copies, *tensor.shape).clone()

        named, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        self._parameters = {name: stacked(named[name]) for name in self._layout.names}
        self._frozen = {n: p.detach().clone() for n, p in named.items() if not p.requires_grad}
        self._buffers = {n: stacked(b) for n, b in buffers.items() if b.is_floating_point()}
        self._initial = {n: b.clone() for n, b in buffers.items() if not b.is_floating_point()}
        self._counters = {name: value.clone() for name, value in self._initial.items()}
        self._trained = [
            name for name, takes_part in zip(self._layout.names, used, strict=True) if takes_part
        ]
        convolves = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
        half = precision == "fp16" and convolves and has_kernels(first)
        self.saturated = first.new_zeros(copies, dtype=torch.int32) if half else None
        self._convolutions = stacked_convolutions(first, self.saturated)
        self._norms = stacked_norms(first)
        self._attention: StackedAttention | None = StackedAttention()
        self._recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
        optimizer = how.client_optimizer
        self.lr = first.new_zeros(copies) if optimizer.schedule.use != "constant" else None
        trained = [self._parameters[name] for name in self._trained]
        self._stepper = None if optimizer.plain else Stepper(how, trained, stacked=True)

        def one(
            parameters: Tensors, buffers: Tensors, counters: Tensors, inputs: Any, labels: Any
        ) -> tuple[torch.Tensor, tuple[Tensors, Tensors]]:
            state = {name: value.clone() for name, value in {**buffers, **counters}.items()}
            everything = {**parameters, **self._frozen, **state}
            outputs = functional_call(module, everything, (inputs,))
            after = [{name: everything[name] for name in part} for part in (buffers, counters)]
            return loss(outputs, labels), (after[0], after[1])

        self._gradients = vmap(
            grad_and_value(one, has_aux=True),
            in_dims=(0, 0, None, 0, 0),
            out_dims=(0, (0, (0, None))),  # type: ignore[arg-type]
            randomness="different" if draws else "error",
        )

    def load(self, flat: torch.Tensor) -> None:
        parts = iter(
            torch.split(flat, [piece[0].numel() for piece in self._parameters.values()]
                        + [piece.numel() for piece in self._frozen.values()]
                        + [piece[0].numel() for piece in self._buffers.values()], dim=1)
        )  # fmt: skip
        for mine in self._parameters.values():
            mine.copy_(next(parts).reshape(mine.shape))
        for mine in self._frozen.values():
            mine.copy_(next(parts)[0].reshape(mine.shape))
        for mine in self._buffers.values():
            mine.copy_(next(parts).reshape(mine.shape))
        for name, mine in self._counters.items():
            mine.copy_(self._initial[name])
        if self.saturated is not None:
            self.saturated.zero_()
        if self._stepper is not None:
            self._stepper.begin()

    def read(self) -> torch.Tensor:
        copies = len(next(iter(self._parameters.values())))
        frozen = [piece.expand(copies, *piece.shape) for piece in self._frozen.values()]
        return Layout.join([*self._parameters.values(), *frozen, *self._buffers.values()])

    def step(self, inputs: Any, labels: Any) -> torch.Tensor:
        self._module.train()  # an evaluation may have switched it to eval mode
        recurrence = stacked_recurrence() if self._recurrent else nullcontext()
        attention = self._attention or nullcontext()
        # What ``StackedAttention`` does not know cannot be mapped over in torch's fused form.
        with sdpa_kernel(SDPBackend.MATH), attention, recurrence, self._convolutions, self._norms:
            gradients, (losses, (buffers, counters)) = self._gradients(
                self._parameters, self._buffers, self._counters, inputs, labels
            )
        if self._attention is not None and not self._attention.used:
            self._attention = None  # looking at every operation takes time
        for mine, new in ((self._buffers, buffers), (self._counters, counters)):
            for name, value in mine.items():
                value.copy_(new[name])
        found = [gradients[name] for name in self._trained]
        if self._stepper is not None:
            self._stepper.step(found, self._how.client_lr if self.lr is None else self.lr)
        else:  # the same for all parameters at once, which is faster
            parameters = [self._parameters[name] for name in self._trained]
            torch._foreach_mul_(parameters, 1.0 - self._how.client_lr * self._how.weight_decay)
            torch._foreach_add_(parameters, found, alpha=-self._how.client_lr)
        assert isinstance(losses, torch.Tensor)
        return losses
