"""Convolution, ReLU and 2x2 max pooling of all copies in one kernel, and the backward pass.

Images have their channels last, so that a kernel row's pixels are contiguous in
memory, and channels are padded to multiples of four (with zeros, which stay
zeros), so that several are read at a time. A program makes a tile of outputs of
one copy: rows are pixels, including all four of a pooling window, columns are
channels. Only the pooled values, and which of the four pixels each came from,
are written; a window whose largest value is not positive is marked as dead.

The backward pass spreads the gradient over the pixels again, inside a border of
zeros: the gradient of the images is then an ordinary convolution with the
flipped kernel, and that of the weights a product of images and gradient.

In half precision, activations, gradients and a copy of the weights are stored
in it; sums and the weights that are stepped stay in single precision. fp16 has
as many digits as TF32 but a smaller range, so gradients are stored scaled up and
values that are too large are clipped; a copy in which that happened is marked.
"""

from __future__ import annotations

from typing import final

import torch
import triton
from torch import nn

from fedast.training.kernels import convolution_kernels as kernels
from fedast.training.kernels.net import Descent, Precision, gradient_scale

CONVOLVE: dict[str, int] = {"BM": 128, "BK": 64, "num_warps": 4, "num_stages": 3}
WEIGHTS: dict[str, int] = {"BM": 64, "BK": 128, "num_warps": 4, "num_stages": 3}
"""Tiles, as measured on an H200 with the nets of the paper."""

PROGRAMS = 1024
"""At least this many at a time keep a large GPU busy."""

_LARGEST = torch.finfo(torch.float16).max

_STORED = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def _block(size: int) -> int:
    """The next power of two, at least the 16 that a matrix unit takes."""
    return max(16, int(triton.next_power_of_2(size)))


def _large(x: torch.Tensor) -> bool:
    """Whether a place within one copy does not fit into 32 bits."""
    return x[0].numel() >= 1 << 31


def _padded(channels: int) -> int:
    """The next multiple of four, except for one or two channels, where padding does not pay off."""
    return channels if channels <= 2 else triton.cdiv(channels, 4) * 4


