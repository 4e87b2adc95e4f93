"""Convolution, ReLU and 2x2 max pooling of all copies in one kernel, and the way back.

Images have their channels last, so that a kernel row's pixels lie side by side
in memory. A program makes a tile of outputs of one copy: rows are pixels, four
in a row one pooling window, columns are channels. Only the pooled values and
which of the four they came from are written; a window whose largest value is
not positive is marked dead.

On the way back the gradient is spread over the pixels again, with a border of
zeros: the gradient of the images is then a convolution like any other, with the
kernel turned round, and that of the weights a product of images and gradient.
"""

from __future__ import annotations

from typing import Any, final

import torch
import triton
import triton.language as tl
from torch import nn

from fedast.learn.stacked.net import Descent, Precision


@triton.jit
def _convolve(
    x, weight, bias, y, place,
    height, width, out_h, out_w, points, channels_in, channels_out,
    POOL: tl.constexpr, RUN: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """``out_h`` x ``out_w`` pixels or, with POOL, windows of four."""
    copy = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    outs = points * out_h * out_w
    if POOL:
        rows = 4 * outs
        window, corner = m // 4, m % 4
        b = window // (out_h * out_w)
        h = 2 * (window // out_w % out_h) + corner // 2
        w = 2 * (window % out_w) + corner % 2
    else:
        rows = outs
        b = m // (out_h * out_w)
        h = m // out_w % out_h
        w = m % out_w
    start = ((b * height + h) * width + w) * channels_in
    n = tl.arange(0, BN)
    image = x + copy * points * height * width * channels_in
    kernel = weight + copy * K * channels_out
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        if RUN % BK == 0:  # a tile lies within one row of the kernel: it is read in one go
            along = first // RUN * width * channels_in + first % RUN + tl.arange(0, BK)
        else:
            along = k // RUN * width * channels_in + k % RUN
        a = tl.load(
            image + start[:, None] + along[None, :],
            mask=(m < rows)[:, None] & (k < K)[None, :], other=0.0,
        )  # fmt: skip
        c = tl.load(
            kernel + n[None, :] * K + k[:, None],
            mask=(k < K)[:, None] & (n < channels_out)[None, :], other=0.0,
        )  # fmt: skip
        if HALF:
            total = tl.dot(a.to(tl.bfloat16), c.to(tl.bfloat16), total)
        else:
            total = tl.dot(a, c, total, input_precision=PRECISION)
    if POOL:
        total += tl.load(bias + copy * channels_out + n, mask=n < channels_out, other=0.0)[None, :]
        largest, where = tl.max(
            tl.reshape(total, (BM // 4, 4, BN)), axis=1, return_indices=True
        )  # fmt: skip
        q = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
        out = (copy * outs + q)[:, None] * channels_out + n[None, :]
        inside = (q < outs)[:, None] & (n < channels_out)[None, :]
        tl.store(y + out, tl.maximum(largest, 0.0), mask=inside)
        tl.store(place + out, tl.where(largest > 0.0, where, 4).to(tl.uint8), mask=inside)
    else:
        out = (copy * outs + m)[:, None] * channels_out + n[None, :]
        tl.store(y + out, total, mask=(m < outs)[:, None] & (n < channels_out)[None, :])


@triton.jit
def _spread(
    dy, place, wide, out_h, out_w, wide_h, wide_w, channels, border, total, BLOCK: tl.constexpr
):  # fmt: skip
    """From pooling windows to their four pixels, inside a border that is zero already."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    channel, window = at % channels, at // channels
    w, h, image = window % out_w, window // out_w % out_h, window // (out_w * out_h)
    pooled = tl.load(dy + at, mask=inside, other=0.0)
    came = tl.load(place + at, mask=inside, other=4)
    first = (image * wide_h + 2 * h + border) * wide_w + 2 * w + border
    for corner in tl.static_range(4):
        pixel = first + corner // 2 * wide_w + corner % 2
        tl.store(
            wide + pixel * channels + channel, tl.where(came == corner, pooled, 0.0), mask=inside
        )


@triton.jit
def _weights(
    x, wide, parts,
    height, width, wide_h, wide_w, channels_in, channels_out, border,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, POINTS: tl.constexpr, SHARE: tl.constexpr,
    RUN: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights from one share of the pixels; the shares are summed later."""
    copy = tl.program_id(1).to(tl.int64)
    share = tl.program_id(2)
    first_k = tl.program_id(0) * BK
    k = first_k + tl.arange(0, BK)
    n = tl.arange(0, BN)
    image = x + copy * POINTS * height * width * channels_in
    gradient = wide + copy * POINTS * wide_h * wide_w * channels_out
    if RUN % BK == 0:
        along = first_k // RUN * width * channels_in + first_k % RUN + tl.arange(0, BK)
    else:
        along = k // RUN * width * channels_in + k % RUN
    total = tl.zeros((BK, BN), dtype=tl.float32)
    for step in range(0, SHARE, BM):
        m = share * SHARE + step + tl.arange(0, BM)
        b, h, w = m // (OUT_H * OUT_W), m // OUT_W % OUT_H, m % OUT_W
        seen = m < POINTS * OUT_H * OUT_W
        start = ((b * height + h) * width + w) * channels_in
        a = tl.load(
            image + start[:, None] + along[None, :],
            mask=seen[:, None] & (k < K)[None, :], other=0.0,
        )  # fmt: skip
        at = ((b * wide_h + h + border) * wide_w + w + border) * channels_out
        d = tl.load(
            gradient + at[:, None] + n[None, :],
            mask=seen[:, None] & (n < channels_out)[None, :], other=0.0,
        )  # fmt: skip
        if HALF:
            total = tl.dot(tl.trans(a.to(tl.bfloat16)), d.to(tl.bfloat16), total)
        else:
            total = tl.dot(tl.trans(a), d, total, input_precision=PRECISION)
    slot = copy * tl.num_programs(2) + share
    at = parts + slot * K * channels_out + n[None, :] * K + k[:, None]
    tl.store(at, total, mask=(k < K)[:, None] & (n < channels_out)[None, :])


CONVOLVE: dict[str, int] = {"BM": 128, "BK": 64, "num_warps": 4, "num_stages": 3}
WEIGHTS: dict[str, int] = {"BM": 32, "BK": 64, "num_warps": 4, "num_stages": 3}
"""Tiles, as measured on an H200 with the nets of the paper."""


def _block(size: int) -> int:
    """The next power of two, at least the 16 that a matrix unit takes."""
    return max(16, int(triton.next_power_of_2(size)))


@final
class _Block:
    """One convolution with its ReLU and pooling."""

    def __init__(
        self, layer: nn.Conv2d, copies: int, descent: Descent, precision: Precision
    ) -> None:
        self._rate = descent.rate
        self._keep = 1.0 - descent.rate * descent.decay
        self._copies = copies
        self._in, self._out = layer.in_channels, layer.out_channels
        self._size = int(layer.kernel_size[0])
        new = layer.weight.new_zeros
        self._weight = new((copies, self._out, self._size, self._size, self._in))
        self._bias = new((copies, self._out))
        self._how: dict[str, Any] = {
            "PRECISION": "ieee" if precision == "fp32" else "tf32",
            "HALF": precision == "bf16",
        }
        self._x = self._y = self._place = self._weight

    def load(self, given: list[torch.Tensor]) -> None:
        self._weight.copy_(given[0].permute(0, 1, 3, 4, 2))
        self._bias.copy_(given[1])

    def read(self) -> list[torch.Tensor]:
        return [self._weight.permute(0, 1, 4, 2, 3), self._bias]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(copy, point, height, width, channel) to the same, pooled."""
        points, height, width = x.shape[1:4]
        pooled_h, pooled_w = (height - self._size + 1) // 2, (width - self._size + 1) // 2
        self._x = x
        self._y = x.new_empty(self._copies, points, pooled_h, pooled_w, self._out)
        self._place = torch.empty_like(self._y, dtype=torch.uint8)
        self._convolve(x, self._weight, self._y, self._in, self._out, pool=True)
        return self._y

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        points, height, width = self._x.shape[1:4]
        border = self._size - 1 if wants_dx else 0
        high, broad = (side - self._size + 1 + 2 * border for side in (height, width))
        wide = dy.new_zeros(self._copies, points, high, broad, self._out)
        _spread[(triton.cdiv(dy.numel(), 1024),)](
            dy, self._place, wide, *dy.shape[2:4], high, broad, self._out, border, dy.numel(),
            BLOCK=1024,
        )  # fmt: skip
        dx = dy
        if wants_dx:
            dx = torch.empty_like(self._x)
            turned = self._weight.permute(0, 4, 2, 3, 1).flip(2, 3).contiguous()
            self._convolve(wide, turned, dx, self._out, self._in, pool=False)
        self._descend(wide, border)
        return dx

    def _convolve(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        y: torch.Tensor,
        channels_in: int,
        channels_out: int,
        *,
        pool: bool,
    ) -> None:
        run = self._size * channels_in
        tile = CONVOLVE | {"BK": CONVOLVE["BK"] if self._size * run > 512 else 32}
        rows = (4 if pool else 1) * y.shape[1:4].numel()
        _convolve[(triton.cdiv(rows, tile["BM"]), self._copies)](
            x, weight, self._bias, y, self._place,
            *x.shape[2:4], *y.shape[2:4], y.shape[1], channels_in, channels_out,
            POOL=pool, RUN=run, K=self._size * run, BN=_block(channels_out), **tile, **self._how,
        )  # fmt: skip

    def _descend(self, wide: torch.Tensor, border: int) -> None:
        points, pooled_h, pooled_w = self._y.shape[1:4]
        run = self._size * self._in
        k = self._size * run
        tile = WEIGHTS | {"BK": WEIGHTS["BK"] if k > 512 else min(128, _block(k))}
        tiles = triton.cdiv(k, tile["BK"])
        shares = max(1, 16 // tiles)  # enough programs to fill a large GPU
        share = triton.cdiv(4 * points * pooled_h * pooled_w, shares * tile["BM"]) * tile["BM"]
        parts = wide.new_empty(self._copies, shares, *self._weight.shape[1:])
        _weights[(tiles, self._copies, shares)](
            self._x, wide, parts,
            *self._x.shape[2:4], *wide.shape[2:4], self._in, self._out, border,
            OUT_H=2 * pooled_h, OUT_W=2 * pooled_w, POINTS=points, SHARE=share,
            RUN=run, K=k, BN=_block(self._out), **tile, **self._how,
        )  # fmt: skip
        self._weight.mul_(self._keep).sub_(parts.sum(dim=1), alpha=self._rate)
        self._bias.mul_(self._keep).sub_(wide.sum(dim=(1, 2, 3)), alpha=self._rate)


@final
class ConvPools:
    """Blocks of convolution, ReLU and 2x2 max pooling, one after another."""

    def __init__(
        self, layers: list[nn.Conv2d], copies: int, descent: Descent, precision: Precision
    ) -> None:
        self._blocks = [_Block(layer, copies, descent, precision) for layer in layers]
        self.parameters = 2 * len(layers)

    def load(self, given: list[torch.Tensor]) -> None:
        for number, block in enumerate(self._blocks):
            block.load(given[2 * number : 2 * number + 2])

    def read(self) -> list[torch.Tensor]:
        return [part for block in self._blocks for part in block.read()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 1, 3, 4, 2).contiguous()
        for block in self._blocks:
            x = block.forward(x)
        return x.permute(0, 1, 4, 2, 3).contiguous()

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        dy = dy.permute(0, 1, 3, 4, 2).contiguous()
        for number in reversed(range(len(self._blocks))):
            dy = self._blocks[number].backward(dy, wants_dx or number > 0)
        return dy.permute(0, 1, 4, 2, 3) if wants_dx else dy
