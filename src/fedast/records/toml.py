"""Write TOML, which has no null: ``None`` is left out."""

from __future__ import annotations

from collections.abc import Mapping
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
