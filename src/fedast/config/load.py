"""From a TOML file and ``--set`` values to a ``RunConfig``, with errors people can read."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedast.config.errors import ConfigError
from fedast.config.renamed import line, renamed, renamed_key, translated
from fedast.config.schema import (
    ALGORITHMS,
    AVAILABILITY,
    DELAYS,
    STEPS,
    CalibrationConfig,
    CombiningConfig,
    Compute,
    FederationConfig,
    RunConfig,
    Simulation,
    SpeedGroups,
    TaskConfig,
    TrainingOverrides,
)


def load(
    path: Path,
    settings: Sequence[str] = (),
    *,
    algorithm: str | None = None,
    beside: Collection[str] = (),
    seed: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> RunConfig:
    """Read a file, apply ``key=value`` settings, switch the algorithm, set the seed.

    ``beside`` are the algorithms that the same command runs too: a setting of an algorithm that
    does not run at all is an error. ``note`` is given a line for each key of an earlier version.
    """
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError("", f"cannot be read ({error.strerror})", str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("", f"is not valid TOML: {error}", str(path)) from error
    try:
        old = renamed(table)
        table = translated(table)
        _check_not_twice(table)
        apply_settings(table, settings, algorithm=algorithm, note=old.append)
        for text in dict.fromkeys([*old, *renamed(table)]):  # the table: values that are tables
            note(text)
        if seed is not None:
            table["seed"] = seed
        config = parse(table)
        check_running(settings, {config.algorithm.name, *beside})
        return config
    except ConfigError as error:
        raise error.within(str(path)) from None


def parse(table: Mapping[str, Any]) -> RunConfig:
    """Check a table; the first thing that is wrong with it becomes a ``ConfigError``."""
    table = translated(table)
    try:
        config = RunConfig.model_validate(_lists_as_tuples(table))
    except ValidationError as error:
        raise _translate(error, table) from None
    for name, options in config.algorithms.items():
        if name not in ALGORITHMS:
            raise ConfigError(f"algorithms.{name}", f"unknown algorithm{nearest(name, ALGORITHMS)}")
        try:
            RunConfig.model_validate(
                {"algorithm": {**options, "name": name}, "tasks": ({"use": "-"},)}
            )
        except ValidationError as error:
            found = _translate(error, {"algorithm": options})
            key = found.key.replace("algorithm", f"algorithms.{name}", 1)
            raise ConfigError(key, found.problem) from None
    return config


def apply_settings(
    table: dict[str, Any],
    settings: Sequence[str],
    *,
    algorithm: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Apply settings and choose the algorithm, with its own table if there is one.

    Three places speak about the algorithm that runs. What ``algorithms.NAME`` says holds whenever
    NAME runs, and a setting of ``algorithm`` is about whichever does, so it comes last.
    """
    settings = [_renamed_setting(setting, note) for setting in settings]
    about = [s for s in settings if _path(s)[0] == "algorithm"]
    for setting in settings:
        if setting not in about:
            apply_setting(table, setting)
    if algorithm is not None and _name(table) != algorithm:
        table["algorithm"] = {"name": algorithm}
    for setting in about:
        apply_setting(table, setting)
    name, others = _name(table), table.get("algorithms")
    if algorithm is not None and name != algorithm:
        raise ConfigError("algorithm.name", f"is set to {name!r}, but --algorithm says {algorithm}")
    own = others.get(name) if isinstance(others, dict) else None
    if own is None:
        return
    if not isinstance(own, dict):
        raise ConfigError(f"algorithms.{name}", f"must be a table of options, got {own!r}")
    chosen = _keys(about, "algorithm")
    for key in _keys(settings, "algorithms", name):
        if key in chosen:
            raise ConfigError(f"algorithms.{name}.{key}", f"algorithm.{key} is set too; leave one")
    current = table.setdefault("algorithm", {})
    if isinstance(current, dict):
        current.update({key: value for key, value in own.items() if key not in chosen})
        current["name"] = name


def check_running(settings: Sequence[str], running: Collection[str]) -> None:
    """A setting of an algorithm that does not run would be ignored."""
    for setting in settings:
        path = _path(setting)
        names = _keys([setting], "algorithms") if path[0] == "algorithms" else ()
        for name in names:
            if name not in running:
                key = ".".join(path) if len(path) > 1 else f"algorithms.{name}"
                does = ", ".join(sorted(running))
                raise ConfigError(key, f"{name} does not run here (but {does}); leave it out")


def _check_not_twice(table: Mapping[str, Any]) -> None:
    """A file's own algorithm may have options in both places, but no option in both."""
    here, others = table.get("algorithm"), table.get("algorithms")
    own = others.get(_name(table)) if isinstance(others, dict) else None
    if not isinstance(here, dict) or not isinstance(own, dict):
        return
    for key in own:
        if key in here and key != "name":
            raise ConfigError(
                f"algorithms.{_name(table)}.{key}", "is set under [algorithm] too; leave one out"
            )


def _name(table: Mapping[str, Any]) -> Any:
    """The algorithm that a table chooses, unchecked."""
    default = RunConfig.model_fields["algorithm"].default.name
    chosen = table.get("algorithm")
    return chosen.get("name", default) if isinstance(chosen, Mapping) else default


def _keys(settings: Iterable[str], *where: str) -> list[str]:
    """The keys that settings set in this table, one by one or as a whole table."""
    found: list[str] = []
    for setting in settings:
        path = _path(setting)
        if path[: len(where)] == list(where):
            rest = path[len(where) :]
            value = _value(setting)
            found += rest[:1] or (list(value) if isinstance(value, dict) else [])
        elif path == list(where[: len(path)]):  # a table around it
            value = _value(setting)
            for part in where[len(path) :]:
                value = value.get(part, {}) if isinstance(value, dict) else {}
            found += list(value) if isinstance(value, dict) else []
    return found


