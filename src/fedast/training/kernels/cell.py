"""The LSTM over a whole window in single precision: one kernel forward, one backward.

As in ``half_cell``, a program takes a few samples of one copy through all characters, with hidden
units as rows. The weights do not fit into shared memory, so they are read from the cache at every
character; what a symbol adds to the gates comes from a table.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fedast.training.kernels.net import Precision


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _four(at, HIDDEN: tl.constexpr, inside):
    """A tile of each of the four gates."""
    i = tl.load(at, mask=inside, other=0.0)
    f = tl.load(at + HIDDEN, mask=inside, other=0.0)
    g = tl.load(at + 2 * HIDDEN, mask=inside, other=0.0)
    o = tl.load(at + 3 * HIDDEN, mask=inside, other=0.0)
    return i, f, g, o


@triton.jit
def _store_four(at, i, f, g, o, HIDDEN: tl.constexpr, inside):
    tl.store(at, i, mask=inside)
    tl.store(at + HIDDEN, f, mask=inside)
    tl.store(at + 2 * HIDDEN, g, mask=inside)
    tl.store(at + 3 * HIDDEN, o, mask=inside)


@triton.jit
def _product(kernel, x, total, square, PRECISION: tl.constexpr):
    weight = tl.load(kernel, mask=square, other=0.0)
    return tl.dot(weight, x, total, input_precision=PRECISION)


@triton.jit
def _forward(
    table, codes, weight, states, cells, gates, samples, symbols,
    LENGTH: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, BP: tl.constexpr,
    BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """WIDTH: of a row of states."""
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    j = tl.arange(0, BH)
    k = tl.arange(0, BH)
    inside = (j < HIDDEN)[:, None] & (p < samples)[None, :]
    square = (j < HIDDEN)[:, None] & (k < HIDDEN)[None, :]
    kernel = weight + copy * 4 * HIDDEN * HIDDEN + j[:, None] * HIDDEN + k[None, :]
    size = HIDDEN * HIDDEN
    state = tl.zeros((BH, BP), dtype=tl.float32)
    cell = tl.zeros((BH, BP), dtype=tl.float32)
    text = codes + (copy * samples + p) * LENGTH
    rows = table + copy * symbols * 4 * HIDDEN + j[:, None]
    for t in range(LENGTH):
        code = tl.load(text + t, mask=p < samples, other=0)
        i, f, g, o = _four(rows + code[None, :] * 4 * HIDDEN, HIDDEN, inside)
        i = tl.sigmoid(_product(kernel, state, i, square, PRECISION))
        f = tl.sigmoid(_product(kernel + size, state, f, square, PRECISION))
        g = _tanh(_product(kernel + 2 * size, state, g, square, PRECISION))
        o = tl.sigmoid(_product(kernel + 3 * size, state, o, square, PRECISION))
        cell = tl.where(inside, f * cell + i * g, 0.0)
        state = tl.where(inside, o * _tanh(cell), 0.0)
        row = ((copy * (LENGTH + 1) + t + 1) * samples + p)[None, :]
        tl.store(cells + row * HIDDEN + j[:, None], cell, mask=inside)
        tl.store(states + row * WIDTH + j[:, None], state, mask=inside)
        at = gates + ((copy * LENGTH + t) * samples + p)[None, :] * 4 * HIDDEN + j[:, None]
        _store_four(at, i, f, g, o, HIDDEN, inside)


@triton.jit
def _backward(
    d_last, transposed, cells, gates, d_gates, samples,
    LENGTH: tl.constexpr, HIDDEN: tl.constexpr, BP: tl.constexpr, BH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``transposed``: (copy, hidden, 4 hidden)."""
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    j = tl.arange(0, BH)
    k = tl.arange(0, BH)
    inside = (j < HIDDEN)[:, None] & (p < samples)[None, :]
    square = (j < HIDDEN)[:, None] & (k < HIDDEN)[None, :]
    kernel = transposed + copy * 4 * HIDDEN * HIDDEN + j[:, None] * 4 * HIDDEN + k[None, :]
    at = (copy * samples + p)[None, :] * HIDDEN + j[:, None]
    d_state = tl.load(d_last + at, mask=inside, other=0.0)
    d_cell = tl.zeros((BH, BP), dtype=tl.float32)
    own = p[None, :] * HIDDEN + j[:, None]
    cell = cells + copy * (LENGTH + 1) * samples * HIDDEN + own
    own = copy * LENGTH * samples * 4 * HIDDEN + p[None, :] * 4 * HIDDEN + j[:, None]
    step = samples * HIDDEN
    after = _tanh(tl.load(cell + LENGTH * step, mask=inside, other=0.0))
    before = tl.load(cell + (LENGTH - 1) * step, mask=inside, other=0.0)
    i, f, g, o = _four(gates + own + (LENGTH - 1) * 4 * step, HIDDEN, inside)
    for back in range(LENGTH):
        t = LENGTH - 1 - back
        # What the character before it needs is read while this one is worked on.
        earlier = tl.maximum(t - 1, 0)
        next_before = tl.load(cell + earlier * step, mask=inside, other=0.0)
        next_i, next_f, next_g, next_o = _four(gates + own + earlier * 4 * step, HIDDEN, inside)
        d = d_cell + d_state * o * (1 - after * after)
        d_cell = d * f
        d_o = d_state * after * o * (1 - o)
        d_i = d * g * i * (1 - i)
        d_f = d * before * f * (1 - f)
        d_g = d * i * (1 - g * g)
        d_state = tl.zeros((BH, BP), dtype=tl.float32)
        d_state = _product(kernel + 3 * HIDDEN, d_o, d_state, square, PRECISION)
        d_state = _product(kernel, d_i, d_state, square, PRECISION)
        d_state = _product(kernel + HIDDEN, d_f, d_state, square, PRECISION)
        d_state = _product(kernel + 2 * HIDDEN, d_g, d_state, square, PRECISION)
        after = _tanh(before)
        _store_four(d_gates + own + t * 4 * step, d_i, d_f, d_g, d_o, HIDDEN, inside)
        before, i, f, g, o = next_before, next_i, next_f, next_g, next_o


