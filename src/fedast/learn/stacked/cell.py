"""The LSTM over a whole window, for all copies: one kernel forward, one back.

Points do not mix, so a program that has a few points of one copy, with all
hidden units, goes through the characters by itself and keeps state and cell to
itself; the weights come from the cache at every character.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _product(a, b, PRECISION: tl.constexpr, HALF: tl.constexpr):
    if HALF:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _forward(
    table, codes, weight, states, cells, gates, points, symbols,
    LENGTH: tl.constexpr, HIDDEN: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
    PRECISION: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.arange(0, BH)
    k = tl.arange(0, BH)
    inside = (p < points)[:, None] & (j < HIDDEN)[None, :]
    square = (j < HIDDEN)[None, :] & (k < HIDDEN)[:, None]
    kernel = weight + copy * 4 * HIDDEN * HIDDEN + j[None, :] * HIDDEN + k[:, None]
    state = tl.zeros((BM, BH), dtype=tl.float32)
    cell = tl.zeros((BM, BH), dtype=tl.float32)
    for t in range(LENGTH):
        code = tl.load(codes + (copy * points + p) * LENGTH + t, mask=p < points, other=0)
        at = table + (copy * symbols + code)[:, None] * 4 * HIDDEN + j[None, :]
        w = tl.load(kernel, mask=square, other=0.0)
        i = tl.load(at, mask=inside, other=0.0) + _product(state, w, PRECISION, HALF)
        w = tl.load(kernel + HIDDEN * HIDDEN, mask=square, other=0.0)
        f = tl.load(at + HIDDEN, mask=inside, other=0.0) + _product(state, w, PRECISION, HALF)
        w = tl.load(kernel + 2 * HIDDEN * HIDDEN, mask=square, other=0.0)
        g = tl.load(at + 2 * HIDDEN, mask=inside, other=0.0) + _product(state, w, PRECISION, HALF)
        w = tl.load(kernel + 3 * HIDDEN * HIDDEN, mask=square, other=0.0)
        o = tl.load(at + 3 * HIDDEN, mask=inside, other=0.0) + _product(state, w, PRECISION, HALF)
        i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
        cell = tl.where(inside, f * cell + i * g, 0.0)
        state = tl.where(inside, o * _tanh(cell), 0.0)
        at = ((copy * (LENGTH + 1) + t + 1) * points + p)[:, None] * HIDDEN + j[None, :]
        tl.store(cells + at, cell, mask=inside)
        tl.store(states + at, state, mask=inside)
        at = gates + ((copy * LENGTH + t) * points + p)[:, None] * 4 * HIDDEN + j[None, :]
        tl.store(at, i, mask=inside)
        tl.store(at + HIDDEN, f, mask=inside)
        tl.store(at + 2 * HIDDEN, g, mask=inside)
        tl.store(at + 3 * HIDDEN, o, mask=inside)


@triton.jit
def _backward(
    d_last, turned, cells, gates, d_gates, points,
    LENGTH: tl.constexpr, HIDDEN: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
    PRECISION: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.arange(0, BH)
    k = tl.arange(0, BH)
    inside = (p < points)[:, None] & (j < HIDDEN)[None, :]
    square = (j < HIDDEN)[None, :] & (k < HIDDEN)[:, None]
    kernel = turned + copy * 4 * HIDDEN * HIDDEN + j[None, :] * 4 * HIDDEN + k[:, None]
    at = (copy * points + p)[:, None] * HIDDEN + j[None, :]
    d_state = tl.load(d_last + at, mask=inside, other=0.0)
    d_cell = tl.zeros((BM, BH), dtype=tl.float32)
    for back in range(LENGTH):
        t = LENGTH - 1 - back
        at = ((copy * (LENGTH + 1) + t) * points + p)[:, None] * HIDDEN + j[None, :]
        before = tl.load(cells + at, mask=inside, other=0.0)
        after = _tanh(tl.load(cells + at + points * HIDDEN, mask=inside, other=0.0))
        at = ((copy * LENGTH + t) * points + p)[:, None] * 4 * HIDDEN + j[None, :]
        i = tl.load(gates + at, mask=inside, other=0.0)
        f = tl.load(gates + at + HIDDEN, mask=inside, other=0.0)
        g = tl.load(gates + at + 2 * HIDDEN, mask=inside, other=0.0)
        o = tl.load(gates + at + 3 * HIDDEN, mask=inside, other=0.0)
        d = d_cell + d_state * o * (1 - after * after)
        d_cell = d * f
        d_o = d_state * after * o * (1 - o)
        w = tl.load(kernel + 3 * HIDDEN, mask=square, other=0.0)
        d_state = _product(d_o, w, PRECISION, HALF)
        tl.store(d_gates + at + 3 * HIDDEN, d_o, mask=inside)
        d_i = d * g * i * (1 - i)
        w = tl.load(kernel, mask=square, other=0.0)
        d_state += _product(d_i, w, PRECISION, HALF)
        tl.store(d_gates + at, d_i, mask=inside)
        d_f = d * before * f * (1 - f)
        w = tl.load(kernel + HIDDEN, mask=square, other=0.0)
        d_state += _product(d_f, w, PRECISION, HALF)
        tl.store(d_gates + at + HIDDEN, d_f, mask=inside)
        d_g = d * i * (1 - g * g)
        w = tl.load(kernel + 2 * HIDDEN, mask=square, other=0.0)
        d_state += _product(d_g, w, PRECISION, HALF)
        tl.store(d_gates + at + 2 * HIDDEN, d_g, mask=inside)


FORWARD: dict[str, int] = {"BM": 16, "num_warps": 4, "num_stages": 1}
BACKWARD: dict[str, int] = {"BM": 16, "num_warps": 4, "num_stages": 1}
"""Tiles, as measured on an H200 with the net of the paper."""


def run_forward(
    table: torch.Tensor,
    codes: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor,
    cells: torch.Tensor,
    gates: torch.Tensor,
    how: dict[str, Any],
) -> None:
    """Fill states, cells (copy, time + 1, point, hidden) and gates (copy, time, point, ...)."""
    copies, points, length = codes.shape
    hidden = states.shape[3]
    _forward[(triton.cdiv(points, FORWARD["BM"]), copies)](
        table, codes, weight, states, cells, gates, points, table.shape[1],
        LENGTH=length, HIDDEN=hidden, BH=max(16, triton.next_power_of_2(hidden)), **FORWARD, **how,
    )  # fmt: skip


def run_backward(
    d_last: torch.Tensor,
    weight: torch.Tensor,
    cells: torch.Tensor,
    gates: torch.Tensor,
    how: dict[str, Any],
) -> torch.Tensor:
    """The gradient of all gates before their nonlinearities, in the shape of ``gates``."""
    copies, length, points = gates.shape[:3]
    hidden = d_last.shape[2]
    d_gates = torch.empty_like(gates)
    _backward[(triton.cdiv(points, BACKWARD["BM"]), copies)](
        d_last, weight.mT.contiguous(), cells, gates, d_gates, points,
        LENGTH=length, HIDDEN=hidden, BH=max(16, triton.next_power_of_2(hidden)), **BACKWARD,
        **how,
    )  # fmt: skip
    return d_gates
