"""Nested tables as one value for each dotted key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


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
