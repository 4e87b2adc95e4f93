"""Configuration keys and values of earlier versions, under the names that they have now.

Files of earlier versions are still read: every table goes through ``translated`` before it is
checked. ``renamed`` says what it found, so that a command can tell its user the new names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedast.config.errors import ConfigError

_KEYS: Mapping[str, str] = {
    "algorithm.server_rate": "server_lr",
    "algorithms.*.server_rate": "server_lr",
    "tasks.*.client_rate": "client_lr",
    "tasks.*.server_rate": "server_lr",
    "tasks.*.sync.client_rate": "client_lr",
    "tasks.*.sync.server_rate": "server_lr",
    "tasks.*.initialisation": "initialization",
}
"""Where a key used to be, ``*`` standing for any name or number, and what it is called now."""


def translated(table: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a table with today's names."""
    copy: dict[str, Any] = _copied(table)
    for old, new, place, key in list(_found(copy)):
        if new in place:
            raise ConfigError(key, f"is now called {new}, which is set too; leave one out")
        place[new] = place.pop(old)
    return copy


def renamed(table: Mapping[str, Any]) -> list[str]:
    """A line for each name of an earlier version that a table uses."""
    return [line(key, new) for _, new, _, key in _found(_copied(table))]


def line(key: str, new: str) -> str:
    return f"{key} is now called {new}; the old name is still read"


def renamed_key(path: Sequence[str]) -> str | None:
    """What the last key of a path such as ``tasks.mnist.client_rate`` is called now, if renamed."""
    for pattern, new in _KEYS.items():
        steps = pattern.split(".")
        if len(steps) == len(path) and all(
            step in ("*", part) for step, part in zip(steps, path, strict=True)
        ):
            return new
    return None


def _found(table: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    for path, new in _KEYS.items():
        *parents, old = path.split(".")
        for place, where in _places(table, parents, ()):
            if old in place:
                yield old, new, place, ".".join((*where, old))


def _places(
    here: Any, path: list[str], where: tuple[str, ...]
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    if not path:
        if isinstance(here, dict):
            yield here, where
        return
    step, rest = path[0], path[1:]
    if step == "*":
        entries: list[tuple[Any, Any]] = []
        if isinstance(here, dict):
            entries = list(here.items())
        elif isinstance(here, list):
            entries = [(_name(entry, number), entry) for number, entry in enumerate(here)]
        for name, entry in entries:
            yield from _places(entry, rest, (*where, str(name)))
    elif isinstance(here, dict) and step in here:
        yield from _places(here[step], rest, (*where, step))


def _name(entry: Any, number: int) -> Any:
    if isinstance(entry, dict):
        return entry.get("name", entry.get("use", number))
    return number


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(entry) for entry in value]
    return value
