"""What a sweep varies: keys of the configuration, and the values that each may have.

A file lists them under ``[search]``, by the key as ``--set`` has it: a list of values, or a range
``{ low, high }`` with ``log``, ``step`` or ``points``. ``tasks.*.KEY`` is a key of every task. The
axes of the study format are parameters too; their values are labels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, final

from pydantic import Field

from fedast.parts.errors import ConfigError
from fedast.parts.options import Section
from fedast.parts.parsing import parse_section

Point: TypeAlias = dict[str, Any]
"""A value for each parameter, by its name."""

_SHORTHANDS = ("template", "copies", "each", "task")
Number: TypeAlias = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True)]


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """A parameter with a list of values."""

    name: str
    values: tuple[Any, ...]
    axis: bool = False
    """Whether it is an axis, whose values are labels."""

    def grid(self) -> Sequence[Any]:
        return self.values

    def at(self, u: float) -> Any:
        """The value at a place in [0, 1)."""
        return self.values[int(u * len(self.values))]

    def to_json(self) -> dict[str, Any]:
        kind = "axis" if self.axis else "choice"
        return {"name": self.name, "kind": kind, "choices": list(self.values)}


@final
@dataclass(frozen=True, slots=True)
class Range:
    """A parameter with a range of numbers: whole numbers if both ends are whole."""

    name: str
    low: float
    high: float
    whole: bool
    log: bool = False
    step: float | None = None
    points: int | None = None
    """How many values a grid takes of it."""

    def grid(self) -> Sequence[Any]:
        if self.step is not None:
            return [self._value(self.low + n * self.step) for n in range(self.steps)]
        if self.points is None:
            raise ConfigError(
                f"search.{self.name}",
                "a grid needs a list of values, or points (or step) beside low and high",
            )
        if self.points == 1:
            return [self._value(self.low)]
        found = [self._between(n / (self.points - 1)) for n in range(self.points)]
        return list(dict.fromkeys(found))  # few whole numbers may be fewer than points

    @property
    def steps(self) -> int:
        assert self.step is not None
        return math.floor((self.high - self.low) / self.step + 1e-9) + 1

    def at(self, u: float) -> Any:
        """The value at a place in [0, 1)."""
        if self.step is not None:
            return self._value(self.low + int(u * self.steps) * self.step)
        if self.whole and not self.log:
            return int(self.low) + int(u * (self.high - self.low + 1))
        return self._between(u)

    def _between(self, u: float) -> Any:
        if self.log:
            return self._value(self.low * (self.high / self.low) ** u)
        return self._value(self.low + u * (self.high - self.low))

    def _value(self, x: float) -> Any:
        """Six digits are enough, and easier to read."""
        if self.whole:
            return round(x)
        return min(self.high, max(self.low, float(f"{x:.6g}")))

    def to_json(self) -> dict[str, Any]:
        table: dict[str, Any] = {
            "name": self.name,
            "kind": "int" if self.whole else "float",
            "low": int(self.low) if self.whole else self.low,
            "high": int(self.high) if self.whole else self.high,
            "log": self.log,
        }
        return table if self.step is None else {**table, "step": self.step}


Parameter: TypeAlias = Choice | Range


class _RangeTable(Section):
    low: Number
    high: Number
    log: bool = False
    step: Number | None = None
    points: int | None = Field(None, ge=1)


def parameters_of(search: Any) -> list[Parameter]:
    """From the table of a file; keys may be written as nested tables."""
    if not isinstance(search, Mapping):
        raise ConfigError("search", f"must be a table of keys, got {search!r}")
    found = [_parameter(key, value) for key, value in _leaves(search, ())]
    names = [parameter.name for parameter in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"search.{name}", "is there twice")
    return found


def _leaves(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """A table with a plain value in it is a range; other tables are part of the key."""
    for key, value in table.items():
        here = (*path, key)
        nested = isinstance(value, Mapping) and all(
            isinstance(entry, Mapping | list | tuple) for entry in value.values()
        )
        if nested:
            yield from _leaves(value, here)
        else:
            yield ".".join(here), value


def _parameter(name: str, value: Any) -> Parameter:
    key = f"search.{name}"
    first, *rest = name.split(".")
    if first in _SHORTHANDS:
        hint = f"tasks.*.{'.'.join(rest)}" if first in ("each", "template") and rest else (
            f"tasks.{'.'.join(rest)}" if first == "task" and rest else "an axis"
        )  # fmt: skip
        raise ConfigError(key, f"{first} is a shorthand of the base; use {hint} instead")
    if first == "seed":
        raise ConfigError(key, "the sweep sets the seeds; use seeds for their number")
    if isinstance(value, list | tuple):
        if not value:
            raise ConfigError(key, "the list is empty")
        texts = [inline(entry) for entry in value]
        for text in texts:
            if texts.count(text) > 1:
                raise ConfigError(key, f"{text} is there twice")
        return Choice(name, tuple(value))
    if not isinstance(value, Mapping):
        raise ConfigError(
            key, f"expected a list of values or a table with low and high, got {value!r}"
        )
    return _range(name, parse_section(_RangeTable, value, key))


def _range(name: str, given: _RangeTable) -> Range:
    key = f"search.{name}"
    whole = isinstance(given.low, int) and isinstance(given.high, int)
    if given.step is not None:
        whole = whole and isinstance(given.step, int)
        if given.step <= 0:
            raise ConfigError(f"{key}.step", f"must be above 0, got {given.step}")
        if given.log or given.points is not None:
            raise ConfigError(f"{key}.step", "goes with neither log nor points; leave one out")
    if given.low >= given.high:
        raise ConfigError(key, f"low must be below high, got {given.low} and {given.high}")
    if given.log and given.low <= 0:
        raise ConfigError(key, f"log needs low above 0, got {given.low}")
    return Range(name, given.low, given.high, whole, given.log, given.step, given.points)


def settings_of(point: Mapping[str, Any], tasks: Sequence[str]) -> tuple[str | None, list[str]]:
    """The algorithm that a point of ``search`` chooses, if it does, and the rest as ``--set``."""
    algorithm, settings = None, []
    for key, value in point.items():
        if key in ("algorithm", "algorithm.name") and isinstance(value, str):
            algorithm = value
        elif key.startswith("tasks.*."):
            rest = key.removeprefix("tasks.*.")
            settings += [f"tasks.{number}.{rest}={inline(value)}" for number in range(len(tasks))]
        else:
            settings.append(f"{key}={inline(value)}")
    return algorithm, settings


def inline(value: Any) -> str:
    """A value as TOML has it on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, Mapping):
        entries = (f"{json.dumps(key)} = {inline(entry)}" for key, entry in value.items())
        return f"{{ {', '.join(entries)} }}"
    return repr(value)


def shown(value: Any) -> str:
    """A value as people read it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else inline(value)
