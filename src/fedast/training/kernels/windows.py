"""Convolution, ReLU and 2x2 max pooling of stacked copies on a CPU, as matrix products.

What is under one pooling window depends on (k + 1) x (k + 1) pixels of every channel: a column. A
matrix that holds the weights four times, moved by one pixel each time, makes the four values of the
window from it, so there are a quarter as many columns as there are places of the convolution. The
samples come last in memory, so that everything else is done on long contiguous rows.

With few channels this takes about half as long as torch's own convolution and pooling. With
many it does not, because the matrix has (1 + 1/k)^2 times as many entries as are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import nn
from torch.nn.functional import pad

from fedast.training.kernels.net import Descent
from fedast.training.kernels.products import product

_FEW = 128
"""The most pairs of an input and an output channel for which it is done; more was not measured."""


def fits(conv: nn.Conv2d) -> bool:
    """Whether a convolution (of stride 1, without dilation and groups) is one to be done so."""
    height, width = conv.kernel_size
    return (
        height == width
        and height % 2 == 1
        and conv.in_channels * conv.out_channels <= _FEW
        and not conv.weight.is_cuda
    )


@final
class ConvPool:
    parameters = 2

    def __init__(self, layer: nn.Conv2d, copies: int, descent: Descent) -> None:
        assert not isinstance(layer.padding, str)
        self._keep = 1.0 - descent.rate * descent.decay
        self._rate = descent.rate
        self._padding = tuple(layer.padding)
        self._weight = layer.weight.new_zeros((copies, *layer.weight.shape))
        self._bias = layer.weight.new_zeros((copies, layer.out_channels))
        outputs, inputs, self._size, _ = layer.weight.shape
        self._room: _Room | None
        side = self._size + 1
        # The weights at the four offsets, and the bias as a last column.
        self._moved = self._weight.new_zeros((copies, 2, 2, outputs, inputs * side * side + 1))
        self._matrix = self._moved.view(copies, 4 * outputs, -1)
        self._gradient = torch.zeros_like(self._moved)
        # Views are made once: in nets as small as these they take as long as the arithmetic.
        self._places = _places(self._moved, self._size)
        self._d_places = _places(self._gradient, self._size)
        self._shape: Sequence[int] = ()
        self.forget()

    def forget(self) -> None:
        self._room = None
        self._shape = ()

    def load(self, given: list[torch.Tensor]) -> None:
        self._weight.copy_(given[0])
        self._bias.copy_(given[1])

    def read(self) -> list[torch.Tensor]:
        return [self._weight, self._bias]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._room is None or x.shape != self._shape:
            self._shape = x.shape
            self._room = _Room(x, self._matrix, self._size, self._padding)
        room = self._room
        room.fill(x)
        torch._foreach_copy_(self._places, [self._weight] * 4)
        self._moved[..., -1] = self._bias[:, None, None]
        product(self._matrix, room.columns, out=room.under)
        # The sign of a difference says which of two values is the larger one (of equal ones the
        # first wins, as in torch); the backward pass goes by it.
        torch.sub(room.right, room.left, out=room.sideways)
        torch.maximum(room.left, room.right, out=room.rows)
        torch.sub(room.below, room.above, out=room.down)
        torch.maximum(room.above, room.below, out=room.pooled).relu_()
        return room.y

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        room = self._room
        assert room is not None
        masked = torch.ops.aten.threshold_backward.grad_input
        d_pooled = dy.permute(0, 2, 3, 4, 1).reshape(room.pooled.shape)
        d_pooled = torch.ops.aten.threshold_backward(d_pooled, room.pooled, 0)
        # What was made in the forward pass is not needed any more, so its place can be taken.
        masked(d_pooled, room.down, 0, grad_input=room.below)
        torch.sub(d_pooled, room.below, out=room.above)
        masked(room.rows, room.sideways, 0, grad_input=room.right)
        torch.sub(room.rows, room.right, out=room.left)
        dx = room.spread(self._matrix) if wants_dx else dy
        product(room.under, room.columns.mT, out=self._gradient.view_as(self._matrix))
        if self._keep != 1.0:
            torch._foreach_mul_([self._weight, self._bias], self._keep)
        for one in self._d_places:
            self._weight.sub_(one, alpha=self._rate)
        self._bias.sub_(self._gradient[..., -1].sum(dim=(1, 2)), alpha=self._rate)
        return dx


def _places(matrix: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Where the four sets of weights are in a matrix, each shaped like the weights."""
    square = torch.unflatten(matrix[..., :-1], -1, (-1, size + 1, size + 1))
    return [
        square[:, down, right, :, :, down : down + size, right : right + size]
        for down in (0, 1)
        for right in (0, 1)
    ]


