"""Find and read the files of studies."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedast.config.renamed import copied
from fedast.parts.errors import ConfigError, nearest
from fedast.reproduce.check import check
from fedast.reproduce.expand import merge, with_current_keys
from fedast.reproduce.study import Study, StudyConfig

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
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        config = StudyConfig.model_validate(_prepared(_with_current_keys(table)))
    except OSError as error:
        raise ConfigError("", f"cannot be read ({error.strerror})", str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("", f"is not valid TOML: {error}", str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(key, f"{first['msg'].lower()}", str(path)) from None
    except ConfigError as error:
        raise error.within(str(path)) from None
    base: dict[str, Any] = {}
    if config.extends is not None:
        other = files("fedast.reproduce") / "paper" / f"{config.extends}.toml"
        if not other.is_file():
            raise ConfigError("extends", f"there is no study {config.extends!r}", str(path))
        base = copied(load_study(Path(str(other))).base)
    merge(base, config.base)
    study = Study(path.stem, config, base, source or path.stem)
    check(study, str(path))
    return study


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
