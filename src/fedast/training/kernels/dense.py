"""Linear layers of stacked copies, each with the ReLU that may follow it, on a GPU.

One kernel goes forward and one back. The latter reads each weight once: it makes
the gradient of the inputs and steps the weight on the way. Products are in TF32,
as torch's are. With many samples (evaluation) torch's own operations are used.
"""

from __future__ import annotations

from typing import Any, TypeAlias, final

import torch
import triton
from torch import nn

from fedast.training.kernels import dense_kernels as kernels
from fedast.training.kernels.layers import Linear
from fedast.training.kernels.net import Descent

Tensors: TypeAlias = list[torch.Tensor]

MOST = 64
"""The most samples that the kernels take: one tile holds all of a copy's."""

FORWARD: dict[str, int] = {"BN": 64, "BK": 32, "num_warps": 4, "num_stages": 5}
BACKWARD: dict[str, int] = {"BN": 64, "BK": 64, "num_warps": 4, "num_stages": 1}
FIRST_BACKWARD: dict[str, int] = {"BN": 64, "BK": 64, "num_warps": 2, "num_stages": 2}
"""Tiles, as measured on an H200 with the nets of the paper; the last is of a layer whose inputs
need no gradient."""


@final
class Dense:
    parameters = 2

    def __init__(
        self, layer: nn.Linear, copies: int, descent: Descent, *, relu: bool, channels: int = 1
    ) -> None:
        """``channels``: so many are the last axis of the inputs, not their first."""
        self._linear = Linear(layer, copies, descent, channels=channels)
        self._relu = relu
        self._after_relu = False
        self._passed = False
        """Whether the gradient that comes back has been through the ReLU."""
        self._x = self._y = self._linear.weight

    def follow(self, other: Dense) -> None:
        """Take the place after another one, and pass gradients through its ReLU."""
        self._after_relu = other._passed = other._relu

    def load(self, given: Tensors) -> None:
        self._linear.load(given)

    def read(self) -> Tensors:
        return self._linear.read()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        copies, samples, _ = x.shape
        self._x = x = x.contiguous()
        if samples > MOST:
            y = self._linear.forward(x)
            self._y = y.relu_() if self._relu else y
            return self._y
        weight, outs = self._linear.weight, self._linear.weight.shape[1]
        self._y = x.new_empty((copies, samples, outs))
        kernels.forward[(triton.cdiv(outs, FORWARD["BN"]), copies)](
            x, weight, self._linear.bias, self._y, samples, RELU=self._relu,
            **self._shape(samples), **FORWARD,
        )  # fmt: skip
        return self._y

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        copies, samples, _ = dy.shape
        linear = self._linear
        if self._relu and not self._passed:
            dy = torch.ops.aten.threshold_backward(dy, self._y, 0)
        if samples > MOST:
            linear.x = self._x
            dx = linear.backward(dy, wants_dx)
            if wants_dx and self._after_relu:
                dx = torch.ops.aten.threshold_backward(dx, self._x, 0)
            return dx
        dx = torch.empty_like(self._x) if wants_dx else dy
        tile = BACKWARD if wants_dx else FIRST_BACKWARD
        kernels.backward[(triton.cdiv(linear.weight.shape[2], tile["BK"]), copies)](
            dy.contiguous(), self._x, linear.weight, linear.bias, dx,
            samples, linear.keep, linear.rate,
            WANTS_DX=wants_dx, AFTER_RELU=self._after_relu, **self._shape(samples), **tile,
        )  # fmt: skip
        return dx

    def forget(self) -> None:
        self._x = self._y = self._linear.weight
        self._linear.forget()

    def _shape(self, samples: int) -> dict[str, Any]:
        _, outs, ins = self._linear.weight.shape
        rows = max(16, int(triton.next_power_of_2(samples)))
        return {"IN": ins, "OUT": outs, "BS": rows}