@final
class _Room:
    """Memory for inputs of one shape, and the views of it that are needed at every step."""

    def __init__(
        self, x: torch.Tensor, matrix: torch.Tensor, size: int, padding: tuple[int, ...]
    ) -> None:
        copies, samples, channels, height, width = x.shape
        (top, left), half = padding, (size + 1) // 2
        high, wide = (height + 2 * top - size + 1) // 2, (width + 2 * left - size + 1) // 2
        tall, broad = high + half - 1, wide + half - 1
        outputs, depth = matrix.shape[1] // 4, matrix.shape[2] - 1
        count = high * wide * samples
        self._sides = high, wide, tall, broad
        self._padded = left, 2 * broad - width - left, top, 2 * tall - height - top
        # The last row multiplies the bias.
        self.columns = x.new_ones((copies, depth + 1, count))
        self._windows = self.columns[:, :-1].view(
            copies, channels, half, 2, half, 2, high, wide, samples
        )
        self._pixels = x.new_empty((copies, channels, 2, 2, tall, broad, samples))
        self._pixels = self._pixels.permute(0, 1, 4, 2, 5, 3, 6)
        self.under = x.new_empty((copies, 4 * outputs, count))
        apart = self.under.view(copies, 2, 2, outputs, count)
        self.left, self.right = apart.unbind(2)
        self.rows = x.new_empty((copies, 2, outputs, count))
        self.sideways = torch.empty_like(self.rows)
        self.above, self.below = self.rows.unbind(1)
        self.down, self.pooled = x.new_empty((2, copies, outputs, count)).unbind()
        y = self.pooled.view(copies, outputs, high, wide, samples)
        self.y = y.permute(0, 4, 1, 2, 3)
        # The gradient of the input: every column's goes back to its pixels.
        self._d_columns = x.new_empty((copies, depth, count))
        sides = max(height + 2 * top, 2 * tall), max(width + 2 * left, 2 * broad)
        self._d_all = x.new_zeros((copies, channels, *sides, samples))
        self._dx = self._d_all[:, :, top : top + height, left : left + width]
        d_windows = self._d_columns.view(self._windows.shape)
        blocks = self._blocks(self._d_all[:, :, : 2 * tall, : 2 * broad])
        self._d_parts = [
            (
                blocks[:, :, down : down + high, :, right : right + wide],
                d_windows[:, :, down, :, right].permute(0, 1, 4, 2, 5, 3, 6),
            )
            for down in range(half)
            for right in range(half)
        ]

    def _blocks(self, pixels: torch.Tensor) -> torch.Tensor:
        """(copy, channel, row, column, sample) with rows and columns in pairs."""
        _, _, tall, broad = self._sides
        return torch.unflatten(torch.unflatten(pixels, 3, (broad, 2)), 2, (tall, 2))

    def fill(self, x: torch.Tensor) -> None:
        """Put the pixels into the columns."""
        if any(self._padded):
            x = pad(x, self._padded)
        pixels = self._blocks(x.permute(0, 2, 3, 4, 1))
        if not pixels.is_contiguous():  # as another such layer makes them
            pixels = self._pixels.copy_(pixels)
        high, wide, _, _ = self._sides
        pixels = pixels.unfold(2, high, 1).unfold(4, wide, 1)
        self._windows.copy_(pixels.permute(0, 1, 2, 3, 4, 5, 7, 8, 6))

    def spread(self, matrix: torch.Tensor) -> torch.Tensor:
        product(matrix[:, :, :-1].mT, self.under, out=self._d_columns)
        self._d_all.zero_()
        for there, here in self._d_parts:
            there.add_(here)
        return self._dx.permute(0, 4, 1, 2, 3)