def apply_setting(table: dict[str, Any], setting: str) -> None:
    """``simulation.clients=50``; a task is addressed by its name or its number."""
    path, value = _path(setting), _value(setting)
    key = ".".join(path)
    place: Any = table
    for part in path[:-1]:
        if isinstance(place, list):
            place = _entry(place, part, key)
        elif isinstance(place, dict):
            place = place.setdefault(part, {})
        else:
            raise ConfigError(key, f"{part!r} cannot be set inside a plain value")
    if not isinstance(place, dict):
        raise ConfigError(key, f"{path[-1]!r} cannot be set here; name a task first")
    place[path[-1]] = value


def _path(setting: str) -> list[str]:
    key, sign, _ = setting.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not sign or not all(path):
        raise ConfigError(setting, "expected key=value, such as simulation.clients=50")
    return path


def _renamed_setting(setting: str, note: Callable[[str], None]) -> str:
    """The setting under today's name, so that it overrides that key in the file."""
    path = _path(setting)
    new = renamed_key(path)
    if new is None:
        return setting
    note(line(".".join(path), new))
    return ".".join([*path[:-1], new]) + "=" + setting.partition("=")[2]


def _value(setting: str) -> Any:
    text = setting.partition("=")[2].strip()
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string


def _entry(entries: list[Any], name: str, key: str) -> Any:
    if name.isdecimal() and int(name) < len(entries):
        return entries[int(name)]
    names = [str(e.get("name", e.get("use", e.get("task", "")))) for e in entries]
    if name in names:
        return entries[names.index(name)]
    raise ConfigError(key, f"there is no task {name!r}{nearest(name, filter(None, names))}")


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean ...?', or what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(known)}" if known else ""


def _lists_as_tuples(value: Any) -> Any:
    """Strict validation takes tuples for tuples; TOML has lists."""
    if isinstance(value, Mapping):
        return {key: _lists_as_tuples(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return tuple(map(_lists_as_tuples, value))
    return value


# --- errors --------------------------------------------------------------------------------

_SECTIONS: Mapping[tuple[str, ...], type[BaseModel]] = {
    (): RunConfig,
    ("simulation",): Simulation,
    ("simulation", "speeds"): SpeedGroups,
    ("compute",): Compute,
    ("federation",): FederationConfig,
    ("tasks", "*"): TaskConfig,
    ("tasks", "*", "sync"): TrainingOverrides,
    ("tasks", "*", "combining"): CombiningConfig,
    ("tasks", "*", "calibration"): CalibrationConfig,
    **{("tasks", "*", "server_step", tag): section for tag, section in STEPS.items()},
    **{("algorithm", tag): section for tag, section in ALGORITHMS.items()},
    **{("simulation", "delay", tag): section for tag, section in DELAYS.items()},
    **{("simulation", "availability", tag): section for tag, section in AVAILABILITY.items()},
}


def _translate(error: ValidationError, table: Mapping[str, Any]) -> ConfigError:
    # A misspelled key explains what else is missing, so it is reported first.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    where = tuple("*" if isinstance(part, int) else str(part) for part in first["loc"])
    key = _spell(first["loc"], table)
    match first["type"]:
        case "extra_forbidden":
            section = _SECTIONS.get(where[:-1])
            known = section.model_fields if section is not None else ()
            if where[0] == "algorithm" and any(
                where[-1] in other.model_fields for other in ALGORITHMS.values()
            ):
                return ConfigError(
                    key,
                    f"{where[1]} has no such option; under algorithms.NAME it holds for an "
                    "algorithm that has it",
                )
            return ConfigError(key, f"unknown key{nearest(where[-1], known)}")
        case "missing":
            return ConfigError(key, "is missing")
        case "union_tag_invalid":
            known = first["ctx"]["expected_tags"].replace("'", "").split(", ")
            field = first["ctx"]["discriminator"].strip("'")
            tag = first["ctx"]["tag"]
            return ConfigError(f"{key}.{field}", f"unknown value {tag!r}{nearest(tag, known)}")
        case "union_tag_not_found":
            return ConfigError(
                f"{key}.{first['ctx']['discriminator'].strip(chr(39))}", "is missing"
            )
        case _:
            message = first["msg"].removeprefix("Value error, ")
            problem = message[0].lower() + message[1:]
            return ConfigError(key, f"{problem}, got {first['input']!r}")


def _spell(loc: tuple[int | str, ...], table: Mapping[str, Any]) -> str:
    """The key as the user would write it: no union tags, tasks by name."""
    words: list[str] = []
    here: Any = table
    for position, part in enumerate(loc):
        if isinstance(part, int):
            here = here[part] if isinstance(here, Sequence) and part < len(here) else None
            named = here.get("name", here.get("use")) if isinstance(here, Mapping) else None
            words.append(str(named) if isinstance(named, str) else str(part))
            continue
        known = isinstance(here, Mapping) and part in here
        is_tag = where_tag(loc[:position]) and not known
        if not is_tag:
            words.append(part)
            here = here.get(part) if isinstance(here, Mapping) else None
    return ".".join(words)


def where_tag(loc: tuple[int | str, ...]) -> bool:
    """Whether pydantic puts a union's tag after this place."""
    tagged = {("algorithm",), ("simulation", "delay"), ("simulation", "availability")}
    return loc in tagged or loc[-1:] == ("server_step",)
