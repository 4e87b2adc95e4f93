"""From a table to a section, with errors that name the key as the user wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedast.parts.errors import ConfigError, nearest
from fedast.parts.options import Section

S = TypeVar("S", bound=Section)


class UnknownKey(ConfigError):
    """A key that the section does not have."""

    def __init__(
        self,
        key: str,
        problem: str,
        source: str = "",
        option: str = "",
        section: type[Section] = Section,
    ) -> None:
        super().__init__(key, problem, source)
        self.option = option
        self.section = section


def parse_section(section: type[S], table: Any, key: str = "") -> S:
    """Check a table; the first thing that is wrong with it becomes a ``ConfigError``."""
    if not isinstance(table, Mapping):
        raise ConfigError(key, f"must be a table, got {table!r}")
    values = {name: _tuples(value) for name, value in table.items()}
    fields = _by_alias(section)
    for name in values:
        if name not in fields:  # a misspelled key explains what else may be missing
            where = _join(key, name)
            raise UnknownKey(
                where, f"unknown key{nearest(name, fields)}", option=name, section=section
            )
    for name, field in fields.items():
        if name in values:
            values[name] = _nested(field, values[name], _join(key, name))
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise _translated(error, values, key) from None


def _by_alias(section: type[Section]) -> dict[str, FieldInfo]:
    found: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        alias = field.validation_alias
        names = [name] if alias is None else [str(choice) for choice in _choices(alias)]
        found |= dict.fromkeys(names, field)
    return found


def _choices(alias: Any) -> Sequence[Any]:
    return (alias,) if isinstance(alias, str) else alias.choices


def _nested(field: FieldInfo, value: Any, key: str) -> Any:
    """What is inside a field: a part, a section, or several sections."""
    from fedast.parts.registry import Part

    for mark in _marks(field):
        if isinstance(mark, Part):
            if isinstance(value, tuple):
                return tuple(
                    mark.parse(entry, f"{key}.{_entry_name(entry, number)}")
                    for number, entry in enumerate(value)
                )
            if get_origin(field.annotation) is dict:  # parts by name
                if not isinstance(value, Mapping):
                    raise ConfigError(key, f"must be a table, got {value!r}")
                return {name: mark.parse(entry, _join(key, name)) for name, entry in value.items()}
            return mark.parse(mark.named(value, field.default), key)
    sections = [kind for kind in _types(field.annotation) if issubclass(kind, Section)]
    if len(sections) != 1:
        return value
    if isinstance(value, Mapping):
        return parse_section(sections[0], value, key)
    if isinstance(value, tuple):
        return tuple(
            parse_section(sections[0], entry, f"{key}.{_entry_name(entry, number)}")
            for number, entry in enumerate(value)
        )
    return value


def part_fields(section: type[Section]) -> set[str]:
    """The fields of a section that hold a part."""
    from fedast.parts.registry import Part

    return {
        name
        for name, field in section.model_fields.items()
        if any(isinstance(mark, Part) for mark in _marks(field))
    }


def _marks(field: FieldInfo) -> Iterator[Any]:
    yield from field.metadata
    for argument in get_args(field.annotation):  # Annotated inside a union
        yield from getattr(argument, "__metadata__", ())


def _types(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type):
        yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)


def _entry_name(entry: Any, number: int) -> str:
    if isinstance(entry, Mapping):
        for key in ("name", "use", "task"):
            if isinstance(entry.get(key), str):
                return str(entry[key])
    return str(number)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _tuples(value: Any) -> Any:
    """Strict validation takes tuples for tuples; TOML has lists."""
    if isinstance(value, Mapping):
        return {key: _tuples(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return value


def _translated(error: ValidationError, table: Mapping[str, Any], key: str) -> ConfigError:
    first = error.errors()[0]
    where = key
    here: Any = table
    for part in first["loc"]:
        if isinstance(here, Mapping) and part not in here and first["type"] != "missing":
            break  # pydantic's name of a union's member, not a key
        where = _join(where, str(part))
        here = here.get(part) if isinstance(here, Mapping) else None
    if first["type"] == "missing":
        return ConfigError(where, "is missing")
    message = first["msg"].removeprefix("Value error, ")
    got = f", got {first['input']!r}" if first["loc"] else ""  # else it is about several keys
    return ConfigError(where, f"{message[0].lower()}{message[1:]}{got}")
