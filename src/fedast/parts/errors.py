"""What can be wrong with a configuration, and what is merely pointless in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(Exception):
    """What is wrong with a configuration: one line naming the key and the remedy."""

    def __init__(self, key: str, problem: str, source: str = "") -> None:
        self.key = key
        self.problem = problem
        self.source = source
        super().__init__(key, problem, source)  # the same arguments, so that it can be pickled

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.key, self.problem) if part)

    def within(self, source: str) -> ConfigError:
        return ConfigError(self.key, self.problem, source)


class ConfigWarning(UserWarning):
    """A setting that has no effect, or defeats its own purpose: see ``no_effect``."""


_TELLING = 4
"""Letters from which on a part of a name tells which name is meant."""


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean ...?', or what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if not close and len(word) >= _TELLING:  # fedavg: sequential-fedavg
        close = [name for name in known if word.lower() in name.lower()][:1]
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(known)}" if known else ""
