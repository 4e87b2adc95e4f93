"""A module's state as one flat vector.

The vector holds the parameters (frozen ones last), then the floating-point
buffers (the running statistics of a normalisation layer, say), which are
averaged over clients but never stepped, neither by SGD nor by the server.
Integer buffers keep the values that the constructor gave them.
"""

from __future__ import annotations

from typing import final

import torch
from torch import nn


@final
class FlatModel:
    """A working copy of a task's module whose state is read and written as a vector."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        frozen = [p for p in module.parameters() if not p.requires_grad]
        self._fixed: list[torch.Tensor] = [*self.parameters, *frozen]
        # By name: a module may assign a new tensor to a buffer.
        buffers = dict(module.named_buffers())
        self._floating = [name for name, b in buffers.items() if b.is_floating_point()]
        self._counters = {
            name: b.clone() for name, b in buffers.items() if not b.is_floating_point()
        }
        self.parameter_count = sum(p.numel() for p in self.parameters)
        self.buffers_from = self.parameter_count + sum(p.numel() for p in frozen)
        """Where the buffers begin in the vector."""
        self.buffer_count = sum(buffers[name].numel() for name in self._floating)

    def read(self) -> torch.Tensor:
        """A fresh vector with the module's present state."""
        return torch.cat([piece.reshape(-1) for piece in self._pieces()])

    @torch.no_grad()
    def write(self, vector: torch.Tensor) -> None:
        start = 0
        for piece in self._pieces():
            piece.copy_(vector[start : start + piece.numel()].view_as(piece))
            start += piece.numel()
        for name, initial in self._counters.items():
            self.module.get_buffer(name).copy_(initial)

    def _pieces(self) -> list[torch.Tensor]:
        floating = [self.module.get_buffer(name) for name in self._floating]
        return [piece.detach() for piece in (*self._fixed, *floating)]
