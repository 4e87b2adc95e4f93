"""A study: an experiment of the paper as data, and the configurations that it consists of.

A study's file has a ``base``, a configuration with a few shorthands, and axes. Every choice of one
value per axis is a *cell*: the base with the tables of these values merged into it, later axes
last. A cell and a seed are a run. The shorthands are ``template`` and ``copies`` (so many tasks
alike), ``each`` (a table for every task) and ``task`` (tables by the name of a task).

``quick`` is a scale, not another study: every number of clients or requests times ``SHRINK``,
every time limit times ``HASTE``, and small tasks with data that needs no download in place of the
paper's, with their own options. It shows that a study runs, and nothing about the paper.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationError

from fedast.algorithms.options import ALGORITHMS, USUAL_RATIO
from fedast.config.load import apply_settings, parse
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.options import Section
from fedast.reproduce.results import Measure

Scale: TypeAlias = Literal["full", "quick"]
Labels: TypeAlias = Mapping[str, str]
"""One label per axis, by the axis's name."""

SHRINK, HASTE = 0.16, 0.05
_QUICK_TASKS: Mapping[str, Mapping[str, Any]] = {
    "mnist": {"use": "digits-mlp", "low": 0.3, "main": 0.5, "high": 0.6},
    "fashion-mnist": {"use": "synthetic", "low": 0.15, "main": 0.2, "high": 0.22},
    "cifar10": {"use": "digits-cnn", "low": 0.2, "main": 0.3, "high": 0.35},
    "shakespeare": {"use": "synthetic", "low": 0.15, "main": 0.2, "high": 0.22},
    "cifar100": {"use": "digits-cnn", "main": 0.3},
}


class AxisValue(Section):
    label: str = Field(min_length=1)
    set: dict[str, Any] = Field(default_factory=dict)
    """What it means: a table that is merged into the base."""
    chosen: tuple[str, ...] = ()
    """Panels in whose figures this value gets the star of the paper's choice."""


class AxisConfig(Section):
    name: str = Field(min_length=1)
    role: Literal["panel", "x", "series"]
    values: tuple[AxisValue, ...] = Field(min_length=1)


class Reported(Section):
    """A number or a claim of the paper, and how ours is measured."""

    what: str
    where: str
    """Where it stands in the paper."""
    measure: Measure
    at: dict[str, str] = Field(default_factory=dict)
    over: dict[str, str] = Field(default_factory=dict)
    """The other side of a comparison, where it differs from ``at``."""
    others: tuple[str, ...] = ()
    task: str | None = None
    along: str | None = None
    backwards: bool = False
    tolerance: float = Field(0.0, ge=0)
    paper: Annotated[float, Field(strict=False)] | str | None = None
    """None: a claim, which holds or not."""
    paper_seeds: int = Field(3, ge=1)
    """Runs that the paper's number is the mean of."""
    headline: bool = False
    """Whether the short table has it."""


Figure: TypeAlias = Literal[
    "tasks", "bars", "dots", "ranking", "curves", "losses", "allocation",
    "sweep-time", "sweep-rounds", "sweep-final",
]  # fmt: skip


class StudyConfig(Section):
    """A whole study's file."""

    title: str
    order: int = 100
    where: str
    """Where the paper has it."""
    says: str
    """What the paper says."""
    like: str | None = None
    """Another study whose base this one has, before its own."""
    base: dict[str, Any] = Field(default_factory=dict)
    axes: tuple[AxisConfig, ...] = Field(min_length=1)
    figures: tuple[Figure, ...] = ()
    baseline: str = ""
    """The label (of a series) that gains are measured against, or that figures pick out."""
    per_run: Literal["last", "mean"] = "last"
    """A run's time: when its last task is done, or the mean over its tasks."""
    final_at: dict[str, Annotated[float, Field(strict=False)]] = Field(default_factory=dict)
    """By task: the time whose last five evaluations are "final"; default: the end."""
    seeds: int = Field(3, ge=1)
    first_seed: int = Field(1, ge=0)
    optional: bool = False
    """Not among ``all``."""
    reported: tuple[Reported, ...] = ()


