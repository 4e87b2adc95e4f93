"""Many short texts in two arrays: their UTF-8 bytes in a row, and where each begins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, final, overload

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def tidy(text: str) -> str:
    """Without HTML's line breaks, and with white space collapsed."""
    return " ".join(_BREAK.sub(" ", text).split())


def pack(texts: Iterable[str]) -> tuple[npt.NDArray[np.uint8], Indices]:
    """(bytes, starts); ``starts`` has one entry more than there are texts."""
    # What is no text (half of a surrogate pair) becomes a question mark.
    parts = [text.encode("utf-8", errors="replace") for text in texts]
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return np.frombuffer(b"".join(parts), dtype=np.uint8), starts


@final
class PackedTexts(Sequence[str]):
    """Packed texts, or some of them, decoded when they are asked for."""

    def __init__(
        self, content: npt.NDArray[Any], starts: Indices, chosen: Indices | None = None
    ) -> None:
        self._content, self._starts = content, starts
        self._chosen = np.arange(len(starts) - 1) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> PackedTexts: ...

    def __getitem__(self, index: int | slice) -> str | PackedTexts:
        if isinstance(index, slice):
            return PackedTexts(self._content, self._starts, self._chosen[index])
        place = self._chosen[index]
        return (
            self._content[self._starts[place] : self._starts[place + 1]].tobytes().decode("utf-8")
        )

    def take(self, indices: Indices) -> PackedTexts:
        return PackedTexts(self._content, self._starts, self._chosen[indices])