FORWARD: dict[str, int] = {"BP": 32, "num_warps": 8, "num_stages": 1}
BACKWARD: dict[str, int] = {"BP": 16, "num_warps": 8, "num_stages": 1}
"""Tiles, as measured on an H200 with the net of the paper."""


def run_forward(
    table: torch.Tensor,
    codes: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor,
    cells: torch.Tensor,
    gates: torch.Tensor,
    precision: Precision,
) -> None:
    """Fill states, cells (copy, time + 1, sample, hidden) and gates (copy, time, sample, ...);
    between rows of states there may be other things."""
    copies, samples, length = codes.shape
    _forward[(triton.cdiv(samples, FORWARD["BP"]), copies)](
        table, codes, weight, states, cells, gates, samples, table.shape[1],
        LENGTH=length, WIDTH=states.stride(2), **FORWARD, **_how(cells.shape[3], precision),
    )  # fmt: skip


def run_backward(
    d_last: torch.Tensor,
    weight: torch.Tensor,
    cells: torch.Tensor,
    gates: torch.Tensor,
    precision: Precision,
) -> torch.Tensor:
    """The gradient of all gates before their nonlinearities, in the shape of ``gates``."""
    copies, length, samples = gates.shape[:3]
    d_gates = torch.empty_like(gates)
    _backward[(triton.cdiv(samples, BACKWARD["BP"]), copies)](
        d_last, weight.mT.contiguous(), cells, gates, d_gates, samples,
        LENGTH=length, **BACKWARD, **_how(d_last.shape[2], precision),
    )  # fmt: skip
    return d_gates


def _how(hidden: int, precision: Precision) -> dict[str, Any]:
    return {
        "HIDDEN": hidden,
        "BH": max(64, int(triton.next_power_of_2(hidden))),
        "PRECISION": "ieee" if precision == "fp32" else "tf32",
    }
