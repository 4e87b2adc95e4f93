"""Check that a study's file makes sense before anything of it is run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fedast.parts.errors import ConfigError, nearest
from fedast.reproduce.claims import Claim
from fedast.reproduce.figures.registry import FIGURES
from fedast.reproduce.study import Study, algorithm_of, slug

_NEEDS: Mapping[str, str] = {
    "best": "along", "best-final": "along", "ceiling": "along", "linear": "along",
    "growing-gain": "along", "falling-rounds": "along",
    "first": "series", "last": "series", "similar": "series", "fewer": "task",
}  # fmt: skip
"""What a measure cannot do without."""


def check(study: Study, source: str) -> None:
    """Raise ``ConfigError`` for the first problem: duplicate names, labels that do not exist,
    settings that are never used."""
    axes = check_axes(study, source)
    if not axes:
        raise ConfigError("axes", "a study needs at least one axis", source)
    for axis in study.axes:
        if axis.role is None:
            raise ConfigError(f"axes.{axis.name}.role", "is missing", source)
    roles = [axis.role for axis in study.axes if axis.role is not None]
    if len(set(roles)) < len(roles):
        raise ConfigError("axes", "two axes have the same role", source)
    _check_figures(study, roles, source)
    tasks = {task.name for variant in study.variants() for task in variant.config(0, "full").tasks}
    names = {name for name in tasks if name}
    _check_base(study, names, source)
    for claim in study.config.claims:
        try:
            _check_claim(claim, study, axes, names)
        except ConfigError as error:
            raise error.within(source) from None


def check_axes(study: Study, source: str) -> dict[str, list[str]]:
    """The labels of each axis; ``ConfigError`` if a name or a label is there twice."""
    axes = {axis.name: [value.label for value in axis.values] for axis in study.axes}
    if len(axes) < len(study.axes):
        raise ConfigError("axes", "two axes have the same name", source)
    for name, labels in axes.items():
        if len(set(map(slug, labels))) < len(labels):
            raise ConfigError(f"axes.{name}", "two of its values have the same label", source)
    return axes


def _check_figures(study: Study, roles: Collection[str], source: str) -> None:
    for name in study.config.figures:
        if ":" in name:  # a function of the user's own, which is imported when it draws
            continue
        if name not in FIGURES.names():
            problem = f"there is no figure {name!r}{nearest(name, FIGURES.names())}"
            raise ConfigError("figures", problem, source)
        for role in FIGURES.find(name, "figures").roles:
            if role not in roles:
                raise ConfigError("figures", f"{name} needs an axis with role {role}", source)


def _check_claim(
    claim: Claim, study: Study, axes: Mapping[str, Sequence[str]], tasks: Collection[str]
) -> None:
    series = [value.label for axis in study.axes if axis.role == "series" for value in axis.values]
    match _NEEDS.get(claim.measure):
        case "along" if claim.along is None:
            raise ConfigError(claim.what, f"{claim.measure} needs along, an axis")
        case "series" if not series:
            raise ConfigError(claim.what, f"{claim.measure} needs an axis with role series")
        case "task" if claim.task is None:
            raise ConfigError(claim.what, f"{claim.measure} needs a task")
        case _:
            pass
    if claim.task is not None:
        _check_known(claim, "task", claim.task, tasks)
    for name, label in [*claim.at.items(), *claim.over.items()]:
        _check_known(claim, "axis", name, axes)
        _check_known(claim, "value", label, axes[name])
    for label in claim.others:
        _check_known(claim, "value", label, series)
    if claim.along is not None:
        _check_known(claim, "axis", claim.along, axes)
    if claim.measure in ("best", "best-final"):
        theirs = f"{claim.paper:g}" if isinstance(claim.paper, float) else claim.paper or ""
        labels = axes[claim.along or ""]
        if theirs not in labels:
            close = nearest(theirs, labels)
            raise ConfigError(
                claim.what, f"paper must be one of the values of {claim.along}{close}"
            )
    if claim.measure not in ("largest-gain", "positive-gain"):
        for name in set(axes) - {*claim.at, claim.along}:
            if len(axes[name]) > 1:
                raise ConfigError(claim.what, f"at must name a value of {name}")


def _check_known(claim: Claim, kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ConfigError(claim.what, f"there is no {kind} {name!r}{nearest(name, known)}")


def _check_base(study: Study, tasks: Collection[str], source: str) -> None:
    """Everything that the base or a value sets is used by some variant."""
    tables = [variant.table() for variant in study.variants()]
    for path, value in _leaves(study.config.base):
        place, where = path, tables
        if path[0] == "algorithms":
            place = ("algorithm", *path[2:])
            where = [table for table in tables if algorithm_of(table) == path[1]]
        if not any(_at(table, place) == value for table in where):
            key = ".".join(path)
            raise ConfigError(f"base.{key}", "has no effect in any variant", source)
    for table in (study.base, *(value.set for axis in study.axes for value in axis.values)):
        for name in table.get("task", {}):
            if name not in tasks:
                close = nearest(name, tasks)
                raise ConfigError(f"task.{name}", f"there is no such task{close}", source)


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
