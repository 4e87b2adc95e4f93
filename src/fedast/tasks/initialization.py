"""How a model's weights are initialized, where that is not left to the model itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, final

import torch
from torch import nn

Rule: TypeAlias = Literal["glorot", "he"]

_FILL: dict[Rule, Callable[[torch.Tensor], torch.Tensor]] = {
    "glorot": nn.init.xavier_uniform_,
    "he": partial(nn.init.kaiming_uniform_, nonlinearity="relu"),
}


@final
@dataclass(frozen=True)
class Initialized:
    """Builds a model, then initializes its linear, convolutional and recurrent layers again.

    Their biases start at zero. Everything else (embeddings, normalisation, the
    user's own layers) stays as the model made it.
    """

    model: Callable[[], nn.Module]
    rule: Rule

    def __call__(self) -> nn.Module:
        module = self.model()
        if not isinstance(module, nn.Module):
            return module  # the caller reports it
        with torch.no_grad():
            for part in module.modules():
                if isinstance(part, (nn.Linear, nn.modules.conv._ConvNd)):
                    self._initialize(part.weight, part.bias)
                elif isinstance(part, nn.RNNBase):
                    gates = {"LSTM": 4, "GRU": 3}.get(part.mode, 1)
                    for name, parameter in part.named_parameters(recurse=False):
                        if parameter.ndim == 1:
                            parameter.zero_()
                        else:  # the gates lie below one another; a projection has none
                            for block in parameter.chunk(1 if "_hr_" in name else gates):
                                _FILL[self.rule](block)
        return module

    def _initialize(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        _FILL[self.rule](weight)
        if bias is not None:
            bias.zero_()