@final
class _Block:
    """One convolution with its ReLU and pooling."""

    def __init__(
        self,
        layer: nn.Conv2d,
        saturated: torch.Tensor,
        descent: Descent,
        precision: Precision,
        *,
        last: bool,
    ) -> None:
        """``saturated`` has a mark for each copy, which is set when a value is clipped."""
        copies = len(saturated)
        self._saturated = saturated
        self._keep = 1.0 - descent.rate * descent.decay
        self._copies = copies
        self._used = layer.out_channels, layer.in_channels
        self._in, self._out = _padded(layer.in_channels), _padded(layer.out_channels)
        self._size = int(layer.kernel_size[0])
        self._precision = "ieee" if precision == "fp32" else "tf32"
        self._limit = precision == "fp16"
        self.stored = _STORED[precision]
        self.gradient_scale = gradient_scale(self.stored)
        """Gradients between blocks are multiplied by this."""
        self._rate = descent.rate / self.gradient_scale
        self._last = last
        new = layer.weight.new_zeros
        shape = (copies, self._out, self._size, self._size, self._in)
        self._weight = new(shape)
        self._bias = new((copies, self._out))
        half = self.stored != self._weight.dtype
        self._copy = new(shape, dtype=self.stored) if half else self._weight
        # In single precision, matrix units take the weights in one order only.
        self._flipped = self._copy if half else new((copies, self._in, *shape[2:4], self._out))
        self._wide: torch.Tensor | None = None
        """The gradient of all pixels; its border stays zero."""
        self._x = self._y = self._place = self._weight

    def load(self, given: list[torch.Tensor]) -> None:
        outs, ins = self._used
        self._weight[:, :outs, :, :, :ins] = given[0].permute(0, 1, 3, 4, 2)
        self._bias[:, :outs] = given[1]
        bounded = self._weight
        if self._limit:
            bounded = bounded.clamp(-_LARGEST, _LARGEST)
            self._saturated |= (self._weight.abs() > _LARGEST).flatten(1).any(dim=1)
        self._copy.copy_(bounded)
        if self._flipped is not self._copy:
            self._flipped.copy_(bounded.permute(0, 4, 2, 3, 1).flip(2, 3))

    def read(self) -> list[torch.Tensor]:
        outs, ins = self._used
        return [
            self._weight[:, :outs, :, :, :ins].permute(0, 1, 4, 2, 3),
            self._bias[:, :outs],
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(copy, sample, height, width, channel) to the same, pooled."""
        samples, height, width = x.shape[1:4]
        pooled_h, pooled_w = (height - self._size + 1) // 2, (width - self._size + 1) // 2
        self._x = x
        self._y = x.new_empty(
            (self._copies, samples, pooled_h, pooled_w, self._out),
            dtype=torch.float32 if self._last else self.stored,
        )
        self._place = torch.empty_like(self._y, dtype=torch.uint8)
        self._convolve(x, self._copy, self._y, pool=True)
        return self._y

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        """Gradients come and go scaled up, except that the last block gets its own unscaled."""
        samples, pooled_h, pooled_w = dy.shape[1:4]
        height, width = self._x.shape[2:4]
        border = self._size - 1 if wants_dx else 0
        high, broad = (side - self._size + 1 + 2 * border for side in (height, width))
        shape = (self._copies, samples, high, broad, self._out)
        if self._wide is None or self._wide.shape != shape:
            self._wide = self._x.new_zeros(shape)
        outs, block = samples * pooled_h * pooled_w, 32
        sums = self._bias.new_empty(self._copies, triton.cdiv(outs, block), self._out)
        kernels.spread[(sums.shape[1], self._copies)](
            dy, self._place, self._wide, sums, self._saturated,
            self.gradient_scale if self._last else 1.0, samples,
            OUT_H=pooled_h, OUT_W=pooled_w, WIDE_H=high, WIDE_W=broad, BORDER=border,
            OUT=self._out, BM=block, BN=_block(self._out), LIMIT=self._limit,
            LARGE=_large(self._wide),
        )  # fmt: skip
        dx = dy
        if wants_dx:
            dx = torch.empty_like(self._x)
            self._convolve(self._wide, self._flipped, dx, pool=False)
        self._descend(self._wide, sums, border, flip=wants_dx)
        return dx

    def forget(self) -> None:
        self._x = self._y = self._place = self._weight

    def _convolve(
        self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, *, pool: bool
    ) -> None:
        samples, height, width, channels_in = x.shape[1:]
        out_h, out_w, channels_out = y.shape[2:]
        k = self._size * self._size * channels_in
        tile = CONVOLVE | ({} if k > 512 else {"BK": 32})
        if k <= 128:  # all in one pass
            tile |= {"BK": _block(k), "num_stages": 1}
        rows = (4 if pool else 1) * samples * out_h * out_w
        kernels.convolve[(triton.cdiv(rows, tile["BM"]), self._copies)](
            x, weight, self._bias, y, self._place, self._saturated, samples,
            HEIGHT=height, WIDTH=width, OUT_H=out_h, OUT_W=out_w,
            IN=channels_in, OUT=channels_out, SIZE=self._size, POOL=pool,
            FLIP=not pool and weight is self._copy, BN=_block(channels_out),
            PRECISION=self._precision, LIMIT=self._limit, LARGE=_large(x), **tile,
        )  # fmt: skip

    def _descend(self, wide: torch.Tensor, sums: torch.Tensor, border: int, *, flip: bool) -> None:
        samples, pooled_h, pooled_w = self._y.shape[1:4]
        k = self._weight[0, 0].numel()
        tile = WEIGHTS | {"BK": min(WEIGHTS["BK"], _block(k))}
        tiles = triton.cdiv(k, tile["BK"])
        rows = 4 * samples * pooled_h * pooled_w
        # Enough programs to fill a large GPU, but none with less than a few tiles to sum.
        shares = min(triton.cdiv(PROGRAMS, tiles * self._copies), triton.cdiv(rows, 4 * tile["BM"]))
        share = triton.cdiv(rows, shares * tile["BM"]) * tile["BM"]
        shares = triton.cdiv(rows, share)
        parts = self._weight.new_empty(self._copies, shares, *self._weight.shape[1:])
        kernels.weights[(tiles, self._copies, shares)](
            self._x, wide, parts, samples, share,
            HEIGHT=self._x.shape[2], WIDTH=self._x.shape[3],
            OUT_H=2 * pooled_h, OUT_W=2 * pooled_w, WIDE_H=wide.shape[2], WIDE_W=wide.shape[3],
            BORDER=border, IN=self._in, OUT=self._out, SIZE=self._size,
            BN=_block(self._out), PRECISION=self._precision,
            LARGE=_large(self._x) or _large(wide), **tile,
        )  # fmt: skip
        count = self._weight[0].numel()
        kernels.descend[(triton.cdiv(count, 1024), self._copies)](
            parts, sums, self._weight, self._bias, self._copy, self._flipped, self._saturated,
            self._keep, self._rate, shares, sums.shape[1],
            IN=self._in, OUT=self._out, SIZE=self._size, HALF=self._copy is not self._weight,
            FLIP=flip and self._flipped is not self._copy, LIMIT=self._limit, BLOCK=1024,
            BN=_block(self._out),
        )  # fmt: skip


@final
class ConvPools:
    """Blocks of convolution, ReLU and 2x2 max pooling, one after another."""

    def __init__(
        self, layers: list[nn.Conv2d], copies: int, descent: Descent, precision: Precision
    ) -> None:
        marks = layers[0].weight.new_zeros(copies, dtype=torch.int32)
        self.saturated = marks if precision == "fp16" else None
        self._blocks = [
            _Block(layer, marks, descent, precision, last=layer is layers[-1]) for layer in layers
        ]
        self._ins, self._outs = layers[0].in_channels, layers[-1].out_channels
        self.parameters = 2 * len(layers)

    def load(self, given: list[torch.Tensor]) -> None:
        if self.saturated is not None:
            self.saturated.zero_()
        for number, block in enumerate(self._blocks):
            block.load(given[2 * number : 2 * number + 2])

    def read(self) -> list[torch.Tensor]:
        return [part for block in self._blocks for part in block.read()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _channels_last(x, self._blocks[0].stored)
        for block in self._blocks:
            x = block.forward(x)
        return x[..., : self._outs].permute(0, 1, 4, 2, 3).contiguous()

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        dy = _channels_last(dy, dy.dtype)
        for number in reversed(range(len(self._blocks))):
            dy = self._blocks[number].backward(dy, wants_dx or number > 0)
        if not wants_dx:
            return dy
        dx = dy[..., : self._ins].permute(0, 1, 4, 2, 3)
        return dx.float() / self._blocks[0].gradient_scale

    def forget(self) -> None:
        for block in self._blocks:
            block.forget()


def _channels_last(x: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """(copy, sample, channel, height, width) to channels last, padded."""
    channels, last = x.shape[2], x.permute(0, 1, 3, 4, 2)
    shape, wide = last.shape[:-1], _padded(channels)
    y = (x.new_empty if wide == channels else x.new_zeros)((*shape, wide), dtype=stored)
    y[..., :channels] = last
    return y
