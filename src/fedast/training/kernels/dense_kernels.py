"""The Triton kernels behind ``dense`` and ``loss``.

In all of them ``samples`` are those of one copy, and fit into one tile. What limits a linear layer
of a few dozen samples is reading and writing the weights, so each kernel does that once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["samples"])
def forward(
    x, weight, bias, y, samples,
    IN: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr,
    BS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of outputs of one copy: the product, the bias and, if there is one, the ReLU."""
    copy = tl.program_id(1).to(tl.int64)
    s = tl.arange(0, BS)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    x += copy * samples * IN
    weight += copy * OUT * IN
    total = tl.zeros((BS, BN), dtype=tl.float32)
    for first in range(0, IN, BK):
        k = first + tl.arange(0, BK)
        inside = (k < IN)[:, None] & (n < OUT)[None, :]
        a = tl.load(x + s[:, None] * IN + k[None, :],
                    mask=(s < samples)[:, None] & (k < IN)[None, :], other=0.0)  # fmt: skip
        w = tl.load(weight + n[None, :] * IN + k[:, None], mask=inside, other=0.0)
        total = tl.dot(a, w, total, input_precision="tf32")
    total += tl.load(bias + copy * OUT + n, mask=n < OUT, other=0.0)[None, :]
    if RELU:  # NaN stays NaN, so that a model that has diverged shows it
        total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    at = (copy * samples + s)[:, None] * OUT + n[None, :]
    tl.store(y + at, total, mask=(s < samples)[:, None] & (n < OUT)[None, :])


@triton.jit(do_not_specialize=["samples"])
def backward(
    dy, x, weight, bias, dx, samples, keep, rate,
    IN: tl.constexpr, OUT: tl.constexpr, WANTS_DX: tl.constexpr, AFTER_RELU: tl.constexpr,
    BS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Some inputs of one copy with all of their weights: the gradient of these inputs, from the
    weights as they were, and a step of the weights. The first program also steps the bias.

    AFTER_RELU: the inputs are a ReLU's outputs, and their gradient is passed through it.
    """
    copy = tl.program_id(1).to(tl.int64)
    s = tl.arange(0, BS)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    seen = (s < samples)[:, None] & (k < IN)[None, :]
    place = (copy * samples + s)[:, None] * IN + k[None, :]
    a = tl.load(x + place, mask=seen, other=0.0)
    weight += copy * OUT * IN
    dy += copy * samples * OUT
    total = tl.zeros((BS, BK), dtype=tl.float32)
    for first in range(0, OUT, BN):
        n = first + tl.arange(0, BN)
        known = (s < samples)[:, None] & (n < OUT)[None, :]
        d = tl.load(dy + s[:, None] * OUT + n[None, :], mask=known, other=0.0)
        square = (n < OUT)[:, None] & (k < IN)[None, :]
        where = weight + n[:, None] * IN + k[None, :]
        w = tl.load(where, mask=square, other=0.0)
        if WANTS_DX:
            total = tl.dot(d, w, total, input_precision="tf32")
        step = tl.dot(tl.trans(d), a, input_precision="tf32")
        tl.store(where, w * keep - step * rate, mask=square)
    if WANTS_DX:
        if AFTER_RELU:  # a NaN is not smaller than zero either
            total = tl.where(a <= 0.0, 0.0, total)
        tl.store(dx + place, total, mask=seen)
    if tl.program_id(0) == 0:
        for first in range(0, OUT, BN):
            n = first + tl.arange(0, BN)
            known = (s < samples)[:, None] & (n < OUT)[None, :]
            d = tl.load(dy + s[:, None] * OUT + n[None, :], mask=known, other=0.0)
            b = tl.load(bias + copy * OUT + n, mask=n < OUT, other=0.0)
            tl.store(bias + copy * OUT + n, b * keep - tl.sum(d, axis=0) * rate, mask=n < OUT)


@triton.jit(do_not_specialize=["samples"])
def cross_entropy(
    scores, labels, losses, gradient, samples,
    CLASSES: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The mean loss of one copy and its gradient; both are NaN if a label is no class."""
    copy = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BS)
    c = tl.arange(0, BC)
    at = (copy * samples + s)[:, None] * CLASSES + c[None, :]
    seen = (s < samples)[:, None] & (c < CLASSES)[None, :]
    score = tl.load(scores + at, mask=seen, other=float("-inf"))
    label = tl.load(labels + copy * samples + s, mask=s < samples, other=0)
    score -= tl.max(score, axis=1)[:, None]
    power = tl.exp(score)
    total = tl.sum(power, axis=1)
    right = c[None, :] == label[:, None]
    loss = tl.log(total) - tl.sum(tl.where(right, score, 0.0), axis=1)
    valid = (label >= 0) & (label < CLASSES)
    loss = tl.where(valid, loss, float("nan"))
    tl.store(losses + copy, tl.sum(tl.where(s < samples, loss, 0.0)) / samples)
    d = (power / total[:, None] - right.to(tl.float32)) / samples
    tl.store(gradient + at, tl.where(valid[:, None], d, float("nan")), mask=seen)
