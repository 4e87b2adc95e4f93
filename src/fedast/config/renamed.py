"""Configuration keys and values of earlier versions, translated to today's names.

Files of earlier versions are still read: every table goes through ``translated`` before it is
checked. ``renamed`` says what it found, so that a command can tell its user the new names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from fedast.algorithms.fedast import FedASTDynamic
from fedast.algorithms.options import ALGORITHMS
from fedast.algorithms.renamed import (
    FOLDED_OPTIONS,
    RENAMED_OPTIONS,
    Tell,
    fold_options,
    rename_options,
)
from fedast.parts.errors import ConfigError
from fedast.tasks.renamed import PARTITION_OPTIONS, modernize_options
from fedast.tasks.renamed import rename_options as rename_task_options

Table: TypeAlias = dict[str, Any]

_KEYS: Mapping[str, str] = {
    "simulation.delay.model": "name",
    "simulation.availability.model": "name",
    "tasks.*.client_rate": "client_lr",
    "tasks.*.server_rate": "server_lr",
    "tasks.*.sync.client_rate": "client_lr",
    "tasks.*.sync.server_rate": "server_lr",
    "tasks.*.initialisation": "initialization",
    "tasks.*.size": "step_cost",
    "tasks.*.server_step": "server_optimizer",
    "tasks.*.server_optimizer.rule": "name",
    "tasks.*.combining": "aggregator",
    "tasks.*.aggregator.rule": "name",
}
"""Where a key used to be, ``*`` standing for any name or number, and what it is called now."""

_ALGORITHM_KEYS: Mapping[str, str] = {
    f"{place}.{old}": new
    for place in ("algorithm", "algorithms.*")
    for old, new in RENAMED_OPTIONS.items()
}

FOLDED: Mapping[str, tuple[str, str]] = {
    old: (part, folded.name)
    for part, options in FOLDED_OPTIONS.items()
    for old, folded in options.items()
} | {option: ("partition", option) for option in PARTITION_OPTIONS}
"""Options that stood beside a part: the part, and what they are called in it."""

_VALUES: Mapping[str, tuple[str, str]] = {
    "tasks.*.server_optimizer": ("plain", "sgd"),
    "tasks.*.server_optimizer.name": ("plain", "sgd"),
}
"""Values that have another name now."""


def translated(table: Mapping[str, Any]) -> Table:
    """A copy of a table with today's names."""
    copy: Table = copied(table)
    _rename_keys(copy, _untold)
    _fold(copy, _untold)
    return copy


def with_current_keys(table: Mapping[str, Any], tell: Tell = lambda old, new: None) -> Table:
    """The same, but only for keys that were simply renamed. That is safe for part of a
    configuration: the table that an option has moved into may be in another part.
    """
    copy: Table = copied(table)
    _rename_keys(copy, tell)
    return copy


def renamed(table: Mapping[str, Any]) -> list[str]:
    """A line for each name of an earlier version that a table uses."""
    lines: list[str] = []

    def tell(key: str, new: str) -> None:
        lines.append(line(key, new))

    copy: Table = copied(table)
    _rename_keys(copy, tell)
    _fold(copy, tell)
    return lines


def line(key: str, new: str) -> str:
    if not new:
        return f"{key}: has no effect here"
    return f"{key} is now called {new}; the old name is still read"


def _untold(key: str, new: str) -> None:
    pass


def renamed_path(path: Sequence[str], algorithm: str) -> list[str]:
    """Where a key such as ``tasks.x.client_rate`` is now; ``algorithm`` is the one that runs."""
    found = list(path)
    if path[0] == "algorithms" and len(path) > 1:
        algorithm = path[1]
    known = algorithm in ALGORITHMS.builtin  # a user's own may call its options anything
    for pattern, new in (*_KEYS.items(), *(_ALGORITHM_KEYS.items() if known else ())):
        steps = pattern.split(".")
        if len(steps) <= len(found) and all(map(_fits, steps, found)):
            found[len(steps) - 1] = new
    return found


def _fits(step: str, part: str) -> bool:
    return step in ("*", part)


