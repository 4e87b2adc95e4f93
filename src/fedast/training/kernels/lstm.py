"""Hand-written stacked copies of the character LSTM.

The state starts at zero and only the last output counts. The loop has one matrix
product and one cell per character, and so has the backward pass (on a GPU each is one
kernel). After it, the gradients of all weights are a matrix product over all characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from fedast.tasks.models import CharLSTM
from fedast.training.kernels.loss import cross_entropy
from fedast.training.kernels.net import (
    Descent,
    Layout,
    Precision,
    Unstackable,
    gradient_scale,
)

if TYPE_CHECKING:
    from fedast.training.kernels.half_cell import Operands

_HALF = ("fp16", "bf16")


def with_kernels(module: CharLSTM) -> bool:
    return module.out.weight.is_cuda and module.out.weight.dtype == torch.float32


def usable_precision(module: CharLSTM, precision: Precision) -> Precision:
    """``precision``, or TF32 if the device has too little shared memory for half precision."""
    if precision not in _HALF or not with_kernels(module):
        return precision
    from fedast.training.kernels.half_cell import has_room  # needs Triton

    device, embedded = module.out.weight.device.index or 0, module.embedding.embedding_dim
    return precision if has_room(module.lstm.hidden_size, embedded, device) else "tf32"


@final
class CharLSTMNet:
    lr = None
    takes = None

    def __init__(
        self, module: CharLSTM, copies: int, descent: Descent, precision: Precision = "fp32"
    ) -> None:
        if not all(parameter.requires_grad for parameter in module.parameters()):
            raise Unstackable("a parameter is frozen")
        self._layout = Layout.of(module)
        self._keep = 1.0 - descent.rate * descent.decay
        self._rate = descent.rate
        self._hidden = module.lstm.hidden_size
        self._precision = usable_precision(module, precision)
        weight = module.out.weight
        self._kernels = with_kernels(module)
        self._parameters = [weight.new_zeros((copies, *shape)) for shape in self._layout.shapes]
        self._marks = weight.new_zeros(copies, dtype=torch.int32)

    @property
    def _stored(self) -> torch.dtype:
        """The type of what is kept between the kernels, which is most of what a step moves."""
        half = self._kernels and self._precision == "fp16"
        return torch.float16 if half else self._parameters[0].dtype

    @property
    def saturated(self) -> torch.Tensor | None:
        return self._marks if self._kernels and self._precision == "fp16" else None

    def load(self, flat: torch.Tensor) -> None:
        self._marks.zero_()
        for mine, given in zip(self._parameters, self._layout.split(flat), strict=True):
            mine.copy_(given)

    def read(self) -> torch.Tensor:
        return self._layout.join(self._parameters)

    @torch.no_grad()
    def scores(self, inputs: torch.Tensor) -> torch.Tensor:
        """The copies' outputs for these samples; only with the kernels, in half precision."""
        *_, w_out, b_out = self._parameters
        states = self._operands().last_states(inputs.contiguous())
        return torch.baddbmm(b_out[:, None], states, w_out.mT)

    @torch.no_grad()
    def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        embedding, w_in, _, _, _, w_out, b_out = self._parameters
        copies, samples, length = inputs.shape
        hidden, symbols = self._hidden, embedding.shape[1]
        # A row of a character: its code, one-hot, and the state before it. So one product makes the
        # gradients by both. In half precision both begin at multiples of 32 bytes, which is faster.
        unit = 16 if self._stored == torch.float16 else 1
        start, end = -(-symbols // unit) * unit, -(-hidden // unit) * unit
        rows = embedding.new_empty((copies, length + 1, samples, start + end), dtype=self._stored)
        states, codes = rows[..., start : start + hidden], inputs.contiguous()
        cells = rows.new_empty(copies, length + 1, samples, hidden)
        states[:, 0], cells[:, 0] = 0.0, 0.0
        gates = rows.new_empty(copies, length, samples, 4 * hidden)
        operands = self._operands() if self._in_half else None
        self._write_hot(codes, rows)
        self._forward(operands, codes, states, cells, gates)
        last = states[:, length].to(embedding.dtype)
        scores = torch.baddbmm(b_out[:, None], last, w_out.mT)
        losses, d_scores = cross_entropy(scores, labels)
        d_gates = self._backward(operands, torch.bmm(d_scores, w_out), cells, gates)
        d_all = d_gates.view(copies, length * samples, 4 * hidden)
        found = _product(d_all.mT, rows[:, :-1].flatten(1, 2))
        if operands is not None:
            found = operands.in_order(found, gates.dtype)
        found /= gradient_scale(gates.dtype)
        d_table, d_w_state = found[:, :, :symbols].mT, found[:, :, start : start + hidden]
        d_bias = d_table.sum(dim=1)
        d_embedding = torch.bmm(d_table, w_in)
        d_w_in = torch.bmm(d_table.mT, embedding)
        d_w_out = torch.bmm(d_scores.mT, last)
        torch._foreach_mul_(self._parameters, self._keep)
        torch._foreach_add_(
            self._parameters,
            [d_embedding, d_w_in, d_w_state, d_bias, d_bias, d_w_out, d_scores.sum(dim=1)],
            alpha=-self._rate,
        )
        return losses

    @property
    def _in_half(self) -> bool:
        return self._kernels and self._precision in _HALF

    def _operands(self) -> Operands:
        """What the kernels of half precision multiply with."""
        from fedast.training.kernels.half_cell import join  # needs Triton

        embedding, w_in, w_state, b_in, b_state, _, _ = self._parameters
        biases = b_in, b_state
        return join(w_state, w_in, biases, embedding, self._marks, self._precision)

    def _write_hot(self, codes: torch.Tensor, rows: torch.Tensor) -> None:
        """Codes (copy, sample, time), one-hot, to the first columns of (copy, time, sample, ...),
        except for the last time."""
        symbols = self._parameters[0].shape[1]
        if self._kernels:
            from fedast.training.kernels.half_cell import write_hot  # needs Triton

            write_hot(codes, rows, symbols)
        else:
            rows[:, :-1, :, :symbols].zero_().scatter_(3, codes.mT[..., None], 1.0)

    def _forward(
        self,
        operands: Operands | None,
        codes: torch.Tensor,
        states: torch.Tensor,
        cells: torch.Tensor,
        gates: torch.Tensor,
    ) -> None:
        """Fill states, cells and gates (input, forget, candidate, output; after activation)."""
        if operands is not None:
            operands.run_forward(codes, states, cells, gates)
            return
        embedding, w_in, weight, b_in, b_state, _, _ = self._parameters
        # What each symbol adds to the gates: (copy, symbol, 4 hidden).
        table = torch.baddbmm((b_in + b_state)[:, None], embedding, w_in.mT)
        if self._kernels:
            from fedast.training.kernels.cell import run_forward  # needs Triton

            run_forward(table, codes, weight, states, cells, gates, self._precision)
            return
        copies = torch.arange(len(table), device=table.device)[:, None]
        for t in range(codes.shape[2]):
            mixed = torch.baddbmm(table[copies, codes[:, :, t]], states[:, t], weight.mT)
            i, f, g, o = mixed.chunk(4, dim=2)
            torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], dim=2, out=gates[:, t])
            i, f, g, o = gates[:, t].chunk(4, dim=2)
            cells[:, t + 1] = f * cells[:, t] + i * g
            states[:, t + 1] = o * cells[:, t + 1].tanh()

    def _backward(
        self,
        operands: Operands | None,
        d_state: torch.Tensor,
        cells: torch.Tensor,
        gates: torch.Tensor,
    ) -> torch.Tensor:
        """The gradient of all gates before their nonlinearities, in their order and type."""
        if operands is not None:
            return operands.run_backward(d_state, cells, gates, self._marks)
        weight = self._parameters[2]
        if self._kernels:
            from fedast.training.kernels.cell import run_backward  # needs Triton

            return run_backward(d_state, weight, cells, gates, self._precision)
        d_gates = torch.empty_like(gates)
        d_cell = torch.zeros_like(d_state)
        for t in reversed(range(gates.shape[1])):
            i, f, g, o = gates[:, t].chunk(4, dim=2)
            squashed = cells[:, t + 1].tanh()
            d = d_cell + d_state * o * (1 - squashed.square())
            d_gates[:, t] = torch.cat(
                [
                    d * g * i * (1 - i),
                    d * cells[:, t] * f * (1 - f),
                    d * i * (1 - g.square()),
                    d_state * squashed * o * (1 - o),
                ],
                dim=2,
            )
            d_cell = d * f
            d_state = torch.bmm(d_gates[:, t], weight)
        return d_gates


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """In single precision, whatever the operands are in."""
    if a.dtype == torch.float16 and a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float()) if a.dtype == torch.float16 else torch.bmm(a, b)
