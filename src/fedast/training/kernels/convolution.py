"""Convolution, ReLU and 2x2 max pooling of all copies in one kernel, and the way back.

Images have their channels last, so that a kernel row's pixels lie side by side
in memory, and channels are filled up to fours (with zeros, which stay zeros), so
that they are read several at a time. A program makes a tile of outputs of one
copy: rows are pixels, the four of a pooling window among them, columns are
channels. Only the pooled values and which of the four they came from are
written; a window whose largest value is not positive is marked dead.

On the way back the gradient is spread over the pixels again, inside a border of
zeros: the gradient of the images is then a convolution like any other, with the
kernel turned round, and that of the weights a product of images and gradient.

In half precision, activations, gradients and a copy of the weights are stored
in it; sums and the weights that are stepped stay in single precision. fp16 has
as many digits as TF32 but a smaller range, so gradients are stored enlarged and
whatever is too large is cut off; a copy in which that has happened is marked.
"""

from __future__ import annotations

from typing import final

import torch
import triton
import triton.language as tl
from torch import nn
from torch.nn import functional

from fedast.training.kernels.net import ENLARGED, Descent, Precision


@triton.jit
def _stored(value, mark, LIMIT: tl.constexpr):
    """Within what the number format holds, with a mark if that changes it; NaN stays NaN."""
    if LIMIT:
        tl.store(mark, 1, mask=tl.max(tl.abs(value)) > 65504.0)
        value = tl.clamp(value, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return value


@triton.jit
def _larger(a, b):
    """Also NaN, so that a model that has diverged is seen to have."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["samples"])
def _convolve(
    x, weight, bias, y, place, saturated, samples,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_H: tl.constexpr,
    OUT_W: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr,
    POOL: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, LIMIT: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """``OUT_H`` x ``OUT_W`` pixels or, with POOL, windows of four."""
    RUN: tl.constexpr = SIZE * IN
    K: tl.constexpr = SIZE * RUN
    outs = samples * OUT_H * OUT_W
    copy = tl.program_id(1).to(tl.int64)
    row = tl.arange(0, BM)
    if POOL:  # rows are numbered so that the matrix unit leaves a window's four in one thread
        corner = row // (BM // 2) * 2 + row // 8 % 2
        out = tl.program_id(0) * (BM // 4) + row % (BM // 2) // 16 * 8 + row % 8
        h = 2 * (out // OUT_W % OUT_H) + corner // 2
        w = 2 * (out % OUT_W) + corner % 2
    else:
        out = tl.program_id(0) * BM + row
        h = out // OUT_W % OUT_H
        w = out % OUT_W
    b = out // (OUT_H * OUT_W)
    if LARGE:
        b = b.to(tl.int64)
    start = ((b * HEIGHT + h) * WIDTH + w) * IN
    n = tl.arange(0, BN)
    image = x + copy * samples * (HEIGHT * WIDTH * IN)
    kernel = weight + copy * (K * OUT)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        along = k // RUN * (WIDTH * IN) + k % RUN
        a = tl.load(
            image + start[:, None] + along[None, :],
            mask=(out < outs)[:, None] & (k < K)[None, :], other=0.0,
        )  # fmt: skip
        c = tl.load(
            kernel + n[None, :] * K + k[:, None],
            mask=(k < K)[:, None] & (n < OUT)[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(a, c, total, input_precision=PRECISION)
    if POOL:
        added = tl.load(bias + copy * OUT + n, mask=n < OUT, other=0.0)[None, :]
        total += tl.where((out < outs)[:, None], added, 0.0)  # no mark for rows that are not there
        split = tl.permute(tl.reshape(total, (2, BM // 32, 2, 8, BN)), (1, 3, 4, 0, 2))
        left, right = tl.split(split)
        a0, a2 = tl.split(left)
        a1, a3 = tl.split(right)
        above, below = _larger(a0, a1), _larger(a2, a3)
        largest = _larger(above, below)
        where = tl.where(below > above, tl.where(a3 > a2, 3, 2), tl.where(a1 > a0, 1, 0))
        where = tl.where(largest > 0.0, where, 4).to(tl.uint8)
        q = tl.program_id(0) * (BM // 4) + tl.arange(0, BM // 4)
        at = (copy * outs + q)[:, None] * OUT + n[None, :]
        inside = (q < outs)[:, None] & (n < OUT)[None, :]
        largest = _stored(_larger(largest, 0.0), saturated + copy, LIMIT).to(y.dtype.element_ty)
        tl.store(y + at, tl.reshape(largest, (BM // 4, BN)), mask=inside)
        tl.store(place + at, tl.reshape(where, (BM // 4, BN)), mask=inside)
    else:
        at = (copy * outs + out)[:, None] * OUT + n[None, :]
        inside = (out < outs)[:, None] & (n < OUT)[None, :]
        total = _stored(total, saturated + copy, LIMIT)
        tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["samples"])
def _spread(
    dy, place, wide, sums, saturated, scale, samples,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, WIDE_H: tl.constexpr,
    WIDE_W: tl.constexpr, BORDER: tl.constexpr, OUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, LIMIT: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """From pooling windows to their four pixels, inside a border that is zero already.

    The sum over each program's windows is noted too: together, the bias's gradient.
    """
    copy = tl.program_id(1).to(tl.int64)
    outs = samples * OUT_H * OUT_W
    q = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    inside = (q < outs)[:, None] & (n < OUT)[None, :]
    at = (copy * outs + q)[:, None] * OUT + n[None, :]
    came = tl.load(place + at, mask=inside, other=4)
    pooled = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32) * scale
    pooled = tl.where(came < 4, pooled, 0.0)
    tl.store(
        sums + (copy * tl.num_programs(0) + tl.program_id(0)) * OUT + n,
        tl.sum(pooled, axis=0), mask=n < OUT,
    )  # fmt: skip
    pooled = _stored(pooled, saturated + copy, LIMIT).to(wide.dtype.element_ty)
    w, h, b = q % OUT_W, q // OUT_W % OUT_H, q // (OUT_W * OUT_H)
    if LARGE:
        b = b.to(tl.int64)
    pixel = (b * WIDE_H + 2 * h + BORDER) * WIDE_W + 2 * w + BORDER
    to = wide + copy * samples * (WIDE_H * WIDE_W * OUT)
    to += pixel[:, None] * OUT + n[None, :]
    for corner in tl.static_range(4):
        tl.store(
            to + (corner // 2 * WIDE_W + corner % 2) * OUT,
            tl.where(came == corner, pooled, 0.0), mask=inside,
        )  # fmt: skip


@triton.jit(do_not_specialize=["samples", "share_size"])
def _weights(
    x, wide, parts, samples, share_size,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_H: tl.constexpr,
    OUT_W: tl.constexpr, WIDE_H: tl.constexpr, WIDE_W: tl.constexpr, BORDER: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights from one share of the pixels; the shares are summed later."""
    RUN: tl.constexpr = SIZE * IN
    K: tl.constexpr = SIZE * RUN
    copy = tl.program_id(1).to(tl.int64)
    share = tl.program_id(2)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.arange(0, BN)
    image = x + copy * samples * (HEIGHT * WIDTH * IN)
    gradient = wide + copy * samples * (WIDE_H * WIDE_W * OUT)
    along = k // RUN * (WIDTH * IN) + k % RUN
    total = tl.zeros((BK, BN), dtype=tl.float32)
    for step in range(0, share_size, BM):
        m = share * share_size + step + tl.arange(0, BM)
        b, h, w = m // (OUT_H * OUT_W), m // OUT_W % OUT_H, m % OUT_W
        if LARGE:
            b = b.to(tl.int64)
        seen = m < samples * OUT_H * OUT_W
        start = ((b * HEIGHT + h) * WIDTH + w) * IN
        a = tl.load(
            image + start[:, None] + along[None, :],
            mask=seen[:, None] & (k < K)[None, :], other=0.0,
        )  # fmt: skip
        at = ((b * WIDE_H + h + BORDER) * WIDE_W + w + BORDER) * OUT
        d = tl.load(
            gradient + at[:, None] + n[None, :],
            mask=seen[:, None] & (n < OUT)[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(tl.trans(a), d, total, input_precision=PRECISION)
    slot = copy * tl.num_programs(2) + share
    at = parts + slot * (K * OUT) + n[None, :] * K + k[:, None]
    tl.store(at, total, mask=(k < K)[:, None] & (n < OUT)[None, :])


@triton.jit(do_not_specialize=["shares"])
def _descend(
    parts, weight, stored, turned, saturated, keep, rate, shares,
    IN: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    TURN: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step of the weights, and their copies: in half precision, and turned round."""
    TAPS: tl.constexpr = SIZE * SIZE
    COUNT: tl.constexpr = OUT * TAPS * IN
    copy = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < COUNT
    gradient = tl.zeros((BLOCK,), dtype=tl.float32)
    for share in range(shares):
        gradient += tl.load(parts + (copy * shares + share) * COUNT + at, mask=inside, other=0.0)
    value = tl.load(weight + copy * COUNT + at, mask=inside, other=0.0) * keep - gradient * rate
    tl.store(weight + copy * COUNT + at, value, mask=inside)
    value = _stored(value, saturated + copy, LIMIT)
    if HALF:
        tl.store(stored + copy * COUNT + at, value.to(stored.dtype.element_ty), mask=inside)
    if TURN:
        n, tap, channel = at // (TAPS * IN), at // IN % TAPS, at % IN
        to = (channel * TAPS + (TAPS - 1 - tap)) * OUT + n
        tl.store(turned + copy * COUNT + to, value.to(turned.dtype.element_ty), mask=inside)


CONVOLVE: dict[str, int] = {"BM": 128, "BK": 64, "num_warps": 4, "num_stages": 3}
WEIGHTS: dict[str, int] = {"BM": 64, "BK": 128, "num_warps": 4, "num_stages": 3}
"""Tiles, as measured on an H200 with the nets of the paper."""

PROGRAMS = 1024
"""To have at a time, at least."""

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


def _filled(channels: int) -> int:
    """Up to the next four, except for one or two, where it would cost more than it brings."""
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
        """``saturated`` has a mark for each copy, which is set where a value is cut off."""
        copies = len(saturated)
        self._saturated = saturated
        self._keep = 1.0 - descent.rate * descent.decay
        self._copies = copies
        self._used = layer.out_channels, layer.in_channels
        self._in, self._out = _filled(layer.in_channels), _filled(layer.out_channels)
        self._size = int(layer.kernel_size[0])
        self._precision = "ieee" if precision == "fp32" else "tf32"
        self._limit = precision == "fp16"
        self.stored = _STORED[precision]
        self.enlarged = ENLARGED if self._limit else 1.0
        """By how much gradients are enlarged between blocks."""
        self._rate = descent.rate / self.enlarged
        self._last = last
        new = layer.weight.new_zeros
        shape = (copies, self._out, self._size, self._size, self._in)
        self._weight = new(shape)
        self._bias = new((copies, self._out))
        half = self.stored != self._weight.dtype
        self._copy = new(shape, dtype=self.stored) if half else self._weight
        self._turned = new((copies, self._in, *shape[2:4], self._out), dtype=self.stored)
        self._wide: torch.Tensor | None = None
        """The gradient of all pixels; its border is zero and stays so."""
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
        self._turned.copy_(bounded.permute(0, 4, 2, 3, 1).flip(2, 3))

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
        """Gradients come and go enlarged, but the first comes as it is."""
        samples, pooled_h, pooled_w = dy.shape[1:4]
        height, width = self._x.shape[2:4]
        border = self._size - 1 if wants_dx else 0
        high, broad = (side - self._size + 1 + 2 * border for side in (height, width))
        shape = (self._copies, samples, high, broad, self._out)
        if self._wide is None or self._wide.shape != shape:
            self._wide = self._x.new_zeros(shape)
        outs, block = samples * pooled_h * pooled_w, 32
        sums = self._bias.new_empty(self._copies, triton.cdiv(outs, block), self._out)
        _spread[(sums.shape[1], self._copies)](
            dy, self._place, self._wide, sums, self._saturated,
            self.enlarged if self._last else 1.0, samples,
            OUT_H=pooled_h, OUT_W=pooled_w, WIDE_H=high, WIDE_W=broad, BORDER=border,
            OUT=self._out, BM=block, BN=_block(self._out), LIMIT=self._limit,
            LARGE=_large(self._wide),
        )  # fmt: skip
        dx = dy
        if wants_dx:
            dx = torch.empty_like(self._x)
            self._convolve(self._wide, self._turned, dx, pool=False)
        self._descend(self._wide, border, turn=wants_dx)
        self._bias.mul_(self._keep).sub_(sums.sum(dim=1), alpha=self._rate)
        return dx

    def forget(self) -> None:
        self._x = self._y = self._place = self._weight

    def _convolve(
        self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, *, pool: bool
    ) -> None:
        samples, height, width, channels_in = x.shape[1:]
        out_h, out_w, channels_out = y.shape[2:]
        k = weight[0, 0].numel()
        tile = CONVOLVE | ({} if k > 512 else {"BK": 32})
        if k <= 128:  # all in one go
            tile |= {"BK": _block(k), "num_stages": 1}
        rows = (4 if pool else 1) * samples * out_h * out_w
        _convolve[(triton.cdiv(rows, tile["BM"]), self._copies)](
            x, weight, self._bias, y, self._place, self._saturated, samples,
            HEIGHT=height, WIDTH=width, OUT_H=out_h, OUT_W=out_w,
            IN=channels_in, OUT=channels_out, SIZE=self._size, POOL=pool,
            BN=_block(channels_out), PRECISION=self._precision, LIMIT=self._limit,
            LARGE=_large(x), **tile,
        )  # fmt: skip

    def _descend(self, wide: torch.Tensor, border: int, *, turn: bool) -> None:
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
        _weights[(tiles, self._copies, shares)](
            self._x, wide, parts, samples, share,
            HEIGHT=self._x.shape[2], WIDTH=self._x.shape[3],
            OUT_H=2 * pooled_h, OUT_W=2 * pooled_w, WIDE_H=wide.shape[2], WIDE_W=wide.shape[3],
            BORDER=border, IN=self._in, OUT=self._out, SIZE=self._size,
            BN=_block(self._out), PRECISION=self._precision,
            LARGE=_large(self._x) or _large(wide), **tile,
        )  # fmt: skip
        count = self._weight[0].numel()
        _descend[(triton.cdiv(count, 1024), self._copies)](
            parts, self._weight, self._copy, self._turned, self._saturated,
            self._keep, self._rate, shares,
            IN=self._in, OUT=self._out, SIZE=self._size, HALF=self._copy is not self._weight,
            TURN=turn, LIMIT=self._limit, BLOCK=1024,
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
        x = _channels_last(x).to(self._blocks[0].stored)
        for block in self._blocks:
            x = block.forward(x)
        return x[..., : self._outs].permute(0, 1, 4, 2, 3).contiguous()

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        dy = _channels_last(dy)
        for number in reversed(range(len(self._blocks))):
            dy = self._blocks[number].backward(dy, wants_dx or number > 0)
        if not wants_dx:
            return dy
        dx = dy[..., : self._ins].permute(0, 1, 4, 2, 3)
        return dx.float() / self._blocks[0].enlarged

    def forget(self) -> None:
        for block in self._blocks:
            block.forget()


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """(copy, sample, channel, height, width) to channels last, filled up."""
    channels = x.shape[2]
    return functional.pad(x.permute(0, 1, 3, 4, 2), (0, _filled(channels) - channels)).contiguous()
