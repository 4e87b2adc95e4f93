"""The Triton kernels behind ``convolution``, which explains their layout.

In all of them ``samples`` are the images of one copy. LARGE: places within a copy need 64 bits;
LIMIT: values are stored in fp16, so those too large for it are clipped, and their copy is marked.
A kernel has HIGH rows of BROAD pixels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _clipped(value, LIMIT: tl.constexpr):
    """To the number format's range; NaN stays NaN."""
    if LIMIT:
        value = tl.clamp(value, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return value


@triton.jit
def _stored(value, mark, LIMIT: tl.constexpr):
    """The same, with a mark if that changes it."""
    if LIMIT:
        tl.store(mark, 1, mask=tl.max(tl.abs(value)) > 65504.0)
    return _clipped(value, LIMIT)


@triton.jit
def _larger(a, b):
    """The maximum; NaN wins, so that a model that has diverged shows it."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def unroll(
    x, columns, pixels, by_image, by_channel,
    OUT_H: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, SIZE: tl.constexpr,
    IN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """All that a column of the kernel sees, from each pixel down: SIZE pixels of CHANNELS."""
    at = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    image, start = at // (OUT_H * WIDTH), at % (OUT_H * WIDTH)
    n = tl.arange(0, BN)
    along = n % CHANNELS * by_channel + n // CHANNELS * WIDTH
    inside = (at < pixels)[:, None] & (n < SIZE * CHANNELS)[None, :]
    value = tl.load(x + (image * by_image + start)[:, None] + along[None, :],
                    mask=inside, other=0.0)  # fmt: skip
    to = columns + at[:, None] * IN + n[None, :]
    inside = (at < pixels)[:, None] & (n < IN)[None, :]
    tl.store(to, value.to(columns.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["samples"])
def convolve(
    x, weight, bias, y, place, saturated, samples,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, HIGH: tl.constexpr, BROAD: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, LIMIT: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """Convolution, bias, pooling and ReLU, for ``OUT_H`` x ``OUT_W`` windows of four pixels."""
    RUN: tl.constexpr = BROAD * IN
    K: tl.constexpr = HIGH * RUN
    outs = samples * OUT_H * OUT_W
    copy = tl.program_id(1).to(tl.int64)
    row = tl.arange(0, BM)
    # Rows are numbered so that the matrix unit leaves a window's four in one thread.
    corner = row // (BM // 2) * 2 + row // 8 % 2
    out = tl.program_id(0) * (BM // 4) + row % (BM // 2) // 16 * 8 + row % 8
    h = 2 * (out // OUT_W % OUT_H) + corner // 2
    w = 2 * (out % OUT_W) + corner % 2
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
        inside = (k < K)[:, None] & (n < OUT)[None, :]
        c = tl.load(kernel + n[None, :] * K + k[:, None], mask=inside, other=0.0)
        total = tl.dot(a, c, total, input_precision=PRECISION)
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


@triton.jit(do_not_specialize=["samples"])
def spread(
    dy, place, wide, sums, saturated, scale, samples,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, OUT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, LIMIT: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """The gradient of the outputs, from that of pooling windows to their four pixels.

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
    pixel = (b * (2 * OUT_H) + 2 * h) * (2 * OUT_W) + 2 * w
    to = wide + copy * outs * (4 * OUT) + pixel[:, None] * OUT + n[None, :]
    for corner in tl.static_range(4):
        tl.store(
            to + (corner // 2 * (2 * OUT_W) + corner % 2) * OUT,
            tl.where(came == corner, pooled, 0.0), mask=inside,
        )  # fmt: skip


@triton.jit(do_not_specialize=["samples"])
def images(
    wide, weight, dx, saturated, samples,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, HIGH: tl.constexpr, BROAD: tl.constexpr,
    TURNED: tl.constexpr, BS: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr, LIMIT: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """The gradient of the images: a patch of BH x BW pixels in BS samples, from those pixels of
    ``wide`` (``OUT_H`` x ``OUT_W``) that they have a part in. TURNED: the weights' axes are turned.
    """
    ACROSS: tl.constexpr = (WIDTH + BW - 1) // BW
    DOWN: tl.constexpr = (HEIGHT + BH - 1) // BH
    CHUNKS: tl.constexpr = (OUT + BK - 1) // BK
    TAPS: tl.constexpr = HIGH * BROAD
    copy = tl.program_id(1).to(tl.int64)
    patch = tl.program_id(0)
    top, left = patch // ACROSS % DOWN * BH, patch % ACROSS * BW
    row = tl.arange(0, BS * BH * BW)
    s = patch // (ACROSS * DOWN) * BS + row % BS
    h, w = top + row // BS // BW, left + row // BS % BW
    if LARGE:
        s = s.to(tl.int64)
    n = tl.arange(0, BN)
    gradient = wide + copy * samples * (OUT_H * OUT_W * OUT)
    kernel = weight + copy * (IN * TAPS * OUT)
    first_h, end_h = tl.maximum(top - OUT_H + 1, 0), tl.minimum(top + BH, HIGH)
    first_w, end_w = tl.maximum(left - OUT_W + 1, 0), tl.minimum(left + BW, BROAD)
    across = tl.maximum(end_w - first_w, 0)
    taps = tl.maximum(end_h - first_h, 0) * across
    total = tl.zeros((BS * BH * BW, BN), dtype=tl.float32)
    for number in range(taps * CHUNKS):
        kh, kw = first_h + number // CHUNKS // across, first_w + number // CHUNKS % across
        k = number % CHUNKS * BK + tl.arange(0, BK)
        from_h, from_w = h - kh, w - kw
        seen = (from_h >= 0) & (from_h < OUT_H) & (from_w >= 0) & (from_w < OUT_W) & (s < samples)
        start = ((s * OUT_H + from_h) * OUT_W + from_w) * OUT
        a = tl.load(gradient + start[:, None] + k[None, :],
                    mask=seen[:, None] & (k < OUT)[None, :], other=0.0)  # fmt: skip
        tap = kh * BROAD + kw
        if TURNED:
            at = (n * TAPS + tap)[None, :] * OUT + k[:, None]
        else:
            at = (k * TAPS + tap)[:, None] * IN + n[None, :]
        c = tl.load(kernel + at, mask=(k < OUT)[:, None] & (n < IN)[None, :], other=0.0)
        total = tl.dot(a, c, total, input_precision=PRECISION)
    at = ((copy * samples + s) * HEIGHT + h) * WIDTH + w
    inside = ((s < samples) & (h < HEIGHT) & (w < WIDTH))[:, None] & (n < IN)[None, :]
    total = _stored(total, saturated + copy, LIMIT)
    tl.store(dx + at[:, None] * IN + n[None, :], total.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["samples", "share_size"])
def weights(
    x, wide, parts, samples, share_size,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, HIGH: tl.constexpr, BROAD: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights from one share of the pixels; the shares are summed later."""
    RUN: tl.constexpr = BROAD * IN
    K: tl.constexpr = HIGH * RUN
    copy = tl.program_id(1).to(tl.int64)
    share = tl.program_id(2)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.arange(0, BN)
    outs = samples * OUT_H * OUT_W
    image = x + copy * samples * (HEIGHT * WIDTH * IN)
    gradient = wide + copy * outs * OUT
    along = k // RUN * (WIDTH * IN) + k % RUN
    total = tl.zeros((BN, BK), dtype=tl.float32)
    for step in range(0, share_size, BM):
        m = share * share_size + step + tl.arange(0, BM)
        b, h, w = m // (OUT_H * OUT_W), m // OUT_W % OUT_H, m % OUT_W
        seen = m < outs
        if LARGE:
            b, m = b.to(tl.int64), m.to(tl.int64)
        start = ((b * HEIGHT + h) * WIDTH + w) * IN
        a = tl.load(
            image + start[:, None] + along[None, :],
            mask=seen[:, None] & (k < K)[None, :], other=0.0,
        )  # fmt: skip
        d = tl.load(
            gradient + m[:, None] * OUT + n[None, :],
            mask=seen[:, None] & (n < OUT)[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(tl.trans(d), a, total, input_precision=PRECISION)
    slot = copy * tl.num_programs(2) + share
    at = parts + slot * (K * OUT) + n[:, None] * K + k[None, :]
    tl.store(at, total, mask=(n < OUT)[:, None] & (k < K)[None, :])


@triton.jit(do_not_specialize=["samples", "share_size"])
def first_weights(
    x, dy, place, parts, sums, saturated, scale, samples, share_size,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    IN: tl.constexpr, OUT: tl.constexpr, HIGH: tl.constexpr, BROAD: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, LIMIT: tl.constexpr, LARGE: tl.constexpr,
):  # fmt: skip
    """The same straight from the gradient of ``OUT_H`` x ``OUT_W`` pooling windows, with the sums
    for the bias: for a first block, where nothing else needs the gradient of the pixels."""
    RUN: tl.constexpr = BROAD * IN
    K: tl.constexpr = HIGH * RUN
    copy = tl.program_id(1).to(tl.int64)
    share = tl.program_id(2)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.arange(0, BN)
    outs = samples * OUT_H * OUT_W
    image = x + copy * samples * (HEIGHT * WIDTH * IN)
    along = k // RUN * (WIDTH * IN) + k % RUN
    total = tl.zeros((BN, BK), dtype=tl.float32)
    added = tl.zeros((BN, BM), dtype=tl.float32)
    largest = tl.zeros((BN, BM), dtype=tl.float32)
    for step in range(0, share_size, BM):
        q = share * share_size + step + tl.arange(0, BM)
        w, h, b = q % OUT_W, q // OUT_W % OUT_H, q // (OUT_W * OUT_H)
        seen = q < outs
        if LARGE:
            b = b.to(tl.int64)
        inside = (n < OUT)[:, None] & seen[None, :]
        at = (copy * outs + q)[None, :] * OUT + n[:, None]
        came = tl.load(place + at, mask=inside, other=4)
        pooled = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32) * scale
        pooled = tl.where(came < 4, pooled, 0.0)
        added += pooled
        if LIMIT:
            largest = tl.maximum(largest, tl.abs(pooled))
        pooled = _clipped(pooled, LIMIT).to(x.dtype.element_ty)
        start = ((b * HEIGHT + 2 * h) * WIDTH + 2 * w) * IN
        for corner in tl.static_range(4):
            a = tl.load(
                image + (start + (corner // 2 * WIDTH + corner % 2) * IN)[:, None] + along[None, :],
                mask=seen[:, None] & (k < K)[None, :], other=0.0,
            )  # fmt: skip
            d = tl.where(came == corner, pooled, 0.0)
            total = tl.dot(d, a, total, input_precision=PRECISION)
    slot = copy * tl.num_programs(2) + share
    at = parts + slot * (K * OUT) + n[:, None] * K + k[None, :]
    tl.store(at, total, mask=(n < OUT)[:, None] & (k < K)[None, :])
    if tl.program_id(0) == 0:
        tl.store(sums + slot * OUT + n, tl.sum(added, axis=1), mask=n < OUT)
        if LIMIT:
            tl.store(saturated + copy, 1, mask=tl.max(largest) > 65504.0)


@triton.jit
def _descend_bias(sums, bias, keep, rate, tiles, copy, OUT: tl.constexpr, BN: tl.constexpr):
    """One step of the bias, from the ``sums`` over all windows."""
    ROWS: tl.constexpr = 32
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


@triton.jit(do_not_specialize=["shares", "tiles"])
def descend(
    parts, sums, weight, bias, stored, turned, saturated, keep, rate, shares, tiles,
    IN: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr, HALF: tl.constexpr,
    TURN: tl.constexpr, LIMIT: tl.constexpr, BLOCK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One step of the weights, and their copies: in half precision, or with the axes turned. The
    first program also steps the bias."""
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
        to = (channel * TAPS + tap) * OUT + n
        tl.store(turned + copy * COUNT + to, value.to(turned.dtype.element_ty), mask=inside)
    if tl.program_id(0) == 0:
        _descend_bias(sums, bias, keep, rate, tiles, copy, OUT, BN)


@triton.jit
def hopper_order(value, OUT: tl.constexpr, IN: tl.constexpr):
    """A kernel position's weights (out, in) in the order that ``hopper.ordered`` explains."""
    split = tl.reshape(value, (OUT // 16, 8, 2, IN // 16, 2, 4, 2))
    return tl.reshape(tl.permute(split, (3, 0, 1, 5, 4, 2, 6)), (OUT * IN,))


@triton.jit(do_not_specialize=["shares", "tiles"])
def descend_ordered(
    parts, sums, weight, bias, stored, ordered, saturated, keep, rate, shares, tiles,
    IN: tl.constexpr, OUT: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """The same for one position of the kernel, with copies in fp16: as they are, and in the order
    of Hopper's kernels."""
    COUNT: tl.constexpr = OUT * TAPS * IN
    copy = tl.program_id(1).to(tl.int64)
    tap = tl.program_id(0)
    at = (tl.arange(0, OUT)[:, None] * TAPS + tap) * IN + tl.arange(0, IN)[None, :]
    gradient = tl.zeros((OUT, IN), dtype=tl.float32)
    for share in range(shares):
        gradient += tl.load(parts + (copy * shares + share) * COUNT + at)
    value = tl.load(weight + copy * COUNT + at) * keep - gradient * rate
    tl.store(weight + copy * COUNT + at, value)
    half = _stored(value, saturated + copy, True).to(stored.dtype.element_ty)
    tl.store(stored + copy * COUNT + at, half)
    to = tap * (OUT * IN) + tl.arange(0, OUT * IN)
    tl.store(ordered + copy * COUNT + to, hopper_order(half, OUT, IN))
    if tap == 0:
        _descend_bias(sums, bias, keep, rate, tiles, copy, OUT, OUT)
