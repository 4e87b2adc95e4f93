"""The interface of stacked copies of a model, and what their implementations share."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol, TypeAlias

import torch
from torch import nn

Precision: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16"]
"""Of matrix products on a GPU and, for fp16 and bf16, of what the kernels for convolutions store
between layers. The parameters, and everything else, are in the model's own precision."""


def gradient_scale(stored: torch.dtype) -> float:
    """What gradients of this type are multiplied by: small ones would underflow in fp16."""
    return 1024.0 if stored == torch.float16 else 1.0


@cache
def has_triton() -> bool:
    """Whether kernels can be compiled; Triton is not there on every system."""
    return importlib.util.find_spec("triton") is not None


@dataclass(frozen=True, slots=True)
class Descent:
    """One step of SGD: p <- p - rate (gradient + decay p)."""

    rate: float
    decay: float


class Net(Protocol):
    """C copies of a model in training. Its tensors never move, so graphs can be captured."""

    @property
    def saturated(self) -> torch.Tensor | None:
        """For each copy, whether (1) or not (0) a value too large for fp16 was clipped since
        ``load``; None if nothing is ever clipped."""
        ...

    @property
    def takes(self) -> torch.dtype | None:
        """The type that inputs are turned into first; None if they are taken as they are."""
        ...

    @property
    def lr(self) -> torch.Tensor | None:
        """The learning rate of each copy's next step, to be written to; None if it is constant."""
        ...

    def load(self, flat: torch.Tensor) -> None:
        """Set all copies from flat vectors, one per row; a local training begins."""
        ...

    def read(self) -> torch.Tensor:
        """All copies as flat vectors, one per row."""
        ...

    def step(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One local step of every copy on its own mini-batch; the loss of each before it."""
        ...


class Unstackable(Exception):
    """Copies of this model cannot be run side by side; the message says why."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a module's parameters are in its flat vector: in order, nothing else in between."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(p.shape for _, p in named))

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of flat vectors, one per row, in the parameters' shapes."""
        parts = torch.split(flat, [shape.numel() for shape in self.shapes], dim=1)
        return [
            part.reshape(len(flat), *shape) for part, shape in zip(parts, self.shapes, strict=True)
        ]

    @staticmethod
    def join(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)
