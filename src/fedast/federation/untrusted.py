"""Text from outside, made safe to show.

Clients choose the names of their uploads, the reasons for their failures and what they say about
themselves. Such text must not end a line of a log, move a cursor, or fill a disk. ``printable`` is
applied wherever it reaches a log, the records, the status or an error; ``OneLine`` catches whatever
was forgotten.
"""

from __future__ import annotations

import logging
from typing import Any, final

import numpy as np
import numpy.typing as npt

_LONGEST = 200


def printable(text: object, limit: int = _LONGEST) -> str:
    """The text on one line, at most about ``limit`` characters of it: what a terminal would not
    simply print is escaped as Python does, and what is cut off is counted."""
    whole = str(text)
    part = whole[:limit]
    if not (part.isascii() and part.isprintable()):
        # isprintable() knows controls, line separators, and marks that reverse the direction.
        escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in part)
        part = "".join(escaped)[:limit]
    left = len(whole) - limit
    return f"{part}… ({left} more)" if left > 0 else part


def described(vector: npt.NDArray[Any] | None) -> str:
    """A vector in a few words: its length, norm and first values."""
    if vector is None:
        return "no vector"
    with np.errstate(all="ignore"):
        norm = float(np.linalg.norm(vector.astype(np.float64)))
    first = ", ".join(f"{value:.4g}" for value in vector.ravel()[:4].tolist())
    return f"shape {vector.shape}, norm {norm:.4g}, begins {first or 'with nothing'}"


@final
class OneLine(logging.Filter):
    """Makes the message of every record one printable line, for a handler of the root logger.
    Tracebacks stay as they are."""

    def __init__(self, limit: int = 2000) -> None:
        super().__init__()
        self._limit = limit

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if len(message) > self._limit or not message.isprintable():
            record.msg, record.args = printable(message, self._limit), ()
        return True
