"""Where an error comes from: the user's own code, fedast, or a library."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary

_OURS = Path(__file__).parents[1]
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def described(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def placed(error: BaseException) -> str:
    """An error in one line, with the place in the user's own code if that was at work."""
    return described(error) + place(error)


def place(error: BaseException) -> str:
    """`` (wine.py:12, in load)``, the innermost place in the user's own code, or nothing."""
    for found in _users(_frames(error))[-1:]:
        here = os.path.relpath(found.filename)
        short = found.filename if here.startswith("..") else here
        return f" ({short}:{found.lineno}, in {found.name})"
    return ""


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


def _frames(error: BaseException) -> Sequence[FrameSummary]:
    while error.__cause__ is not None:
        error = error.__cause__
    text = getattr(error, "tb", None)
    if isinstance(text, str):  # of another process (concurrent.futures), the first cause first
        first = text.partition("\nThe above exception")[0]
        return [FrameSummary(name, int(line), of) for name, line, of in _FRAME.findall(first)]
    return traceback.extract_tb(error.__traceback__)


def _users(frames: Sequence[FrameSummary]) -> Sequence[FrameSummary]:
    """Neither fedast's nor an installed library's."""
    paths = [(frame, Path(frame.filename)) for frame in frames]
    elsewhere = (_OURS, *_INSTALLED)
    return [
        frame
        for frame, path in paths
        if path.is_absolute() and not any(path.is_relative_to(place) for place in elsewhere)
    ]
