"""Hand-written stacked copies of the character LSTM.

The state starts at zero and only the last output counts. The embedding is
multiplied by the input weights before the loop, into a table with a row per
symbol; the loop has one matrix product and one cell per character, and so has
the backward pass (on a GPU each is one kernel). After it, the gradients of all
weights are matrix products over all characters.
"""

from __future__ import annotations

from typing import final

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


def with_kernels(module: CharLSTM) -> bool:
    return module.out.weight.is_cuda and module.out.weight.dtype == torch.float32


def usable_precision(module: CharLSTM, precision: Precision) -> Precision:
    """``precision``, or TF32 if the device has too little shared memory for half precision."""
    if precision not in ("fp16", "bf16") or not with_kernels(module):
        return precision
    from fedast.training.kernels.cell import has_room  # needs Triton

    device = module.out.weight.device.index or 0
    return precision if has_room(module.lstm.hidden_size, device) else "tf32"


@final
class CharLSTMNet:
    lr = None

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
        from fedast.training.kernels.cell import last_states

        w_state, w_out, b_out = (self._parameters[place] for place in (2, 5, 6))
        states = last_states(self._table(), inputs.contiguous(), w_state, self._precision)
        return torch.baddbmm(b_out[:, None], states, w_out.mT)

    def _table(self) -> torch.Tensor:
        """What each symbol adds to the gates: (copy, symbol, 4 hidden)."""
        embedding, w_in, _, b_in, b_state, _, _ = self._parameters
        return torch.baddbmm((b_in + b_state)[:, None], embedding, w_in.mT)

    @torch.no_grad()
    def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        embedding, w_in, _, _, _, w_out, b_out = self._parameters
        copies, samples, length = inputs.shape
        hidden, symbols = self._hidden, embedding.shape[1]
        table = self._table()
        # In half precision, rows that begin at multiples of 16 bytes are multiplied twice as fast.
        width = hidden if self._stored != torch.float16 else -(-hidden // 8) * 8
        states = table.new_empty(copies, length + 1, samples, width, dtype=self._stored)
        cells = states.new_empty(copies, length + 1, samples, hidden)
        states[:, 0], cells[:, 0] = 0.0, 0.0
        gates = states.new_empty(copies, length, samples, 4 * hidden)
        self._forward(table, inputs, states, cells, gates)
        last = states[:, length, :, :hidden].to(table.dtype)
        scores = torch.baddbmm(b_out[:, None], last, w_out.mT)
        losses, d_scores = cross_entropy(scores, labels)
        d_gates = self._backward(torch.bmm(d_scores, w_out), cells, gates)
        # All characters of all samples, one after another.
        d_all = d_gates.view(copies, length * samples, 4 * hidden)
        before = states[:, :-1].flatten(1, 2)
        hot = d_all.new_zeros(copies, length * samples, symbols)
        hot.scatter_(2, inputs.mT.reshape(copies, -1, 1), 1.0)
        scale = gradient_scale(d_all.dtype)
        d_table = _product(hot.mT, d_all) / scale
        d_bias = d_table.sum(dim=1)
        d_embedding = torch.bmm(d_table, w_in)
        d_w_in = torch.bmm(d_table.mT, embedding)
        d_w_out = torch.bmm(d_scores.mT, last)
        d_w_state = _product(d_all.mT, before)[:, :, :hidden] / scale
        torch._foreach_mul_(self._parameters, self._keep)
        torch._foreach_add_(
            self._parameters,
            [d_embedding, d_w_in, d_w_state, d_bias, d_bias, d_w_out, d_scores.sum(dim=1)],
            alpha=-self._rate,
        )
        return losses

    def _forward(
        self,
        table: torch.Tensor,
        codes: torch.Tensor,
        states: torch.Tensor,
        cells: torch.Tensor,
        gates: torch.Tensor,
    ) -> None:
        """Fill states, cells and gates (input, forget, candidate, output; after activation)."""
        weight = self._parameters[2]
        if self._kernels:
            from fedast.training.kernels.cell import run_forward  # needs Triton

            run_forward(table, codes.contiguous(), weight, states, cells, gates, self._precision)
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
        self, d_state: torch.Tensor, cells: torch.Tensor, gates: torch.Tensor
    ) -> torch.Tensor:
        weight = self._parameters[2]
        if self._kernels:
            from fedast.training.kernels.cell import run_backward

            return run_backward(d_state, weight, cells, gates, self._marks, self._precision)
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
