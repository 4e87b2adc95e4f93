"""What makes two runs the same run, and what tells two configurations apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedast.config.load import parse
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError

_ELSEWHERE = {"federation", "algorithms", "observers", "path"}
"""What does not affect a run."""
_FILES = ("delay", "availability")
"""Parts of the simulation that may name a file."""
_NAMED = 3
"""How many differences a message names."""


def identity(config: RunConfig) -> str:
    """What makes two runs the same run: everything but where and how it is computed.

    Of that only the precision counts, where it is asked for.
    """
    table = config.model_dump(mode="json", exclude={"compute", *_ELSEWHERE})
    found = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    precision = config.compute.precision
    return found if precision == "auto" else f"{found}, {precision}"


def describe(config: RunConfig) -> dict[str, Any]:
    """Everything that determines a run, to be kept with its results. Files count by their content,
    wherever they are.
    """
    table = config.model_dump(mode="json", exclude=_ELSEWHERE)
    for section, field, path in input_files(config):
        options = table["simulation"][section]
        options[field] = kept_name(section, field, path)
        options[_checksum(field)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return table


def input_files(config: RunConfig) -> Iterator[tuple[str, str, Path]]:
    """The files that a resolved configuration names: section of the simulation, field, path."""
    for section in _FILES:
        options = getattr(config.simulation, section)
        for field in options.files:
            if getattr(options, field) is not None:
                yield section, field, Path(getattr(options, field))


def kept_name(section: str, field: str, path: Path) -> str:
    """What a copy of such a file is called in a run's folder."""
    return f"{section}.csv" if field == "file" else f"{section}-{field}{path.suffix}"


def _checksum(field: str) -> str:
    return "sha256" if field == "file" else f"{field}_sha256"


def said(config: RunConfig) -> dict[str, Any]:
    """What a configuration says itself, before it is resolved."""
    return config.model_dump(mode="json", exclude=_ELSEWHERE, exclude_unset=True)


def said_otherwise(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Where a configuration says something else than before; how it is computed may change."""
    with suppress(ConfigError):  # it may say something that there is not any more
        before = said(parse(before))  # under today's names
    return [text for text in _compare(before, now, "") if not text.startswith("compute")]


def differences(kept: Mapping[str, Any], config: RunConfig, folder: Path) -> list[str]:
    """Where ``config`` differs from what ``describe`` gave earlier, key by key.

    What an older version wrote is read as a configuration of today, so that keys that were renamed
    or added since make no difference.
    """
    mine = describe(config)
    if kept == mine:
        return []
    return list(_compare(_reread(kept, config, folder), mine, ""))


def as_begun(kept: Mapping[str, Any], config: RunConfig, folder: Path) -> RunConfig:
    """The configuration that ``describe`` described; what does not affect a run is as in
    ``config``. ``ConfigError`` or ``OSError`` if it is not a valid configuration today."""
    table = json.loads(json.dumps(kept))
    for section in _FILES:
        options = table.get("simulation", {}).get(section, {})
        for key in [key for key in options if key.endswith("sha256")]:
            del options[key]
    for section, field, path in input_files(config):  # contents are compared by their checksums
        options = table.get("simulation", {}).get(section, {})
        if field in options:
            options[field] = str(path)
    begun = resolve(parse({**table, "path": config.path}), folder)
    return begun.model_copy(update={key: getattr(config, key) for key in _ELSEWHERE})


def _reread(kept: Mapping[str, Any], config: RunConfig, folder: Path) -> Mapping[str, Any]:
    try:
        theirs = describe(as_begun(kept, config, folder))
    except (ConfigError, OSError):
        return kept  # what it names is not there any more, or is no configuration of today
    for section in _FILES:
        options = kept.get("simulation", {}).get(section, {})
        sums = {key: value for key, value in options.items() if key.endswith("sha256")}
        theirs["simulation"][section].update(sums)
    return theirs


def _compare(before: Any, now: Any, key: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys((*before, *now)):
            yield from _compare(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif key == "tasks" and len(before) == len(now):
        for one, other in zip(before, now, strict=True):
            yield from _compare(one, other, f"tasks.{other.get('name') or other['use']}")
    elif key.endswith("sha256") and before != now:
        field = key.removesuffix("sha256").rstrip("._")
        yield (
            f"{field}.file has other content"
            if key.endswith(".sha256")
            else (f"{field} has other content")
        )
    elif before != now:
        yield f"{key} is {_text(now)}, was {_text(before)}"


def _text(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def listed(found: Sequence[str]) -> str:
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return "; ".join(found[:_NAMED]) + more
