"""Errors that are the server's own: in fedast, or in code that its configuration names.

Only decoding and validation may blame a client. Whatever else goes wrong while an event is applied
is an error on this side: the server stops before any of it is committed, so that it can be started
again once the code is fixed.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import final

from fedast.parts.registry import described

_OURS = Path(__file__).parents[1]
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


@final
class ServerFault(Exception):
    """The server's own code failed; none of what it was doing is in its write-ahead log."""

    def __init__(self, doing: str, error: Exception) -> None:
        super().__init__(
            f"{doing}: {described(error)}, {where(error)}. No client is to blame, and nothing of "
            "it was committed. Repair that code and start the server again: it goes on from its "
            "last commit"
        )


def where(error: BaseException) -> str:
    """The function and line of the failing code.

    That is the innermost frame in the user's code or in fedast: an error deep inside a library is
    usually the caller's. The cause of a chained error comes first.
    """
    frames = _frames(error)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_OURS)]
    for found in (_users(frames) or ours or frames)[-1:]:
        return f"in {found.name}, {found.filename}, line {found.lineno}"
    return "at an unknown place"


def in_users_code(error: BaseException) -> bool:
    """Whether code that the configuration names was at work."""
    return bool(_users(_frames(error)))


def _frames(error: BaseException) -> Sequence[traceback.FrameSummary]:
    while error.__cause__ is not None:
        error = error.__cause__
    return traceback.extract_tb(error.__traceback__)


def _users(frames: Sequence[traceback.FrameSummary]) -> Sequence[traceback.FrameSummary]:
    """Neither fedast's nor an installed library's."""
    paths = [(frame, Path(frame.filename)) for frame in frames]
    elsewhere = (_OURS, *_INSTALLED)
    return [
        frame
        for frame, path in paths
        if path.is_absolute() and not any(path.is_relative_to(place) for place in elsewhere)
    ]
