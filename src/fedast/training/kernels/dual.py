"""The first linear layer of a net in its dual form, for a client that sees few samples many times.

With rate r and k = 1 - r decay, SGD's weights after t steps are

    W_t = k^t W_0 - r sum_s k^(t-1-s) g_s^T x_s

for inputs x_s and gradients g_s of the outputs. So the outputs x W_t^T follow from x W_0^T, from
the products of the client's samples with each other, and from each sample's sum of gradients. The
first two are made once for all samples and steps, the weights themselves once at the end.
"""

from __future__ import annotations

from typing import final

import torch

from fedast.training.kernels.layers import Flatten, LayeredNet, Linear, Tensors
from fedast.training.kernels.products import product

_CALLS = 5e5
"""What more calls a step takes than in the usual form, in operations of a matrix product."""
_BLOCKS = 4
"""In how many parts the products of samples are made."""


@final
class DualLinear:
    """Of one copy. Its inputs are places among the samples that it was given by ``begin``."""

    parameters = Linear.parameters

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self._at = self._samples = self._outputs = self._products = self._sums = linear.weight
        self._decayed = 1.0
        self._bias = linear.bias[0]

    def pays(self, samples: int, steps: int, batch_size: int) -> bool:
        """Whether it takes less time than the usual form."""
        outs, ins = self._linear.weight.shape[1:]
        seen = steps * batch_size
        usual = 4 * seen * ins * outs
        dual = 4 * samples * ins * outs + 1.25 * samples**2 * ins + 2 * seen * samples * outs
        return dual + _CALLS * steps < usual

    def load(self, given: Tensors) -> None:
        self._linear.load(given)

    def begin(self, samples: torch.Tensor) -> None:
        """What the client will train on, one sample per row; after ``load``."""
        self._samples = samples
        self._outputs = product(samples, self._linear.weight[0].T)
        self._products = _gram(samples)
        self._sums = torch.zeros_like(self._outputs)
        self._decayed = 1.0

    def read(self) -> Tensors:
        weight, bias = self._linear.read()
        moved = product(self._sums.T, self._samples)
        return [moved.add_(weight[0], alpha=self._decayed)[None], bias]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._at = x
        y = self._outputs.index_select(0, x)
        y.addmm_(self._products.index_select(0, x), self._sums, beta=self._decayed)
        return y.add_(self._bias)[None]

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        keep = self._linear.keep
        if keep != 1.0:
            self._sums.mul_(keep)
            self._decayed *= keep
        self._sums.index_add_(0, self._at, dy[0], alpha=-self._linear.rate)
        self._linear.step_bias(dy)
        return dy

    def forget(self) -> None:
        pass


def _gram(samples: torch.Tensor) -> torch.Tensor:
    """Their products with each other, of which nearly half are copied from the other half."""
    products = samples.new_empty(len(samples), len(samples))
    start = 0
    for rows in samples.tensor_split(_BLOCKS):
        end = start + len(rows)
        product(rows, samples[:end].T, out=products[start:end, :end])
        products[:start, start:end] = products[start:end, :start].T
        start = end
    return products


def in_dual_form(net: LayeredNet) -> tuple[LayeredNet, DualLinear] | None:
    """The same net, whose inputs are places among samples; None if it begins otherwise."""
    layers = list(net.layers)
    while layers and isinstance(layers[0], Flatten):
        layers.pop(0)
    if not layers or not isinstance(layers[0], Linear):
        return None
    first = DualLinear(layers[0])
    return LayeredNet([first, *layers[1:]], net.layout), first
