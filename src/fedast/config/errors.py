"""What can be wrong with a configuration, and what is merely pointless in it."""

from __future__ import annotations


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
