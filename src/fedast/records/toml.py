"""Write TOML, which has no null: ``None`` is left out; its leaves by dotted key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tomli_w


def dumps(table: Mapping[str, Any]) -> str:
    """The same text for the same table; ``tomllib`` reads it back."""
    return tomli_w.dumps(_without_none(table))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [_without_none(entry) for entry in value]
    return value


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by dotted key; of a list of tables each is named by its ``name``."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            for number, item in enumerate(value):
                yield from flat(item, f"{prefix}{key}.{item.get('name', number)}.")
        else:
            yield prefix + key, value
