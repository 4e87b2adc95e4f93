"""The Triton kernels behind ``convolution``, which explains their layout.

In all of them ``samples`` are the images of one copy. LARGE: places within a copy need 64 bits;
LIMIT: values are stored in fp16, so those too large for it are clipped, and their copy is marked.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _stored(value, mark, LIMIT: tl.constexpr):
    """Clipped to the number format's range, with a mark if that changes it; NaN stays NaN."""
    if LIMIT:
        tl.store(mark, 1, mask=tl.max(tl.abs(value)) > 65504.0)
        value = tl.clamp(value, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return value


@triton.jit
def _larger(a, b):
    """The maximum; NaN wins, so that a model that has diverged shows it."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["samples"])
def convolve(
    x, weight, bias, y, place, saturated, samples,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_H: tl.constexpr,
    OUT_W: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr,
    POOL: tl.constexpr, FLIP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, LIMIT: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """``OUT_H`` x ``OUT_W`` pixels or, with POOL, windows of four.

    FLIP: the weights are those of the way forward, and go back flipped.
    """
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
        if FLIP:
            at = (k % IN) * (SIZE * SIZE * OUT) + (SIZE * SIZE - 1 - k // IN) * OUT
            at = at[:, None] + n[None, :]
        else:
            at = n[None, :] * K + k[:, None]
        inside = (k < K)[:, None] & (n < OUT)[None, :]
        c = tl.load(kernel + at, mask=inside, other=0.0)
        total = tl.dot(a, c, total, input_precision=PRECISION)
    if POOL:
        added = tl.load(bias + copy * OUT + n, mask=n < OUT, other=0.0)[None, :]
        total += tl.where((out < outs)[:, None], added, 0.0)  # rows outside must not set the mark
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
def spread(
    dy, place, wide, sums, saturated, scale, samples,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, WIDE_H: tl.constexpr,
    WIDE_W: tl.constexpr, BORDER: tl.constexpr, OUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, LIMIT: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """From pooling windows to their four pixels, inside a border that is zero already.

    Each program also stores the sum over its windows; together they are the bias's gradient.
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
def weights(
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


@triton.jit(do_not_specialize=["shares", "tiles"])
def descend(
    parts, sums, weight, bias, stored, flipped, saturated, keep, rate, shares, tiles,
    IN: tl.constexpr, OUT: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    FLIP: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One step of the weights, and their copies: in half precision, or flipped. The first program
    also steps the bias, from the ``sums`` of ``spread``."""
    TAPS: tl.constexpr = SIZE * SIZE
    COUNT: tl.constexpr = OUT * TAPS * IN
    ROWS: tl.constexpr = 32
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
    if FLIP:
        n, tap, channel = at // (TAPS * IN), at // IN % TAPS, at % IN
        to = (channel * TAPS + (TAPS - 1 - tap)) * OUT + n
        tl.store(flipped + copy * COUNT + to, value.to(flipped.dtype.element_ty), mask=inside)
    if tl.program_id(0) == 0:
        out = tl.arange(0, BN)
        total = tl.zeros((BN,), dtype=tl.float32)
        for first in range(0, tiles, ROWS):
            row = first + tl.arange(0, ROWS)
            known = (row < tiles)[:, None] & (out < OUT)[None, :]
            found = tl.load(sums + (copy * tiles + row)[:, None] * OUT + out[None, :],
                            mask=known, other=0.0)  # fmt: skip
            total += tl.sum(found, axis=0)
        where = bias + copy * OUT + out
        before = tl.load(where, mask=out < OUT, other=0.0)
        tl.store(where, before * keep - total * rate, mask=out < OUT)
