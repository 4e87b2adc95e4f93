"""The Triton kernels behind ``stacked_norm``, and how they are launched.

A program normalises one set of values: of batch normalisation, a channel of a copy; of group
normalisation, a group of a sample. A set is rows (samples or channels) of ``PIXELS`` values that
are contiguous in memory. It is read for its mean, for its variance and for what is written; but for
the first time it is in the cache, as a rule. Every sum has a fixed order, so results are the same
in every run. Places within a copy fit into 32 bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 8192
"""The most values that a program works on at a time."""


@triton.jit
def _set(channels, groups, rows, samples, BATCH: tl.constexpr, PIXELS: tl.constexpr):
    """Where a program's set begins, how far apart its rows are, and its first channel's number."""
    which = tl.program_id(0)
    if BATCH:
        start, stride, channel = which * PIXELS, channels * PIXELS, which
    else:
        start, stride, channel = which * rows * PIXELS, PIXELS, which % groups * rows
    copy = tl.program_id(1).to(tl.int64)
    return copy * samples * channels * PIXELS + start, stride, copy * channels + channel


@triton.jit(do_not_specialize=["samples", "channels", "groups", "rows"])
def normalise(
    x, weight, bias, y, means, variances, samples, channels, groups, rows, eps,
    BATCH: tl.constexpr, PIXELS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """BATCH: batch normalisation, else that of ``groups``."""
    start, stride, channel = _set(channels, groups, rows, samples, BATCH, PIXELS)
    x += start
    y += start
    of_row: tl.constexpr = 0 if BATCH else 1
    r, p = tl.arange(0, BR), tl.arange(0, BC)
    count = rows * PIXELS
    total = tl.zeros((BR, BC), dtype=tl.float32)
    for row in range(0, rows, BR):
        for pixel in range(0, PIXELS, BC):
            seen = (row + r < rows)[:, None] & (pixel + p < PIXELS)[None, :]
            place = (row + r)[:, None] * stride + (pixel + p)[None, :]
            total += tl.load(x + place, mask=seen, other=0.0)
    mean = tl.sum(tl.sum(total, axis=1), axis=0) / count
    # The mean comes first: squares of values far from zero would lose their digits.
    squares = tl.zeros((BR, BC), dtype=tl.float32)
    for row in range(0, rows, BR):
        for pixel in range(0, PIXELS, BC):
            seen = (row + r < rows)[:, None] & (pixel + p < PIXELS)[None, :]
            place = (row + r)[:, None] * stride + (pixel + p)[None, :]
            off = tl.where(seen, tl.load(x + place, mask=seen, other=0.0) - mean, 0.0)
            squares += off * off
    variance = tl.sum(tl.sum(squares, axis=1), axis=0) / count
    number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(means + number, mean)
    tl.store(variances + number, variance)
    inverse = 1.0 / tl.sqrt(variance + eps)
    for row in range(0, rows, BR):
        own = channel + (row + r) * of_row
        w = tl.load(weight + own, mask=row + r < rows, other=0.0) * inverse
        b = tl.load(bias + own, mask=row + r < rows, other=0.0)
        for pixel in range(0, PIXELS, BC):
            seen = (row + r < rows)[:, None] & (pixel + p < PIXELS)[None, :]
            place = (row + r)[:, None] * stride + (pixel + p)[None, :]
            value = tl.load(x + place, mask=seen, other=0.0)
            tl.store(y + place, (value - mean) * w[:, None] + b[:, None], mask=seen)


@triton.jit(do_not_specialize=["samples", "channels", "groups", "rows"])
def gradients(
    dy, x, weight, means, variances, dx, d_weight, d_bias, samples, channels, groups, rows, eps,
    BATCH: tl.constexpr, PIXELS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """``d_weight`` and ``d_bias`` have a row per sample with group normalisation, to be summed."""
    start, stride, channel = _set(channels, groups, rows, samples, BATCH, PIXELS)
    x += start
    dy += start
    dx += start
    of_row: tl.constexpr = 0 if BATCH else 1
    number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    mean = tl.load(means + number)
    inverse = 1.0 / tl.sqrt(tl.load(variances + number) + eps)
    r, p = tl.arange(0, BR), tl.arange(0, BC)
    plain = tl.zeros((BR,), dtype=tl.float32)
    along = tl.zeros((BR,), dtype=tl.float32)
    for row in range(0, rows, BR):
        d_total = tl.zeros((BR, BC), dtype=tl.float32)
        d_along = tl.zeros((BR, BC), dtype=tl.float32)
        for pixel in range(0, PIXELS, BC):
            seen = (row + r < rows)[:, None] & (pixel + p < PIXELS)[None, :]
            place = (row + r)[:, None] * stride + (pixel + p)[None, :]
            d = tl.load(dy + place, mask=seen, other=0.0)
            value = tl.load(x + place, mask=seen, other=0.0)
            d_total += d
            d_along += tl.where(seen, d * ((value - mean) * inverse), 0.0)
        row_total, row_along = tl.sum(d_total, axis=1), tl.sum(d_along, axis=1)
        if BATCH:
            plain += row_total
            along += row_along
        else:
            mine = row + r < rows
            to = number * rows + row + r
            tl.store(d_bias + to, row_total, mask=mine)
            tl.store(d_weight + to, row_along, mask=mine)
            w = tl.load(weight + channel + row + r, mask=mine, other=0.0)
            plain += row_total * w
            along += row_along * w
    one, other = tl.sum(plain, axis=0), tl.sum(along, axis=0)
    if BATCH:
        tl.store(d_bias + number, one)
        tl.store(d_weight + number, other)
        only = tl.load(weight + channel)
        one *= only
        other *= only
    count = rows * PIXELS
    one /= count
    other = other / count * inverse
    for row in range(0, rows, BR):
        w = tl.load(weight + channel + (row + r) * of_row, mask=row + r < rows, other=0.0)
        for pixel in range(0, PIXELS, BC):
            seen = (row + r < rows)[:, None] & (pixel + p < PIXELS)[None, :]
            place = (row + r)[:, None] * stride + (pixel + p)[None, :]
            d = tl.load(dy + place, mask=seen, other=0.0)
            value = tl.load(x + place, mask=seen, other=0.0)
            found = (d * w[:, None] - one - (value - mean) * other) * inverse
            tl.store(dx + place, found, mask=seen)


def _tile(rows: int, pixels: int) -> dict[str, int]:
    columns = min(1024, int(triton.next_power_of_2(pixels)))
    lines = min(int(triton.next_power_of_2(rows)), max(1, TILE // columns))
    return {"BR": lines, "BC": columns, "num_warps": max(1, min(16, lines * columns // 512))}


def run_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(copy, sample, channel, ...) normalised; with means and variances of its sets: (copy, sample,
    group) or, if ``groups`` is 0, (copy, channel)."""
    copies, samples, channels = x.shape[:3]
    rows = channels // groups if groups else samples
    pixels = x[0, 0, 0].numel()
    y = torch.empty_like(x)
    means = x.new_empty((copies, samples, groups) if groups else (copies, channels))
    variances = torch.empty_like(means)
    normalise[(means[0].numel(), copies)](
        x, weight, bias, y, means, variances, samples, channels, groups, rows, eps,
        BATCH=groups == 0, PIXELS=pixels, **_tile(rows, pixels),
    )  # fmt: skip
    return y, means, variances


def run_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    means: torch.Tensor,
    variances: torch.Tensor,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of the values, the weights and the biases."""
    copies, samples, channels = x.shape[:3]
    rows = channels // groups if groups else samples
    pixels = x[0, 0, 0].numel()
    dx = torch.empty_like(x)
    d_weight = x.new_empty((copies, samples, channels) if groups else (copies, channels))
    d_bias = torch.empty_like(d_weight)
    gradients[(means[0].numel(), copies)](
        dy, x, weight, means, variances, dx, d_weight, d_bias,
        samples, channels, groups, rows, eps,
        BATCH=groups == 0, PIXELS=pixels, **_tile(rows, pixels),
    )  # fmt: skip
    return (dx, d_weight.sum(dim=1), d_bias.sum(dim=1)) if groups else (dx, d_weight, d_bias)
