"""How classes look on the page of the Python API: options by their fields, without annotations."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import generate
from pydantic import BaseModel
from sphinx.application import Sphinx

from fedast.parts.options import Options, meanings


def _is_section(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseModel)


def signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, given: str, returned: str
) -> tuple[str, str] | None:
    """Options and data classes by the names of their fields, which the text explains."""
    if _is_section(thing):
        return "(" + ", ".join(f"{field}=…" for field in thing.model_fields) + ")", ""
    if isinstance(thing, type) and is_dataclass(thing):
        missing = (MISSING, MISSING)
        names = [
            field.name if (field.default, field.default_factory) == missing else f"{field.name}=…"
            for field in fields(thing)
        ]
        return "(" + ", ".join(names) + ")", ""
    return None


def docstring(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Add the fields of an options class: what each means, its type and default."""
    if not _is_section(thing):
        return
    if issubclass(thing, Options) and thing.name and ":" not in thing.name:
        lines += ["", f'In a file: ``name = "{thing.name}"``.']
    lines.append("")
    for field, info in thing.model_fields.items():
        meaning = meanings(thing)[field]
        kind, default = generate.kind_of(info), generate.default_of(info)
        tail = {"–": "", "required": ", required"}.get(default, f", default {default}")
        said = f"{meaning} ({kind}{tail})" if meaning else f"{kind}{tail}"
        lines.append(f":param {field}: {said}".replace("\\|", "|"))
    if inspect.isabstract(thing):
        lines += ["", "A base class: derive from it to add a part of your own."]
