"""The LSTM over a whole window in half precision: one kernel forward, one backward.

Samples are independent, so a program takes a few samples of one copy with all
hidden units through all characters, and keeps state and cell to itself. Rows are
hidden units and columns samples, so that the weights are the larger operand of the
products. They stay in shared memory from the first character to the last, those of
all four gates as one matrix. Matrix units take powers of two, so there is room
behind the hidden units: what a character adds, its vector and the bias, is
multiplied along with the state.

fp16 has as many digits as TF32 but a smaller range, so gradients are scaled up,
and operands that are too large are clipped; a copy in which that happened is
marked. What the kernels write for each other is in fp16 then, too: it is most of
what a step moves. A unit's gates lie in pairs there (input and forget, candidate
and output), which are read and written as one number: on its way between memory
and the matrix unit a tile goes through shared memory, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import torch
import triton
import triton.language as tl

from fedast.training.kernels import half_cell_kernels as kernels
from fedast.training.kernels.net import Precision, gradient_scale

FORWARD: dict[int, float] = {16: 0.193, 32: 0.313}
BACKWARD: dict[int, float] = {16: 0.169, 32: 0.316}
"""Milliseconds that a program takes for the samples it has, on an H200 with the net of the
paper."""
LAST: dict[str, int] = {"BP": 32, "num_warps": 8, "num_stages": 1}
"""The tile that was fastest there if only the last states are wanted."""

_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_OPERANDS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def _side(hidden: int, embedded: int) -> int:
    """Of a gate's weights: of state, a symbol's vector, and the bias, twice."""
    return max(64, int(triton.next_power_of_2(hidden + embedded + 2)))


def has_room(hidden: int, embedded: int, device: int) -> bool:
    """Whether the weights fit into shared memory, with room to work."""
    found = triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"]
    return bool(4 * 2 * _side(hidden, embedded) ** 2 + 30_000 <= found)


def fastest_tile(
    times: Mapping[int, float], copies: int, samples: int, multiprocessors: int
) -> dict[str, int]:
    """The one that is done first: the weights take a multiprocessor's shared memory, so each of
    them runs one program at a time."""

    def cost(size: int) -> float:
        rounds: int = triton.cdiv(copies * triton.cdiv(samples, size), multiprocessors)
        return rounds * times[size]

    return {"BP": min(times, key=cost), "num_warps": 8, "num_stages": 1}


@cache
def _count(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _multiprocessors(x: torch.Tensor) -> int:
    return _count(x.device.index or 0) if x.is_cuda else 1


@final
@dataclass(frozen=True, slots=True)
class Operands:
    """What an LSTM's characters are multiplied with."""

    weights: torch.Tensor
    """(copy, gate and unit, state and symbol), filled up with zeros."""
    vectors: torch.Tensor
    """(copy, symbol, ...)"""
    hidden: int

    def how(self) -> dict[str, Any]:
        return {
            "HIDDEN": self.hidden,
            "BH": self.weights.shape[2],
            "OPERAND": _OPERANDS[self.weights.dtype],
        }

    def run_forward(
        self, codes: torch.Tensor, states: torch.Tensor, cells: torch.Tensor, gates: torch.Tensor
    ) -> None:
        """Fill states, cells (copy, time + 1, sample, hidden) and gates (copy, time, sample, ...);
        the order of gates is known to ``in_order``, and rows of states may lie apart."""
        copies, samples, length = codes.shape
        tile = fastest_tile(FORWARD, copies, samples, _multiprocessors(codes))
        kernels.forward[(triton.cdiv(samples, tile["BP"]), copies)](
            self.weights, self.vectors, codes, states, cells, *_pairs(gates), samples,
            self.vectors.shape[1], LENGTH=length, EXTRA=self.vectors.shape[2],
            WIDTH=states.stride(2), KEEP=True, PACKED=_is_packed(gates), **tile, **self.how(),
        )  # fmt: skip

    def last_states(self, codes: torch.Tensor) -> torch.Tensor:
        """Only the states after the last character: (copy, sample, hidden)."""
        copies, samples, length = codes.shape
        states = codes.new_empty((copies, samples, self.hidden), dtype=torch.float32)
        kernels.forward[(triton.cdiv(samples, LAST["BP"]), copies)](
            self.weights, self.vectors, codes, states, states, states, samples,
            self.vectors.shape[1], LENGTH=length, EXTRA=self.vectors.shape[2],
            WIDTH=self.hidden, KEEP=False, PACKED=False, **LAST, **self.how(),
        )  # fmt: skip
        return states

    def run_backward(
        self,
        d_last: torch.Tensor,
        cells: torch.Tensor,
        gates: torch.Tensor,
        saturated: torch.Tensor,
    ) -> torch.Tensor:
        """The gradient of all gates before their nonlinearities, in the shape, type and order of
        ``gates``, multiplied by ``gradient_scale`` of that."""
        copies, length, samples = gates.shape[:3]
        d_gates = torch.empty_like(gates)
        tile = fastest_tile(BACKWARD, copies, samples, _multiprocessors(gates))
        kernels.backward[(triton.cdiv(samples, tile["BP"]), copies)](
            d_last, self.weights, cells, *_pairs(gates, d_gates), saturated, samples,
            gradient_scale(gates.dtype), LENGTH=length, PACKED=_is_packed(gates), **tile,
            **self.how(),
        )  # fmt: skip
        return d_gates

    def in_order(self, x: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
        """(copy, gate and unit, ...), from the order of gates of this type in memory to all units
        of one gate after another."""
        if stored != torch.float16:
            return x
        copies, _, *rest = x.shape
        return x.view(copies, 2, self.hidden, 2, *rest).transpose(2, 3).reshape(x.shape)


def join(
    w_state: torch.Tensor,
    w_in: torch.Tensor,
    biases: tuple[torch.Tensor, torch.Tensor],
    embedding: torch.Tensor,
    saturated: torch.Tensor,
    precision: Precision,
) -> Operands:
    """``saturated`` has a mark for each copy, which fp16 sets when a value is clipped."""
    copies, _, hidden = w_state.shape
    symbols, embedded = embedding.shape[1:]
    side, rows = _side(hidden, embedded), 32
    made = Operands(
        w_state.new_empty((copies, 4 * side, side), dtype=_TYPES[precision]),
        w_state.new_empty((copies, symbols, embedded + 2), dtype=_TYPES[precision]),
        hidden,
    )
    kernels.join[(triton.cdiv(max(4 * side, symbols), rows), copies)](
        w_state, w_in, *biases, embedding, made.weights, made.vectors, saturated, symbols,
        EMBEDDED=embedded, BE=int(triton.next_power_of_2(embedded + 2)), ROWS=rows, **made.how(),
    )  # fmt: skip
    return made


def write_hot(codes: torch.Tensor, rows: torch.Tensor, symbols: int) -> None:
    """Write codes (copy, sample, time), one-hot, to the first columns of (copy, time, sample, ...),
    except for the last time."""
    copies, samples, length = codes.shape
    width, block = rows.shape[3], 64
    kernels.hot[(triton.cdiv(length * samples, block), copies)](
        codes, rows, samples, length * samples, LENGTH=length, WIDTH=width, SYMBOLS=symbols,
        BM=block, BN=int(triton.next_power_of_2(symbols)),
    )  # fmt: skip


def _is_packed(gates: torch.Tensor) -> bool:
    return gates.dtype == torch.float16


def _pairs(*gates: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As the kernels take them."""
    return tuple(each.view(torch.int32) if _is_packed(each) else each for each in gates)
