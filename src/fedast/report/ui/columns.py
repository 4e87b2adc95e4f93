"""Numbers as columns, few enough to draw and short enough to send."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

POINTS = 600
"""The most points of a line: more would fall on the same pixels."""
_DIGITS = 6

Floats = npt.NDArray[np.float64]


def floats(values: array[float] | Sequence[float]) -> Floats:
    return np.asarray(values, dtype=np.float64)


def number(value: Any) -> float:
    """NaN for what is not a number, such as null."""
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    )


def short(value: float) -> float | None:
    """As JSON has it: a few digits, null for NaN and infinity."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def listed(values: Iterable[float]) -> list[float | None]:
    return [short(value) for value in values]


def extremes(values: Floats, most: int = POINTS) -> npt.NDArray[np.intp]:
    """Which points to keep of a line: of each of ``most / 2`` parts the lowest and the highest, so
    that no spike is lost, and the first and the last."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, most // 2 + 1).astype(np.intp)
    filled = np.where(
        np.isfinite(values), values, np.nanmedian(values) if np.isfinite(values).any() else 0.0
    )
    kept = {0, count - 1}
    for start, end in itertools.pairwise(edges):
        part = filled[start:end]
        kept.update((int(start + part.argmin()), int(start + part.argmax())))
    return np.array(sorted(kept))


def spread(count: int, most: int = POINTS) -> npt.NDArray[np.intp]:
    """Rows to keep of a table with many columns: evenly spread, with the first and the last."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.intp))
