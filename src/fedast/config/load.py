"""From a TOML file and ``--set`` values to a ``RunConfig``, with errors people can read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedast.algorithms.options import ALGORITHMS
from fedast.config import task_names
from fedast.config.kinds import KINDS
from fedast.config.renamed import FOLDED, line, renamed, renamed_path, translated, with_current_keys
from fedast.config.schema import RunConfig, Simulation, TaskConfig
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.options import Section
from fedast.parts.parsing import parse_section, part_fields
from fedast.parts.registry import make_importable
from fedast.records.observers import OBSERVERS

_ADDRESS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


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
        old: list[str] = []
        table = with_current_keys(table, lambda key, new: old.append(line(key, new)))
        _algorithm_as_table(table)
        _check_not_twice(table)
        apply_settings(table, settings, algorithm=algorithm, folder=path.parent, note=old.append)
        for text in dict.fromkeys([*old, *renamed(table)]):
            note(text)
        if seed is not None:
            table["seed"] = seed
        config = parse(table, path.parent)
        check_running(settings, {config.algorithm.name, *beside})
        return config
    except ConfigError as error:
        raise error.within(str(path)) from None


def parse(table: Mapping[str, Any], folder: Path = Path()) -> RunConfig:
    """Check a table; the first thing that is wrong with it becomes a ``ConfigError``.

    Modules with the user's own parts are looked for in the folders of ``path``, which are relative
    to ``folder``.
    """
    table = _with_trackers(translated(table))
    if names_own_code(table):
        make_importable([str((folder / place).resolve()) for place in _path_of(table)])
    config = parse_section(RunConfig, table)
    for name, options in config.algorithms.items():
        ALGORITHMS.parse({**options, "name": name}, f"algorithms.{name}")
    return config


def _with_trackers(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """``track = ["mlflow"]`` is short for observers of these names."""
    if "track" not in table:
        return table
    given, observers = table["track"], table.get("observers", [])
    if not isinstance(given, list | tuple):
        raise ConfigError("track", f'must be a list of names, such as ["mlflow"], got {given!r}')
    parsed = [OBSERVERS.parse(tracker, "track") for tracker in given]
    rest = {key: value for key, value in table.items() if key != "track"}
    return {**rest, "observers": [*observers, *parsed]} if isinstance(observers, list) else rest


def names_own_code(value: Any) -> bool:
    """Whether something in a table looks like ``package.module:Name``."""
    if isinstance(value, Mapping):
        return any(map(names_own_code, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return any(map(names_own_code, value))
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _path_of(table: Mapping[str, Any]) -> Sequence[str]:
    given = table.get("path")
    if isinstance(given, list | tuple) and all(isinstance(place, str) for place in given):
        return given or (".",)
    return (".",)  # missing, or wrong: the schema says so


def apply_settings(
    table: dict[str, Any],
    settings: Sequence[str],
    *,
    algorithm: str | None = None,
    folder: Path = Path(),
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Apply settings and choose the algorithm, with its own table if there is one.

    The algorithm's options come from three places. ``algorithms.NAME`` applies whenever NAME runs,
    and a setting of ``algorithm`` to whichever algorithm runs, so it comes last. Settings of tasks
    come after the others: what a task of the user's own is called is known when it is built, from
    ``folder``, the seed and the number of clients.
    """
    _algorithm_as_table(table)
    running = algorithm or _chosen(settings) or _name(table)
    settings = [_renamed_setting(setting, str(running), note) for setting in settings]
    about = [s for s in settings if _path(s)[0] == "algorithm"]
    of_tasks = [s for s in settings if _path(s)[0] == "tasks"]
    for setting in settings:
        if setting not in about and setting not in of_tasks:
            apply_setting(table, setting)
    for setting in of_tasks:
        apply_setting(table, setting, folder)
    if algorithm is not None and _name(table) != algorithm:
        table["algorithm"] = {"name": algorithm}
    for setting in about:
        apply_setting(table, setting)
        _algorithm_as_table(table)
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


def _chosen(settings: Sequence[str]) -> Any:
    """The algorithm that settings choose, if they do."""
    for setting in reversed(settings):
        if _path(setting) == ["algorithm", "name"]:
            return _value(setting)
        if _path(setting) == ["algorithm"]:
            value = _value(setting)
            return value.get("name") if isinstance(value, dict) else value
    return None