@dataclass(frozen=True)
class Study:
    name: str
    config: StudyConfig
    base: Mapping[str, Any]
    source: str
    """How it is called on a command line."""

    @property
    def axes(self) -> tuple[AxisConfig, ...]:
        return self.config.axes

    def cells(self) -> Iterator[Cell]:
        for values in itertools.product(*(axis.values for axis in self.axes)):
            yield Cell(self, values)


@dataclass(frozen=True)
class Cell:
    study: Study
    values: tuple[AxisValue, ...]

    @property
    def labels(self) -> dict[str, str]:
        return {
            axis.name: value.label for axis, value in zip(self.study.axes, self.values, strict=True)
        }

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(value.label for value in self.values)

    @property
    def slug(self) -> str:
        return "_".join(slug(label) for label in self.key)

    def config(self, seed: int, scale: Scale, settings: Sequence[str] = ()) -> RunConfig:
        """The run of this cell with a seed, resolved."""
        table = self.table()
        table.pop("algorithms", None)  # what they say of this one is in it
        try:
            _write_out(table)
            if scale == "quick":
                _make_quick(table)
            table["seed"] = seed
            apply_settings(table, settings)
            return resolve(parse(table))
        except ConfigError as error:
            raise error.within(f"{self.study.name}, {', '.join(self.key)}") from None

    def table(self) -> dict[str, Any]:
        """The base with this cell's values in it, shorthands and all.

        What the base says of the cell's algorithm (``algorithms.NAME``) holds where an axis says
        nothing else.
        """
        table: dict[str, Any] = _copied(self.study.base)
        for value in self.values:
            merge(table, value.set)
        chosen = table.get("algorithm", {})
        own = table.get("algorithms", {}).get(_algorithm(table), {})
        if own:
            table["algorithm"] = {**own, **chosen}
        return table

    def stand_ins(self) -> dict[str, str]:
        """At quick scale: what trains in place of each of the paper's tasks."""
        uses = [task.use for task in self.config(0, "full").tasks]
        return {use: str(_QUICK_TASKS[use]["use"]) for use in uses if use in _QUICK_TASKS}

    def final_at(self, scale: Scale) -> dict[str, float]:
        haste = HASTE if scale == "quick" else 1.0
        return {name: time * haste for name, time in self.study.config.final_at.items()}


