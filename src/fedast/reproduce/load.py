"""Find and read the files of studies."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedast.config.load import names_own_code
from fedast.config.renamed import copied
from fedast.parts.errors import ConfigError, nearest
from fedast.reproduce.check import check
from fedast.reproduce.expand import merge, with_current_keys
from fedast.reproduce.study import Study, StudyConfig

SWEEP_KEYS = ("search", "sampler", "objective", "prune")
"""What a sweep has beside what a study has."""
_RENAMED = {"like": "extends", "reported": "claims"}
"""Keys of earlier versions, still read, and what they are called now."""


def studies() -> dict[str, Study]:
    """The paper's studies, the most important first."""
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
                problem = f"the paper has a study called {own.name!r} too; rename the file"
                raise ConfigError("", problem, name)
            found[name] = own
        else:
            raise ConfigError("", f"there is no study {name!r}{nearest(name, [*known, 'all'])}")
    return list(found.values())


def load_study(path: Path, source: str | None = None) -> Study:
    table = read_table(path)
    for key in SWEEP_KEYS:
        if key in table:
            raise ConfigError(key, f"is for a sweep: fedast sweep {path}", str(path))
    study = _with_roles(study_of(table, path, source or path.stem))
    check(study, str(path))
    return study


def _with_roles(study: Study) -> Study:
    """Axes without a role get those that are left: the last one the series, then panels and x."""
    left = [role for role in ROLES if role not in {axis.role for axis in study.axes}]
    axes = []
    for axis in reversed(study.axes):
        role = left.pop(0) if axis.role is None and left else axis.role
        axes.append(axis.model_copy(update={"role": role}))
    given = {"axes": tuple(reversed(axes)), "title": study.config.title or study.name}
    return replace(study, config=study.config.model_copy(update=given))


def read_table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("", f"cannot be read ({error.strerror})", str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("", f"is not valid TOML: {error}", str(path)) from error


ROLES = ("series", "panel", "x")
"""What an axis can be in figures."""


def study_of(table: Mapping[str, Any], path: Path, source: str, folder: Path = Path()) -> Study:
    """The study that a file's table describes; ``check`` has not seen it yet."""
    try:
        config = StudyConfig.model_validate(_prepared(_with_current_keys(table)))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        said = first["msg"].lower()
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            said = f"unknown key{nearest(key, StudyConfig.model_fields)}"
        raise ConfigError(key, said, str(path)) from None
    except ConfigError as error:
        raise error.within(str(path)) from None
    base = {} if config.extends is None else _extended(config.extends, path)
    merge(base, config.base)
    return Study(path.stem, config, base, source, folder)


def _extended(name: str, path: Path) -> dict[str, Any]:
    """The base of one of the paper's studies, or of a file beside this one: of a study, or the
    whole of a configuration."""
    if not name.endswith(".toml"):
        other = files("fedast.reproduce") / "paper" / f"{name}.toml"
        if not other.is_file():
            raise ConfigError("extends", f"there is no study {name!r}", str(path))
        return dict(copied(load_study(Path(str(other))).base))
    file = path.parent / name
    if file.resolve() == path.resolve():
        raise ConfigError("extends", "is this file itself", str(path))
    table = read_table(file)
    if "base" in table or "extends" in table:
        base = with_current_keys(table.get("base", {}))
        if "extends" in table:
            merge(inherited := _extended(table["extends"], file), base)
            return inherited
        return base
    return _anchored(with_current_keys(table), file.parent)


def _anchored(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A configuration from another folder: what it finds beside itself is found there."""
    if names_own_code(table) or "path" in table:
        places = table.get("path") or ["."]
        table["path"] = [str((folder / place).resolve()) for place in places]
    for part in table.get("simulation", {}).values():
        if isinstance(part, dict):
            for key, value in part.items():
                if isinstance(value, str) and (folder / value).is_file():
                    part[key] = str((folder / value).resolve())
    return table


def _with_current_keys(table: Mapping[str, Any]) -> dict[str, Any]:
    new = dict(table)
    for old, current in _RENAMED.items():
        if old in new:
            if current in new:
                raise ConfigError(old, f"is now called {current}, which is set too; leave one out")
            new[current] = new.pop(old)
    return new


def _prepared(value: Any, key: str = "") -> Any:
    """Configurations (``base`` and ``set``) with current keys; elsewhere lists as tuples, as the
    strict checks want them."""
    if isinstance(value, Mapping):
        if key in ("base", "set"):
            return with_current_keys(value)
        return {name: _prepared(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return tuple(map(_prepared, value))
    return value
