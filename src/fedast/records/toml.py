"""Writing TOML: the standard library reads it but does not write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """Plain tables, lists of tables, lists of scalars and scalars; None is left out."""
    lines: list[str] = []
    _table(table, (), lines)
    return "\n".join(lines).strip() + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    values = {key: value for key, value in table.items() if value is not None}
    nested = {key for key, value in values.items() if _is_table(value) or _is_tables(value)}
    for key, value in values.items():
        if key not in nested:
            lines.append(f"{_key(key)} = {_scalar(value)}")
    for key in filter(nested.__contains__, values):
        inner = (*path, key)
        name = ".".join(map(_key, inner))
        for entry in [values[key]] if _is_table(values[key]) else values[key]:
            lines.extend(("", f"[{name}]" if _is_table(values[key]) else f"[[{name}]]"))
            _table(entry, inner, lines)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(map(_is_table, value))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _scalar(key)


def _scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # JSON's escapes are TOML's, but for DEL, which JSON leaves bare.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(map(_scalar, value)) + "]"
        case _:
            raise TypeError(f"cannot write {type(value).__name__} as TOML")