def _rename_keys(table: Table, tell: Tell) -> None:
    for place, where, name in _algorithms(table):
        if name is None or name in ALGORITHMS.builtin:
            _modernize(partial(rename_options, place), where, tell)
    for place, where, key in _holders(table, "tasks.*.combining"):
        _drop_idle_trim(place[key], f"{where}.{key}", tell)
    for path, new in _KEYS.items():
        for place, where, old in _holders(table, path):
            _rename(place, where, old, new, tell)
    for options, where, use in _task_options(table):
        _modernize(partial(rename_task_options, options, use), where, tell)


def _fold(table: Table, tell: Tell) -> None:
    default = FedASTDynamic.name
    for place, where, name in _algorithms(table):
        if (name or default) in ALGORITHMS.builtin:  # a user's own may call its options anything
            _modernize(partial(fold_options, place, name or default), where, tell)
    for options, where, use in _task_options(table):
        _modernize(partial(modernize_options, options, use), where, tell)
    for path, (before, now) in _VALUES.items():
        for place, where, key in _holders(table, path):
            if place[key] == before:
                place[key] = now
                tell(f"{where}.{key} = {before!r}", repr(now))


def _drop_idle_trim(combining: Any, where: str, tell: Tell) -> None:
    """``trim`` stood beside every ``rule`` and was for one of them."""
    if not isinstance(combining, dict) or combining.get("rule", "mean") not in ("mean", "median"):
        return
    if combining.pop("trim", _OLD_TRIM) != _OLD_TRIM:
        tell(f"{where}.trim", "")


_OLD_TRIM = 0.1


def _algorithms(table: Table) -> Iterator[tuple[Table, str, str | None]]:
    """Tables of algorithms' options, where they are, and the algorithm's name if it is known."""
    for place, where in _places(table, ["algorithm"]):
        name = place.get("name")
        yield place, where, name if isinstance(name, str) else None
    for place, where in _places(table, ["algorithms", "*"]):
        yield place, where, where.partition(".")[2]


def _task_options(table: Table) -> Iterator[tuple[Table, str, str]]:
    for task, where in _places(table, ["tasks", "*"]):
        use = str(task.get("use", task.get("task")))
        for options, there in list(_places(task, ["options"], where)):
            yield options, there, use


def _modernize(change: Callable[[Tell], None], where: str, tell: Tell) -> None:
    """Let another module rename what is in its table, which is at ``where``."""
    try:
        change(lambda old, new: tell(f"{where}.{old}", new))
    except ConfigError as error:
        raise ConfigError(f"{where}.{error.key}", error.problem) from None


def _rename(place: Table, where: str, old: str, new: str, tell: Tell) -> None:
    if new in place:
        raise ConfigError(f"{where}.{old}", f"is now called {new}, which is set too; leave one out")
    place[new] = place.pop(old)
    tell(f"{where}.{old}", new)


def _holders(table: Table, path: str) -> Iterator[tuple[Table, str, str]]:
    """The tables that have the last key of a path, and where they are."""
    *parents, key = path.split(".")
    for place, where in list(_places(table, parents)):
        if key in place:
            yield place, where, key


def _places(here: Any, path: list[str], where: str = "") -> Iterator[tuple[Table, str]]:
    if not path:
        if isinstance(here, dict):
            yield here, where.removeprefix(".")
        return
    step, rest = path[0], path[1:]
    if step == "*":
        entries: list[tuple[Any, Any]] = []
        if isinstance(here, dict):
            entries = list(here.items())
        elif isinstance(here, list):
            entries = [(_name(entry, number), entry) for number, entry in enumerate(here)]
        for name, entry in entries:
            yield from _places(entry, rest, f"{where}.{name}")
        return
    if isinstance(here, dict) and step in here:
        yield from _places(here[step], rest, f"{where}.{step}")


def _name(entry: Any, number: int) -> Any:
    if isinstance(entry, dict):
        return entry.get("name", entry.get("use", number))
    return number


def copied(value: Any) -> Any:
    """A deep copy of a table, with tuples as lists."""
    if isinstance(value, Mapping):
        return {key: copied(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [copied(entry) for entry in value]
    return value
