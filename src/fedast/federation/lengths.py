"""The norms of an update, as its bounds see them (``norms``) and the write-ahead log keeps them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedast.federation.wire import Vector

_SMALL, _LARGE = 1e-20, 1e30
"""Between these, a sum of squares in single precision is neither rounded away nor infinite."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """What is measured of an update."""

    norm: float
    spread: float | None
    """How far its buffers are from the server's; None if it has none."""
    own: float
    """The norm of the server's buffers."""


def lengths(
    vector: Vector, buffers: Vector | None, model: torch.Tensor, buffer_count: int
) -> Lengths:
    """``model``: the server's newest, with as many buffers at its end. The vector of an update
    without buffers has entries for them too, which do not count."""
    end = model.numel() - buffer_count
    norm = _norm(vector[:end])
    present = model[end:].detach().cpu().numpy()
    own = max(1.0, _norm(present))
    return Lengths(
        norm, None if buffers is None else _norm(buffers.astype(np.float64) - present), own
    )


def _norm(values: npt.NDArray[Any]) -> float:
    """As the write-ahead log keeps it. (In double precision, a norm of floats is always finite.)"""
    # Single precision is ten times as fast, and enough for a bound, unless it leaves its range.
    with np.errstate(over="ignore", under="ignore"):
        square = float(np.dot(values, values)) if values.dtype == np.float32 else 0.0
    if not _SMALL < square < _LARGE:
        square = float(np.square(values, dtype=np.float64).sum())
    return float(f"{math.sqrt(square):.6g}")
