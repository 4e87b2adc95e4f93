"""The Triton kernels behind ``half_cell``, which explains them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    """Five instructions: powers of two and roots are one each, an exact quotient is many."""
    root = tl.rsqrt(1.0 + tl.exp2(-1.4426950408889634 * x))
    return root * root


@triton.jit
def _tanh(x):
    return 2 * _sigmoid(2 * x) - 1


@triton.jit
def _bounded(x, OPERAND: tl.constexpr):
    """As an operand, clipped to the range of fp16 if it is one."""
    if tl.float16 == OPERAND:
        x = tl.clamp(x, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(OPERAND)


@triton.jit
def _stored(x, mark, OPERAND: tl.constexpr):
    """The same, with a mark if that changes it."""
    if tl.float16 == OPERAND:
        tl.store(mark, 1, mask=tl.max(tl.abs(x)) > 65504.0)
    return _bounded(x, OPERAND)


@triton.jit
def join(
    w_state, w_in, b_in, b_state, embedding, weights, vectors, saturated, symbols,
    HIDDEN: tl.constexpr, EMBEDDED: tl.constexpr, BH: tl.constexpr, BE: tl.constexpr,
    ROWS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Weights of state, symbol and bias side by side, gate by gate, filled up with zeros; and the
    symbols' vectors, each with two ones: the bias is a sum of two operands, to keep its digits."""
    copy = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BH)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = row % BH
    given = (row // BH * HIDDEN + unit)[:, None]
    inside = (unit < HIDDEN)[:, None] & (row < 4 * BH)[:, None]
    own = copy * 4 * HIDDEN
    state = tl.load(w_state + own * HIDDEN + given * HIDDEN + k[None, :],
                    mask=inside & (k < HIDDEN)[None, :], other=0.0)  # fmt: skip
    e = k - HIDDEN
    symbol = tl.load(w_in + own * EMBEDDED + given * EMBEDDED + e[None, :],
                     mask=inside & ((e >= 0) & (e < EMBEDDED))[None, :], other=0.0)  # fmt: skip
    bias = tl.load(b_in + own + given, mask=inside, other=0.0)
    bias += tl.load(b_state + own + given, mask=inside, other=0.0)
    most = _bounded(bias, OPERAND).to(tl.float32)
    value = state + symbol + tl.where((e == EMBEDDED)[None, :], most, 0.0)
    value += tl.where((e == EMBEDDED + 1)[None, :], bias - most, 0.0)
    tl.store(weights + (copy * 4 * BH + row)[:, None] * BH + k[None, :],
             _stored(value, saturated + copy, OPERAND), mask=(row < 4 * BH)[:, None])  # fmt: skip
    e = tl.arange(0, BE)
    vector = tl.load(
        embedding + (copy * symbols + row)[:, None] * EMBEDDED + e[None, :],
        mask=(row < symbols)[:, None] & (e < EMBEDDED)[None, :], other=0.0,
    )  # fmt: skip
    vector = tl.where((e >= EMBEDDED)[None, :], 1.0, vector)
    tl.store(vectors + (copy * symbols + row)[:, None] * (EMBEDDED + 2) + e[None, :],
             _stored(vector, saturated + copy, OPERAND),
             mask=(row < symbols)[:, None] & (e < EMBEDDED + 2)[None, :])  # fmt: skip


@triton.jit
def hot(
    codes, rows, samples, pairs,
    LENGTH: tl.constexpr, WIDTH: tl.constexpr, SYMBOLS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Each character's code, one-hot, at the start of its row."""
    copy = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BM + tl.arange(0, BM)  # time and sample
    n = tl.arange(0, BN)
    t, p = at // samples, at % samples
    code = tl.load(codes + (copy * samples + p) * LENGTH + t, mask=at < pairs, other=-1)
    to = rows + (copy * (pairs + samples) + at)[:, None] * WIDTH + n[None, :]
    one = tl.where(code.to(tl.int32)[:, None] == n[None, :], 1.0, 0.0)
    inside = (at < pairs)[:, None] & (n < SYMBOLS)[None, :]
    tl.store(to, one.to(rows.dtype.element_ty), mask=inside)


@triton.jit
def _packed(low, high):
    low = low.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    high = high.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.int32)
    return low | (high << 16)


@triton.jit
def _unpacked(pair):
    low = pair.to(tl.uint16).to(tl.float16, bitcast=True)
    high = (pair >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def _store_gates(at, i, f, g, o, inside, HIDDEN: tl.constexpr, PACKED: tl.constexpr):
    if PACKED:
        tl.store(at, _packed(i, f), mask=inside)
        tl.store(at + HIDDEN, _packed(g, o), mask=inside)
    else:
        tl.store(at, i, mask=inside)
        tl.store(at + HIDDEN, f, mask=inside)
        tl.store(at + 2 * HIDDEN, g, mask=inside)
        tl.store(at + 3 * HIDDEN, o, mask=inside)


@triton.jit
def _load_gates(at, inside, HIDDEN: tl.constexpr, PACKED: tl.constexpr):
    """As they lie there; not all four if they are packed."""
    one = tl.load(at, mask=inside, other=0)
    two = tl.load(at + HIDDEN, mask=inside, other=0)
    three, four = one, two
    if not PACKED:
        three = tl.load(at + 2 * HIDDEN, mask=inside, other=0)
        four = tl.load(at + 3 * HIDDEN, mask=inside, other=0)
    return one, two, three, four


@triton.jit
def forward(
    weights, vectors, codes, states, cells, gates, samples, symbols,
    LENGTH: tl.constexpr, HIDDEN: tl.constexpr, EXTRA: tl.constexpr, WIDTH: tl.constexpr,
    BP: tl.constexpr, BH: tl.constexpr, OPERAND: tl.constexpr, KEEP: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """KEEP: write everything that the backward pass needs, else only the last state. WIDTH: of a
    row of states. EXTRA: of a symbol's vector."""
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    j = tl.arange(0, BH)
    inside = (j < HIDDEN)[:, None] & (p < samples)[None, :]
    unit = tl.arange(0, 4 * BH)
    w = tl.load(weights + copy * 4 * BH * BH + unit[:, None] * BH + j[None, :])
    state = tl.zeros((BH, BP), dtype=tl.float32)
    cell = tl.zeros((BH, BP), dtype=tl.float32)
    text = codes + (copy * samples + p) * LENGTH
    vector = vectors + copy * symbols * EXTRA + (j - HIDDEN)[:, None]
    read = ((j >= HIDDEN) & (j < HIDDEN + EXTRA))[:, None] & (p < samples)[None, :]
    code = tl.load(text, mask=p < samples, other=0).to(tl.int32)
    symbol = tl.load(vector + code[None, :] * EXTRA, mask=read, other=0.0)
    code = tl.load(text + 1 % LENGTH, mask=p < samples, other=0).to(tl.int32)
    for t in range(LENGTH):
        before = tl.where((j < HIDDEN)[:, None], state.to(OPERAND), symbol)
        # What the next character adds is read while this one is worked on.
        symbol = tl.load(vector + code[None, :] * EXTRA, mask=read, other=0.0)
        code = tl.load(text + tl.minimum(t + 2, LENGTH - 1), mask=p < samples, other=0).to(tl.int32)
        total = tl.permute(tl.reshape(tl.dot(w, before), (2, 2, BH, BP)), (2, 3, 0, 1))
        even, odd = tl.split(total)
        i, g = tl.split(even)
        f, o = tl.split(odd)
        i, f, g, o = _sigmoid(i), _sigmoid(f), _tanh(g), _sigmoid(o)
        cell = tl.where(inside, f * cell + i * g, 0.0)
        state = tl.where(inside, o * _tanh(cell), 0.0)
        if KEEP:
            row = ((copy * (LENGTH + 1) + t + 1) * samples + p)[None, :]
            tl.store(cells + row * HIDDEN + j[:, None], cell, mask=inside)
            tl.store(states + row * WIDTH + j[:, None], state, mask=inside)
            row = ((copy * LENGTH + t) * samples + p)[None, :] * (2 if PACKED else 4) * HIDDEN
            _store_gates(gates + row + j[:, None], i, f, g, o, inside, HIDDEN, PACKED)
    if not KEEP:
        at = (copy * samples + p)[None, :] * WIDTH + j[:, None]
        tl.store(states + at, state, mask=inside)


@triton.jit
def backward(
    d_last, weights, cells, gates, d_gates, saturated, samples, scale,
    LENGTH: tl.constexpr, HIDDEN: tl.constexpr, BP: tl.constexpr, BH: tl.constexpr,
    OPERAND: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Gradients are multiplied by ``scale``."""
    copy = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    j = tl.arange(0, BH)
    inside = (j < HIDDEN)[:, None] & (p < samples)[None, :]
    unit = tl.arange(0, 4 * BH)
    w = tl.load(weights + copy * 4 * BH * BH + unit[None, :] * BH + j[:, None],
                mask=(j < HIDDEN)[:, None], other=0.0)  # fmt: skip
    at = (copy * samples + p)[None, :] * HIDDEN + j[:, None]
    d_state = tl.load(d_last + at, mask=inside, other=0.0) * scale
    d_cell = tl.zeros((BH, BP), dtype=tl.float32)
    largest = tl.zeros((BH, BP), dtype=tl.float32)
    WIDE: tl.constexpr = 2 * HIDDEN if PACKED else 4 * HIDDEN
    cell = cells + copy * (LENGTH + 1) * samples * HIDDEN + p[None, :] * HIDDEN + j[:, None]
    own = copy * LENGTH * samples * WIDE + p[None, :] * WIDE + j[:, None]
    after = _tanh(tl.load(cell + LENGTH * samples * HIDDEN, mask=inside, other=0.0).to(tl.float32))
    stored = tl.load(cell + (LENGTH - 1) * samples * HIDDEN, mask=inside, other=0.0)
    one, two, three, four = _load_gates(
        gates + own + (LENGTH - 1) * samples * WIDE, inside, HIDDEN, PACKED
    )
    for back in range(LENGTH):
        t = LENGTH - 1 - back
        # What has been read must change places between threads to meet what the product left in
        # them. The compiler does that where they first meet: better here than with what follows.
        zero = tl.where(largest < 0.0, 1, 0)
        before = stored.to(tl.float32) + zero
        if PACKED:
            i, f = _unpacked(one | zero)
            g, o = _unpacked(two | zero)
        else:
            i, f, g, o = one + zero, two + zero, three + zero, four + zero
        # What the character before it needs is read while this one is worked on.
        earlier = tl.maximum(t - 1, 0) * samples
        stored = tl.load(cell + earlier * HIDDEN, mask=inside, other=0.0)
        one, two, three, four = _load_gates(gates + own + earlier * WIDE, inside, HIDDEN, PACKED)
        d = d_cell + d_state * o * (1 - after * after)
        d_cell = d * f
        d_o = d_state * after * o * (1 - o)
        d_i = d * g * i * (1 - i)
        d_f = d * before * f * (1 - f)
        d_g = d * i * (1 - g * g)
        largest = tl.maximum(largest, tl.maximum(tl.abs(d_o), tl.abs(d_i)))
        largest = tl.maximum(largest, tl.maximum(tl.abs(d_f), tl.abs(d_g)))
        d_i, d_f = _bounded(d_i, OPERAND), _bounded(d_f, OPERAND)
        d_g, d_o = _bounded(d_g, OPERAND), _bounded(d_o, OPERAND)
        all_four = tl.join(tl.join(d_i, d_f), tl.join(d_g, d_o))
        d_state = tl.dot(w, tl.reshape(tl.permute(all_four, (3, 2, 0, 1)), (4 * BH, BP)))
        after = _tanh(before)
        to = d_gates + own + t * samples * WIDE
        _store_gates(to, d_i, d_f, d_g, d_o, inside, HIDDEN, PACKED)
    if tl.float16 == OPERAND:
        tl.store(saturated + copy, 1, mask=tl.max(largest) > 65504.0)
