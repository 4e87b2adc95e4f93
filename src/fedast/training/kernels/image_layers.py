"""Convolution and max pooling of stacked copies, with torch's own operations."""

from __future__ import annotations

from typing import TypeAlias, final

import torch
from torch import nn
from torch.nn import functional

from fedast.training.kernels.net import Descent

Tensors: TypeAlias = list[torch.Tensor]


@final
class MaxPool:
    """2x2 windows that do not overlap. Of equal values the first wins, as in torch."""

    parameters = 0

    def __init__(self) -> None:
        self._shape = torch.Size()
        self._lower = self._right_above = self._right_below = torch.empty(0)

    def load(self, given: Tensors) -> None:
        pass

    def read(self) -> Tensors:
        return []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._shape = x.shape
        a, b, c, d = _corners(x)
        above, below = torch.maximum(a, b), torch.maximum(c, d)
        self._right_above, self._right_below = b > a, d > c
        self._lower = below > above
        return torch.maximum(above, below)

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        dx = dy.new_zeros(self._shape)
        a, b, c, d = _corners(dx)
        below = dy * self._lower
        above = dy - below
        torch.mul(above, self._right_above, out=b)
        torch.sub(above, b, out=a)
        torch.mul(below, self._right_below, out=d)
        torch.sub(below, d, out=c)
        return dx

    def forget(self) -> None:
        self._lower = self._right_above = self._right_below = torch.empty(0)


def _corners(x: torch.Tensor) -> Tensors:
    """The four pixels of all windows; an odd last row or column is in none."""
    high, wide = (side // 2 * 2 for side in x.shape[3:])
    x = x[..., :high, :wide]
    return [x[..., row::2, column::2] for row in (0, 1) for column in (0, 1)]


@final
class Conv:
    """Convolutions of stride one; all copies are groups of one convolution."""

    parameters = 2

    def __init__(self, layer: nn.Conv2d, copies: int, descent: Descent) -> None:
        self._keep = 1.0 - descent.rate * descent.decay
        self._rate = descent.rate
        assert not isinstance(layer.padding, str)
        self._padding = tuple(layer.padding)
        self._copies = copies
        self._weight = layer.weight.new_zeros((copies, *layer.weight.shape))
        self._bias = layer.weight.new_zeros((copies, layer.out_channels))
        self._x = self._weight

    def load(self, given: Tensors) -> None:
        self._weight.copy_(given[0])
        self._bias.copy_(given[1])

    def read(self) -> Tensors:
        return [self._weight, self._bias]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._x = _side_by_side(x)
        y = functional.conv2d(
            self._x,
            self._weight.flatten(0, 1),
            self._bias.flatten(),
            padding=self._padding,
            groups=self._copies,
        )
        return _apart(y, self._copies)

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        dx, dw, db = torch.ops.aten.convolution_backward(
            _side_by_side(dy),
            self._x,
            self._weight.flatten(0, 1),
            [self._bias.numel()],
            (1, 1),
            self._padding,
            (1, 1),
            False,
            (0, 0),
            self._copies,
            (wants_dx, True, True),
        )
        self._weight.mul_(self._keep).sub_(dw.view_as(self._weight), alpha=self._rate)
        self._bias.mul_(self._keep).sub_(db.view_as(self._bias), alpha=self._rate)
        return _apart(dx, self._copies) if wants_dx else dy

    def forget(self) -> None:
        self._x = self._weight


def _side_by_side(x: torch.Tensor) -> torch.Tensor:
    """(copy, sample, channel, ...) -> (sample, copy and channel, ...)"""
    return x.transpose(0, 1).flatten(1, 2)


def _apart(x: torch.Tensor, copies: int) -> torch.Tensor:
    return x.view(len(x), copies, -1, *x.shape[2:]).transpose(0, 1)