def slug(label: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")


# --- files -------------------------------------------------------------------------------------


def studies() -> dict[str, Study]:
    """The paper's, in its order of importance."""
    found = [
        load_study(Path(str(entry)))
        for entry in (files("fedast.reproduce") / "paper").iterdir()
        if entry.name.endswith(".toml")
    ]
    return {study.name: study for study in sorted(found, key=lambda s: s.config.order)}


def find_studies(names: Sequence[str]) -> list[Study]:
    """By name, ``all``, or the path of a file of one's own."""
    known = studies()
    found: dict[str, Study] = {}
    for name in names:
        if name == "all":
            found |= {n: study for n, study in known.items() if not study.config.optional}
        elif name in known:
            found[name] = known[name]
        elif name.endswith(".toml"):
            own = load_study(Path(name), name)
            if own.name in known:
                raise ConfigError("", f"is called as one of the paper's; rename it: {name}")
            found[name] = own
        else:
            raise ConfigError("", f"there is no study {name!r}{nearest(name, [*known, 'all'])}")
    return list(found.values())


def load_study(path: Path, source: str | None = None) -> Study:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        config = StudyConfig.model_validate(_tuples(table))
    except OSError as error:
        raise ConfigError("", f"cannot be read ({error.strerror})", str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("", f"is not valid TOML: {error}", str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(key, f"{first['msg'].lower()}", str(path)) from None
    base: dict[str, Any] = {}
    if config.like is not None:
        other = files("fedast.reproduce") / "paper" / f"{config.like}.toml"
        if not other.is_file():
            raise ConfigError("like", f"there is no study {config.like!r}", str(path))
        base = _copied(load_study(Path(str(other))).base)
    merge(base, config.base)
    study = Study(path.stem, config, base, source or path.stem)
    _check(study, str(path))
    return study


def _check(study: Study, source: str) -> None:
    """Labels that are referred to exist, and no two axes or values are called the same."""
    axes = {axis.name: [value.label for value in axis.values] for axis in study.axes}
    if len(axes) < len(study.axes):
        raise ConfigError("axes", "two axes have the same name", source)
    for name, labels in axes.items():
        if len(set(map(slug, labels))) < len(labels):
            raise ConfigError(f"axes.{name}", "two of its values are called the same", source)
    roles = [axis.role for axis in study.axes]
    if len(set(roles)) < len(roles):
        raise ConfigError("axes", "two axes have the same role", source)
    if any(kind.startswith("sweep") for kind in study.config.figures) and "x" not in roles:
        raise ConfigError("figures", "a sweep needs an axis with role x", source)
    tasks = {task.name for cell in study.cells() for task in cell.config(0, "full").tasks}
    _check_base(study, {name for name in tasks if name}, source)
    for entry in study.config.reported:
        needs = _NEEDS.get(entry.measure, "")
        if needs == "along" and entry.along is None:
            raise ConfigError(entry.what, f"{entry.measure} needs along, an axis", source)
        if needs == "series" and "series" not in roles:
            raise ConfigError(entry.what, f"{entry.measure} needs an axis of series", source)
        if needs == "task" and entry.task is None:
            raise ConfigError(entry.what, f"{entry.measure} needs a task", source)
        if entry.task is not None and entry.task not in tasks:
            close = nearest(entry.task, sorted(name for name in tasks if name))
            raise ConfigError(entry.what, f"no task {entry.task!r}{close}", source)
        for name, label in [*entry.at.items(), *entry.over.items()]:
            if name not in axes:
                raise ConfigError(entry.what, f"no axis {name!r}{nearest(name, axes)}", source)
            if label not in axes[name]:
                raise ConfigError(
                    entry.what, f"no value {label!r}{nearest(label, axes[name])}", source
                )
        series = [label for axis in study.axes if axis.role == "series"
                  for label in axes[axis.name]]  # fmt: skip
        for label in entry.others:
            if label not in series:
                raise ConfigError(entry.what, f"no value {label!r}{nearest(label, series)}", source)
        if entry.along is not None and entry.along not in axes:
            raise ConfigError(entry.what, f"no axis {entry.along!r}", source)
        if entry.measure in ("best", "best-final"):
            theirs = f"{entry.paper:g}" if isinstance(entry.paper, float) else entry.paper or ""
            if theirs not in axes[entry.along or ""]:
                close = nearest(theirs, axes[entry.along or ""])
                raise ConfigError(entry.what, f"paper is no value of {entry.along}{close}", source)
        if entry.measure not in ("largest-gain", "positive-gain"):
            for name in set(axes) - {*entry.at, entry.along}:
                if len(axes[name]) > 1:
                    raise ConfigError(entry.what, f"at does not say which {name}", source)


def _algorithm(table: Mapping[str, Any]) -> str:
    return str(table.get("algorithm", {}).get("name", "fedast-d"))


def _check_base(study: Study, tasks: Collection[str], source: str) -> None:
    """What the base or a value says holds in some cell: nothing is accepted and then ignored."""
    tables = [cell.table() for cell in study.cells()]
    for path, value in _leaves(study.config.base):
        place, where = path, tables
        if path[0] == "algorithms":
            place, where = ("algorithm", *path[2:]), [t for t in tables if _algorithm(t) == path[1]]
        if not any(_at(table, place) == value for table in where):
            key = ".".join(path)
            raise ConfigError(f"base.{key}", "every value of an axis says otherwise", source)
    for table in (study.base, *(value.set for axis in study.axes for value in axis.values)):
        for name in table.get("task", {}):
            if name not in tasks:
                raise ConfigError(f"task.{name}", f"no such task{nearest(name, tasks)}", source)


def _leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _at(table: Any, path: Sequence[str]) -> Any:
    for part in path:
        table = table.get(part) if isinstance(table, Mapping) else None
    return table


_NEEDS: Mapping[str, str] = {
    "best": "along", "best-final": "along", "ceiling": "along", "linear": "along",
    "growing-gain": "along", "falling-rounds": "along",
    "first": "series", "last": "series", "similar": "series", "fewer": "task",
}  # fmt: skip


# --- from tables to a configuration -------------------------------------------------------------


def merge(table: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Write ``other`` over ``table``; a delay or availability of another model starts anew.

    (An algorithm does not: many options are common to several, and one that the new algorithm
    does not have is an error.)
    """
    for key, value in other.items():
        old = table.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            if "model" in value and value["model"] != old.get("model"):
                old.clear()
            merge(old, value)
        else:
            table[key] = _copied(value)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(entry) for entry in value]
    return value


def _tuples(value: Any) -> Any:
    """Lists as tuples in what is checked; ``base`` and ``set`` stay as they are."""
    if isinstance(value, Mapping):
        return {
            key: entry if key in ("base", "set") else _tuples(entry) for key, entry in value.items()
        }
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return value


def _write_out(table: dict[str, Any]) -> None:
    """Replace the shorthands by what they stand for."""
    if "copies" in table and "template" not in table:
        raise ConfigError("copies", "needs a template, the task to copy")
    if "template" in table and "tasks" in table:
        raise ConfigError("template", "stands in place of tasks; leave one of both out")
    template, copies = table.pop("template", None), table.pop("copies", 1)
    if template is not None:
        if copies == 1:
            table["tasks"] = [_copied(template)]
        else:
            table["tasks"] = [
                {**_copied(template), "name": f"{template['use']}-{number}"}
                for number in range(1, copies + 1)
            ]
    each, by_name = table.pop("each", {}), table.pop("task", {})
    for task in table.get("tasks", []):
        merge(task, each)
        merge(task, by_name.get(task.get("name", task["use"]), {}))


def _make_quick(table: dict[str, Any]) -> None:
    """The same, small: see the module's docstring."""
    simulation = table.setdefault("simulation", {})
    simulation["clients"] = _shrunk(simulation.get("clients", 1000))
    simulation["max_time"] = simulation.get("max_time", 3000) * HASTE
    availability = simulation.get("availability", {})
    if "cap" in availability:
        availability["cap"] = _shrunk(availability["cap"])
    algorithm = table.setdefault("algorithm", {})
    for key in ("requests", "first_k"):
        if isinstance(algorithm.get(key), int):
            algorithm[key] = _shrunk(algorithm[key])
    options = ALGORITHMS.find(algorithm.get("name", "fedast-d"), "algorithm.name").model_fields
    if "first_k" in options:
        algorithm.setdefault("first_k", _shrunk(30))
    else:
        if algorithm.get("ratio", USUAL_RATIO) == USUAL_RATIO:
            algorithm["ratio"] = 8
        algorithm.setdefault("server_lr", 0.4)
    for task in table["tasks"]:
        use = task["use"]
        small = _QUICK_TASKS.get(use)
        if small is not None:
            task.setdefault("name", use)
            task["use"] = small["use"]
            task.pop("options", None)
            task.setdefault("target", small[task.pop("level", "main")])
        if "requests" in task:
            task["requests"] = _shrunk(task["requests"])
            if "buffer" in task:
                task["buffer"] = min(task["buffer"], task["requests"])


def _shrunk(count: int) -> int:
    return max(1, round(count * SHRINK))
