"""The LSTM over a whole window, for all copies: one kernel forward, one backward.

Samples are independent, so a program takes a few samples of one copy with all
hidden units through all characters, and keeps state and cell to itself. Rows are
hidden units and columns samples, so that the weights are the larger operand of
the products. In half precision they stay in shared memory from the first
character to the last; in single precision they do not fit and are read from the
cache at every character.

fp16 has as many digits as TF32 but a smaller range, so gradients are scaled up,
and operands that are too large are clipped; a copy in which that happened is
marked. What the kernels write for each other is in fp16 then, too: it is most of
what a step moves.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from fedast.training.kernels.net import Precision, gradient_scale


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _bounded(x, OPERAND: tl.constexpr):
    """As an operand, clipped to the range of fp16 if it is one."""
    if tl.float16 == OPERAND:
        x = tl.clamp(x, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(OPERAND)


@triton.jit
def _load(kernel, square, OPERAND: tl.constexpr):
    return _bounded(tl.load(kernel, mask=square, other=0.0), OPERAND)


@triton.jit
def _load_marked(kernel, square, mark, OPERAND: tl.constexpr):
    """The same, with a mark if a weight is clipped."""
    weight = tl.load(kernel, mask=square, other=0.0)
    if tl.float16 == OPERAND:
        tl.store(mark, 1, mask=tl.max(tl.abs(weight)) > 65504.0)
    return _bounded(weight, OPERAND)


@triton.jit
def _four(at, HIDDEN: tl.constexpr, inside):
    """A tile of each of the four gates, as it is stored."""
    i = tl.load(at, mask=inside, other=0.0)
    f = tl.load(at + HIDDEN, mask=inside, other=0.0)
    g = tl.load(at + 2 * HIDDEN, mask=inside, other=0.0)
    o = tl.load(at + 3 * HIDDEN, mask=inside, other=0.0)
    return i, f, g, o


@triton.jit
def _forward(
    table, codes, weight, states, cells, gates, samples, symbols,
    LENGTH: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, BP: tl.constexpr,
    BH: tl.constexpr, PRECISION: tl.constexpr, OPERAND: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """KEEP: write everything that the backward pass needs, else only the last state. WIDTH: of a
    row of states."""
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    j = tl.arange(0, BH)
    k = tl.arange(0, BH)
    inside = (j < HIDDEN)[:, None] & (p < samples)[None, :]
    square = (j < HIDDEN)[:, None] & (k < HIDDEN)[None, :]
    kernel = weight + copy * 4 * HIDDEN * HIDDEN + j[:, None] * HIDDEN + k[None, :]
    size = HIDDEN * HIDDEN
    resident: tl.constexpr = tl.float32 != OPERAND
    if resident:
        wi = _load(kernel, square, OPERAND)
        wf = _load(kernel + size, square, OPERAND)
        wg = _load(kernel + 2 * size, square, OPERAND)
        wo = _load(kernel + 3 * size, square, OPERAND)
    state = tl.zeros((BH, BP), dtype=tl.float32)
    cell = tl.zeros((BH, BP), dtype=tl.float32)
    text = codes + (copy * samples + p) * LENGTH
    rows = table + copy * symbols * 4 * HIDDEN + j[:, None]
    code = tl.load(text, mask=p < samples, other=0)
    i, f, g, o = _four(rows + code[None, :] * 4 * HIDDEN, HIDDEN, inside)
    code = tl.load(text + 1 % LENGTH, mask=p < samples, other=0)
    for t in range(LENGTH):
        # What the next character adds is read while this one is worked on.
        next_i, next_f, next_g, next_o = _four(rows + code[None, :] * 4 * HIDDEN, HIDDEN, inside)
        code = tl.load(text + tl.minimum(t + 2, LENGTH - 1), mask=p < samples, other=0)
        before = state.to(OPERAND)
        if resident:
            i = tl.dot(wi, before, i)
            f = tl.dot(wf, before, f)
            g = tl.dot(wg, before, g)
            o = tl.dot(wo, before, o)
        else:
            w = _load(kernel, square, OPERAND)
            i = tl.dot(w, before, i, input_precision=PRECISION)
            w = _load(kernel + size, square, OPERAND)
            f = tl.dot(w, before, f, input_precision=PRECISION)
            w = _load(kernel + 2 * size, square, OPERAND)
            g = tl.dot(w, before, g, input_precision=PRECISION)
            w = _load(kernel + 3 * size, square, OPERAND)
            o = tl.dot(w, before, o, input_precision=PRECISION)
        i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
        cell = tl.where(inside, f * cell + i * g, 0.0)
        state = tl.where(inside, o * _tanh(cell), 0.0)
        if KEEP:
            row = ((copy * (LENGTH + 1) + t + 1) * samples + p)[None, :]
            tl.store(cells + row * HIDDEN + j[:, None], cell, mask=inside)
            tl.store(states + row * WIDTH + j[:, None], state, mask=inside)
            at = gates + ((copy * LENGTH + t) * samples + p)[None, :] * 4 * HIDDEN + j[:, None]
            tl.store(at, i, mask=inside)
            tl.store(at + HIDDEN, f, mask=inside)
            tl.store(at + 2 * HIDDEN, g, mask=inside)
            tl.store(at + 3 * HIDDEN, o, mask=inside)
        i, f, g, o = next_i, next_f, next_g, next_o
    if not KEEP:
        at = (copy * samples + p)[None, :] * WIDTH + j[:, None]
        tl.store(states + at, state, mask=inside)


@triton.jit
def _backward(
    d_last, transposed, cells, gates, d_gates, saturated, samples, scale,
    LENGTH: tl.constexpr, HIDDEN: tl.constexpr, BP: tl.constexpr, BH: tl.constexpr,
    PRECISION: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """``transposed``: (copy, hidden, 4 hidden). Gradients are multiplied by ``scale``."""
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    j = tl.arange(0, BH)
    k = tl.arange(0, BH)
    inside = (j < HIDDEN)[:, None] & (p < samples)[None, :]
    square = (j < HIDDEN)[:, None] & (k < HIDDEN)[None, :]
    kernel = transposed + copy * 4 * HIDDEN * HIDDEN + j[:, None] * 4 * HIDDEN + k[None, :]
    resident: tl.constexpr = tl.float32 != OPERAND
    if resident:
        wi = _load_marked(kernel, square, saturated + copy, OPERAND)
        wf = _load_marked(kernel + HIDDEN, square, saturated + copy, OPERAND)
        wg = _load_marked(kernel + 2 * HIDDEN, square, saturated + copy, OPERAND)
        wo = _load_marked(kernel + 3 * HIDDEN, square, saturated + copy, OPERAND)
    at = (copy * samples + p)[None, :] * HIDDEN + j[:, None]
    d_state = tl.load(d_last + at, mask=inside, other=0.0) * scale
    d_cell = tl.zeros((BH, BP), dtype=tl.float32)
    largest = tl.zeros((BH, BP), dtype=tl.float32)
    own = p[None, :] * HIDDEN + j[:, None]
    cell = cells + copy * (LENGTH + 1) * samples * HIDDEN + own
    gate = gates + copy * LENGTH * samples * 4 * HIDDEN + p[None, :] * 4 * HIDDEN + j[:, None]
    step = samples * HIDDEN
    after = _tanh(tl.load(cell + LENGTH * step, mask=inside, other=0.0).to(tl.float32))
    stored = tl.load(cell + (LENGTH - 1) * step, mask=inside, other=0.0)
    stored_i, stored_f, stored_g, stored_o = _four(gate + (LENGTH - 1) * 4 * step, HIDDEN, inside)
    for back in range(LENGTH):
        t = LENGTH - 1 - back
        before = stored.to(tl.float32)
        i, f = stored_i.to(tl.float32), stored_f.to(tl.float32)
        g, o = stored_g.to(tl.float32), stored_o.to(tl.float32)
        # What the character before it needs is read while this one is worked on.
        earlier = tl.maximum(t - 1, 0)
        stored = tl.load(cell + earlier * step, mask=inside, other=0.0)
        stored_i, stored_f, stored_g, stored_o = _four(gate + earlier * 4 * step, HIDDEN, inside)
        d = d_cell + d_state * o * (1 - after * after)
        d_cell = d * f
        d_o = d_state * after * o * (1 - o)
        d_i = d * g * i * (1 - i)
        d_f = d * before * f * (1 - f)
        d_g = d * i * (1 - g * g)
        if tl.float16 == OPERAND:
            largest = tl.maximum(largest, tl.maximum(tl.abs(d_o), tl.abs(d_i)))
            largest = tl.maximum(largest, tl.maximum(tl.abs(d_f), tl.abs(d_g)))
        d_i, d_f = _bounded(d_i, OPERAND), _bounded(d_f, OPERAND)
        d_g, d_o = _bounded(d_g, OPERAND), _bounded(d_o, OPERAND)
        if resident:
            d_state = tl.dot(wo, d_o)
            d_state = tl.dot(wi, d_i, d_state)
            d_state = tl.dot(wf, d_f, d_state)
            d_state = tl.dot(wg, d_g, d_state)
        else:
            w = _load(kernel + 3 * HIDDEN, square, OPERAND)
            d_state = tl.dot(w, d_o, input_precision=PRECISION)
            w = _load(kernel, square, OPERAND)
            d_state = tl.dot(w, d_i, d_state, input_precision=PRECISION)
            w = _load(kernel + HIDDEN, square, OPERAND)
            d_state = tl.dot(w, d_f, d_state, input_precision=PRECISION)
            w = _load(kernel + 2 * HIDDEN, square, OPERAND)
            d_state = tl.dot(w, d_g, d_state, input_precision=PRECISION)
        after = _tanh(before)
        at = ((copy * LENGTH + t) * samples + p)[None, :] * 4 * HIDDEN + j[:, None]
        tl.store(d_gates + at, d_i, mask=inside)
        tl.store(d_gates + at + HIDDEN, d_f, mask=inside)
        tl.store(d_gates + at + 2 * HIDDEN, d_g, mask=inside)
        tl.store(d_gates + at + 3 * HIDDEN, d_o, mask=inside)
    if tl.float16 == OPERAND:
        tl.store(saturated + copy, 1, mask=tl.max(largest) > 65504.0)


FORWARD: dict[int, float] = {16: 0.34, 32: 0.58}
"""Milliseconds that a program takes for the samples it has."""
BACKWARD: dict[str, int] = {"BP": 16, "num_warps": 8, "num_stages": 1}
LAST: dict[str, int] = {"BP": 32, "num_warps": 8, "num_stages": 1}
"""Tiles. These, too, were measured on an H200 with the net of the paper."""


def forward_tile(copies: int, samples: int, multiprocessors: int) -> dict[str, int]:
    """The one that is done first: in half precision the weights take a multiprocessor's shared
    memory, so each of them runs one program at a time."""

    def cost(size: int) -> float:
        rounds: int = triton.cdiv(copies * triton.cdiv(samples, size), multiprocessors)
        return rounds * FORWARD[size]

    return {"BP": min(FORWARD, key=cost), "num_warps": 8, "num_stages": 1}


@cache
def _count(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _multiprocessors(x: torch.Tensor) -> int:
    return _count(x.device.index or 0) if x.is_cuda else 1


_OPERANDS = {
    "fp32": tl.float32,
    "tf32": tl.float32,
    "fp16": tl.float16,
    "bf16": tl.bfloat16,
}


def has_room(hidden: int, device: int) -> bool:
    """Whether the weights in half precision fit into shared memory, with room to work."""
    found = triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"]
    return bool(4 * 2 * _side(hidden) ** 2 + 30_000 <= found)


def run_forward(
    table: torch.Tensor,
    codes: torch.Tensor,
    weight: torch.Tensor,
    states: torch.Tensor,
    cells: torch.Tensor,
    gates: torch.Tensor,
    precision: Precision,
) -> None:
    """Fill states, cells (copy, time + 1, sample, hidden) and gates (copy, time, sample, ...); rows
    of states may be longer."""
    copies, samples, length = codes.shape
    tile = forward_tile(copies, samples, _multiprocessors(codes))
    _forward[(triton.cdiv(samples, tile["BP"]), copies)](
        table, codes, weight, states, cells, gates, samples, table.shape[1],
        LENGTH=length, WIDTH=states.shape[3], KEEP=True, **tile,
        **_how(cells.shape[3], precision),
    )  # fmt: skip


def last_states(
    table: torch.Tensor, codes: torch.Tensor, weight: torch.Tensor, precision: Precision
) -> torch.Tensor:
    """Only the states after the last character: (copy, sample, hidden)."""
    copies, samples, length = codes.shape
    states = table.new_empty(copies, samples, weight.shape[2])
    _forward[(triton.cdiv(samples, LAST["BP"]), copies)](
        table, codes, weight, states, states, states, samples, table.shape[1],
        LENGTH=length, WIDTH=weight.shape[2], KEEP=False, **LAST,
        **_how(weight.shape[2], precision),
    )  # fmt: skip
    return states


def run_backward(
    d_last: torch.Tensor,
    weight: torch.Tensor,
    cells: torch.Tensor,
    gates: torch.Tensor,
    saturated: torch.Tensor,
    precision: Precision,
) -> torch.Tensor:
    """The gradient of all gates before their nonlinearities, in the shape and type of ``gates``,
    multiplied by ``gradient_scale`` of that.

    ``saturated`` has a mark for each copy, which fp16 sets when a value is clipped.
    """
    copies, length, samples = gates.shape[:3]
    d_gates = torch.empty_like(gates)
    _backward[(triton.cdiv(samples, BACKWARD["BP"]), copies)](
        d_last, weight.mT.contiguous(), cells, gates, d_gates, saturated, samples,
        gradient_scale(gates.dtype), LENGTH=length, **BACKWARD, **_how(d_last.shape[2], precision),
    )  # fmt: skip
    return d_gates


def _side(hidden: int) -> int:
    return max(64, int(triton.next_power_of_2(hidden)))


def _how(hidden: int, precision: Precision) -> dict[str, Any]:
    return {
        "HIDDEN": hidden,
        "BH": _side(hidden),
        "PRECISION": "ieee" if precision == "fp32" else "tf32",
        "OPERAND": _OPERANDS[precision],
    }
