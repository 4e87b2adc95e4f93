"""The Triton kernels behind ``stacked_conv``, which explains their layout.

Shapes are arguments, not constants, so that layers share a few compiled kernels. Places within a
copy fit into 32 bits. Outputs are multiplied by ``scale``, which undoes what fp16 needed.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tiles", "per_copy"])
def turn(
    x, y, marks, batch, rows, columns, wide, shares, tiles, per_copy, scale,
    LIMIT: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """From (share, batch, row, column), summed over shares and scaled, to (batch, column, row),
    where rows are filled up to ``wide`` with zeros.

    LIMIT: ``y`` is in fp16, so values too large for it are clipped, and their copy is marked.
    """
    which = (tl.program_id(0) // tiles).to(tl.int64)
    r = tl.program_id(1) * BR + tl.arange(0, BR)
    c = tl.program_id(0) % tiles * BC + tl.arange(0, BC)
    seen = (r < rows)[:, None] & (c < columns)[None, :]
    at = r[:, None] * columns + c[None, :]
    total = tl.load(x + which * rows * columns + at, mask=seen, other=0.0)
    for share in range(1, shares):
        start = (share * batch + which) * rows * columns
        total += tl.load(x + start + at, mask=seen, other=0.0)
    total *= scale
    if LIMIT:  # NaN stays NaN, so that a model that has diverged shows it
        tl.store(marks + which // per_copy, 1, mask=tl.max(tl.abs(total)) > 65504.0)
        total = tl.clamp(total, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    to = y + which * wide * columns + c[:, None] * wide + r[None, :]
    tl.store(
        to,
        tl.trans(total).to(y.dtype.element_ty),
        mask=(c < columns)[:, None] & (r < wide)[None, :],
    )


@triton.jit(
    do_not_specialize=[
        "samples", "height", "width", "columns",
        "size_h", "size_w", "stride_h", "stride_w", "pad_h", "pad_w",
    ]
)  # fmt: skip
def convolve(
    x, weight, y, samples, height, width, ins, out_pixels, outs, columns,
    size_h, size_w, stride_h, stride_w, pad_h, pad_w, scale,
    BACK: tl.constexpr, STRIDED: tl.constexpr, FLAT: tl.constexpr, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of outputs: rows are pixels, columns channels.

    BACK: ``x`` is the gradient of a convolution's output and ``y`` that of its input. STRIDED: so
    it is, with a stride; then pixels that it treats alike, ``out_pixels`` in rows of ``columns``,
    are a class of their own, with its own part of the kernel and of ``y``. FLAT: the number of
    input channels if they are few, and share a step with those of other places in the kernel.
    EVEN: tiles and steps divide the numbers of channels.
    """
    copy = tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(outs, BN)
    q = tl.program_id(0) // blocks * BM + tl.arange(0, BM)
    n = tl.program_id(0) % blocks * BN + tl.arange(0, BN)
    sample, pixel = q // out_pixels, q % out_pixels
    top, left = pixel // columns, pixel % columns
    inside = q < samples * out_pixels
    over, across, taps_h, taps_w = 0, 0, size_h, size_w
    copies = tl.num_programs(1)
    if STRIDED:
        over, across = tl.program_id(2) // stride_w, tl.program_id(2) % stride_w
        skip_h = (pad_h - over + stride_h - 1) // stride_h
        skip_w = (pad_w - across + stride_w - 1) // stride_w
        top, left = top + skip_h, left + skip_w
        taps_h = (size_h - over + stride_h - 1) // stride_h
        taps_w = (size_w - across + stride_w - 1) // stride_w
        # Where the class begins in the image.
        from_h, from_w = skip_h * stride_h + over - pad_h, skip_w * stride_w + across - pad_w
        y += (from_h * stride_w + from_w).to(tl.int64) * copies * samples * outs * out_pixels
    elif BACK:
        top, left = top + pad_h, left + pad_w
    else:
        top, left = top * stride_h - pad_h, left * stride_w - pad_w
    image = x + copy * samples * height * width * ins
    start = sample * (height * width)
    count = size_h * size_w * ins
    kernel = weight + copy * outs * count + n[None, :] * count
    known = (n < outs)[None, :]
    steps = tl.cdiv(count, BK) if FLAT else taps_h * taps_w * tl.cdiv(ins, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    first, down, along = 0, 0, 0
    for step in range(steps):
        if FLAT:
            k = step * BK + tl.arange(0, BK)
            tap, c = k // FLAT, k % FLAT
            h, w = top[:, None] + (tap // size_w)[None, :], left[:, None] + (tap % size_w)[None, :]
            seen = (h >= 0) & (h < height) & (w >= 0) & (w < width)
            seen = seen & inside[:, None] & (k < count)[None, :]
            at = ((start[:, None] + h * width + w) * FLAT) + c[None, :]
            a = tl.load(image + at, mask=seen, other=0.0)
            b = tl.load(kernel + k[:, None], mask=(k < count)[:, None] & known, other=0.0)
        else:
            c = tl.multiple_of(first, BK) + tl.arange(0, BK)
            if BACK:
                h, w = top - down, left - along
                tap = (over + down * stride_h) * size_w + across + along * stride_w
            else:
                h, w = top + down, left + along
                tap = down * size_w + along
            seen = inside & (h >= 0) & (h < height) & (w >= 0) & (w < width)
            from_x = image + (((start + h * width + w) * ins)[:, None] + c[None, :])
            from_kernel = kernel + (tap * ins + c)[:, None]
            if EVEN:
                a = tl.load(from_x, mask=seen[:, None], other=0.0)
                b = tl.load(from_kernel)
            else:
                a = tl.load(from_x, mask=seen[:, None] & (c < ins)[None, :], other=0.0)
                b = tl.load(from_kernel, mask=(c < ins)[:, None] & known, other=0.0)
            # The next channels; after the last ones, the next place in the kernel.
            first += BK
            along = tl.where(first >= ins, along + 1, along)
            first = tl.where(first >= ins, 0, first)
            down = tl.where(along >= taps_w, down + 1, down)
            along = tl.where(along >= taps_w, 0, along)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    # Turned, so that neighbouring threads store neighbouring pixels.
    to = n[:, None] * out_pixels + (sample * outs * out_pixels + pixel)[None, :]
    stored = (n < outs)[:, None] & inside[None, :]
    tl.store(y + copy * samples * outs * out_pixels + to, tl.trans(total * scale), mask=stored)


@triton.jit(
    do_not_specialize=[
        "height", "width", "out_h", "out_w", "outs",
        "size_h", "size_w", "stride_h", "stride_w", "pad_h", "pad_w", "share_steps",
    ]
)  # fmt: skip
def weights(
    x, dy, parts, samples, height, width, ins, out_h, out_w, outs,
    size_h, size_w, stride_h, stride_w, pad_h, pad_w, share_steps, scale, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights from one share of the pixels; the shares are summed later.

    Rows are output channels, columns places in the kernel with their input channels. A step is
    made of samples of one pixel. EVEN: tiles divide the number of rows.
    """
    copy, copies = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    columns = size_h * size_w * ins
    blocks = tl.cdiv(columns, BN)
    m = tl.program_id(0) // blocks * BM + tl.arange(0, BM)
    n = tl.program_id(0) % blocks * BN + tl.arange(0, BN)
    tap, c = n // ins, n % ins
    down, along = tap // size_w - pad_h, tap % size_w - pad_w
    pixels = out_h * out_w
    all_steps = pixels * samples // BK
    first = tl.program_id(2) * share_steps
    pixel = first * BK // samples
    sample = first * BK % samples
    top, left = pixel // out_w, pixel % out_w
    k = tl.arange(0, BK)
    gradient = dy + copy * outs * pixels * samples
    gradient += m[:, None] * (pixels * samples) + k[None, :]
    image = x + copy * ins * height * width * samples
    image += c[None, :] * (height * width * samples) + k[:, None]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(first, tl.minimum(first + share_steps, all_steps)):
        h, w = top * stride_h + down, left * stride_w + along
        seen = (n < columns) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
        sample = tl.multiple_of(sample, BK)
        if EVEN:
            a = tl.load(gradient + step * BK)
        else:
            a = tl.load(gradient + step * BK, mask=(m < outs)[:, None], other=0.0)
        at = (h * width + w) * samples + sample
        b = tl.load(image + at[None, :], mask=seen[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        # The next samples; after the last ones, the next pixel.
        sample += BK
        left = tl.where(sample >= samples, left + 1, left)
        sample = tl.where(sample >= samples, 0, sample)
        top = tl.where(left >= out_w, top + 1, top)
        left = tl.where(left >= out_w, 0, left)
    at = parts + (tl.program_id(2) * copies + copy) * outs * columns
    at += m[:, None] * columns + n[None, :]
    tl.store(at, total * scale, mask=(m < outs)[:, None] & (n < columns)[None, :])