def _algorithm_as_table(table: dict[str, Any]) -> None:
    """``algorithm = "fedbuff"`` is a table with that name."""
    if isinstance(table.get("algorithm"), str):
        table["algorithm"] = {"name": table["algorithm"]}


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


def apply_setting(table: dict[str, Any], setting: str, folder: Path = Path()) -> None:
    """``simulation.clients=50``; a task is addressed by its name or its number."""
    path, value = _path(setting), _value(setting)
    key = ".".join(path)
    if path[0] == "tasks" and len(path) > 2:
        path[1] = _known(table, path[1], key, folder)
    place: Any = table
    for part in path[:-1]:
        if isinstance(place, list):
            place = _entry(place, part, key)
        elif isinstance(place, dict):
            if isinstance(place.get(part), str) and part in _part_keys():
                place[part] = {"name": place[part]}  # options of a part that was a bare name
            place = place.setdefault(part, {})
        else:
            raise ConfigError(key, f"{part!r} cannot be set inside a plain value")
    if not isinstance(place, dict):
        raise ConfigError(key, f"{path[-1]!r} cannot be set here; name a task first")
    place[path[-1]] = value
    _outdo(table, path)


@cache
def _part_keys() -> frozenset[str]:
    """Keys that hold a part: a bare name stands for a table with that name."""
    sections: list[type[Section]] = [RunConfig, Simulation, TaskConfig]
    sections += [kind for registry in KINDS.values() for kind in registry.builtin.values()]
    return frozenset(name for section in sections for name in part_fields(section))


def _outdo(table: Any, path: list[str]) -> None:
    """A setting overrides the same option under its other name, beside its part or in it."""
    *parents, key = path
    if key in FOLDED:
        part, inside = FOLDED[key]
        other = _inside(_inside_all(table, parents), part)
        if isinstance(other, dict):
            other.pop(inside, None)
    for beside, (part, inside) in FOLDED.items():
        if path[-2:] == [part, inside]:
            place = _inside_all(table, parents[:-1])
            if isinstance(place, dict):
                place.pop(beside, None)


def _inside_all(place: Any, path: Sequence[str]) -> Any:
    for part in path:
        place = _inside(place, part)
    return place


def _inside(place: Any, part: str) -> Any:
    if isinstance(place, list):
        return _entry(place, part, part)
    return place.get(part) if isinstance(place, dict) else None


def _path(setting: str) -> list[str]:
    key, sign, _ = setting.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not sign or not all(path):
        raise ConfigError(setting, "expected key=value, such as simulation.clients=50")
    return path


def _renamed_setting(setting: str, algorithm: str, note: Callable[[str], None]) -> str:
    """The setting under today's name, so that it overrides that key in the file."""
    path = _path(setting)
    new = renamed_path(path, algorithm)
    if new == path:
        return setting
    changed = next(place for place, part in enumerate(new) if part != path[place])
    note(line(".".join(path), ".".join(new[changed:])))
    return ".".join(new) + "=" + setting.partition("=")[2]


def _value(setting: str) -> Any:
    text = setting.partition("=")[2].strip()
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string


def _entry(entries: list[Any], name: str, key: str) -> Any:
    if name.isdecimal() and int(name) < len(entries):
        return entries[int(name)]
    names = _as_written(entries)
    if name in names:
        return entries[names.index(name)]
    raise ConfigError(key, f"there is no task {name!r}{nearest(name, filter(None, names))}")


def _as_written(entries: Sequence[Any]) -> list[str]:
    """What a file calls its tasks."""
    return [
        str(entry.get("name", entry.get("use", entry.get("task", ""))))
        if isinstance(entry, Mapping)
        else ""
        for entry in entries
    ]


def _known(table: Mapping[str, Any], name: str, key: str, folder: Path) -> str:
    """What a setting calls a task, as ``_entry`` takes it."""
    entries = table.get("tasks")
    if not isinstance(entries, list) or name.isdecimal() or name in _as_written(entries):
        return name
    called = task_names.names(table, _path_of(table), folder)
    if name in called:
        return str(called.index(name))
    raise ConfigError(key, f"there is no task {name!r}{nearest(name, filter(None, called))}")
