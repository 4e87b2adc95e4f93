"""Finding parts: by name, as an installed plug-in, as ``package.module:Name``, or as an object.

There is one ``Registry`` for each kind of part. It knows the modules in which fedast's own parts
of that kind are, and reads their names off the classes: nothing lists them a second time. Other
packages offer parts as entry points in the group ``fedast.KIND``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from fedast.parts.blame import placed
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.options import Options
from fedast.parts.parsing import UnknownKey, parse_section

T = TypeVar("T", bound=Options)
Adapter = Callable[[str, Callable[..., Any]], type[T]]


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A part as ``fedast list`` shows it."""

    name: str
    options: type[T] | None
    source: str
    """The distribution it comes from."""
    problem: str = ""
    """Why its plug-in cannot be loaded, if it cannot."""


@final
class Registry(Generic[T]):
    """All parts of one kind.

    ``base`` is the class that their options derive from, ``modules`` are the modules and packages
    that hold fedast's own. ``adapt`` makes an options class of a plain callable that a name or a
    user stands for; without it only options classes are accepted. ``hint`` is added when a key
    belongs to another part of the kind.
    """

    def __init__(
        self,
        kind: str,
        base: type[T],
        modules: Sequence[str],
        *,
        adapt: Adapter[T] | None = None,
        hint: str = "",
    ) -> None:
        self.kind = kind
        self.base = base
        self._modules = tuple(modules)
        self._adapt = adapt
        self._hint = hint
        self._adapted: dict[tuple[str, int], tuple[Any, type[T]]] = {}

    @property
    def group(self) -> str:
        """The group of entry points in which other packages offer parts of this kind."""
        return f"fedast.{self.kind}"

    @cached_property
    def builtin(self) -> Mapping[str, type[T]]:
        """fedast's own parts by name, in the order in which they are defined."""
        found: dict[str, type[T]] = {}
        for module in self._imported():
            for value in vars(module).values():
                if (
                    isinstance(value, type)
                    and issubclass(value, self.base)
                    and value.__module__ == module.__name__
                    and value.name
                    and ":" not in value.name
                ):
                    found[value.name] = value
        return found

    def _imported(self) -> Iterator[Any]:
        for name in self._modules:
            module = importlib.import_module(name)
            yield module
            for entry in pkgutil.iter_modules(getattr(module, "__path__", ())):
                yield importlib.import_module(f"{name}.{entry.name}")

    def installed(self) -> Mapping[str, EntryPoint]:
        """Parts that other packages offer, by name; they are imported when one is used. A name
        that fedast or two of them have stands for none of them."""
        return {entry.name: entry for entry, problem in self._offered() if not problem}

    def _offered(self) -> list[tuple[EntryPoint, str]]:
        """Every part that a package offers, and why its name does not stand for it, if so."""
        entries = list(dict.fromkeys(entry_points(group=self.group)))
        offered = []
        for entry in entries:
            packages = {_package(other) for other in entries if other.name == entry.name}
            if entry.name in self.builtin:
                problem = f"fedast has its own {entry.name}; write {entry.value} instead"
            elif len(packages) > 1:
                problem = (
                    f"{' and '.join(sorted(packages))} both offer it; write {entry.value} instead"
                )
            else:
                problem = ""
            offered.append((entry, problem))
        return offered

    def names(self) -> list[str]:
        return [*self.builtin, *self.installed()]

    def listed(self) -> Iterator[Listed[T]]:
        """Every part that can be named, those of other packages with the package's name."""
        for name, options in self.builtin.items():
            yield Listed(name, options, "fedast")
        for entry, problem in self._offered():
            if problem:
                yield Listed(entry.name, None, _package(entry), problem)
                continue
            try:
                yield Listed(entry.name, self.find(entry.name, entry.name), _package(entry))
            except ConfigError as error:
                yield Listed(entry.name, None, _package(entry), error.problem)

    def find(self, name: str, key: str) -> type[T]:
        """The options class that a name stands for; ``key`` is where the name was given."""
        if name in self.builtin:
            return self.builtin[name]
        entry = self.installed().get(name)
        if entry is None and ":" not in name:
            unclear = [problem for other, problem in self._offered() if other.name == name]
            if unclear:
                raise ConfigError(key, f"{name!r} is not clear: {'; '.join(unclear)}")
            raise ConfigError(key, f"unknown value {name!r}{nearest(name, self.names())}")
        return self._as_options(name, load_object(name if entry is None else entry.value, key), key)

    def known(self, name: str) -> type[T] | None:
        """The options class that a record's name stands for, if it is at hand.

        Nothing is imported but fedast's own parts and installed plug-ins: reading a record must not
        run whatever module it names.
        """
        module, _, attribute = name.partition(":")
        if attribute and module not in sys.modules:
            return None
        try:
            return self.find(name, name)
        except ConfigError:
            return None

    def _as_options(self, name: str, target: Any, key: str) -> type[T]:
        if isinstance(target, type) and issubclass(target, self.base):
            if inspect.isabstract(target):
                raise ConfigError(key, f"{name} is a base class; name one that derives from it")
            return target
        if self._adapt is not None and callable(target):
            # The same class each time, so that equal options are equal; the target is kept with
            # it, so that its id stays its own.
            found = self._adapted.get((name, id(target)))
            if found is None:
                found = self._adapted[name, id(target)] = target, self._adapt(name, target)
            return found[1]
        raise ConfigError(
            key, f"{name} is not a subclass of {self.base.__module__}:{self.base.__name__}"
        )

    def parse(self, given: Any, key: str) -> T:
        """Options from what a file or a Python caller gives.

        That is a name, a table with a name and options, an options object or class, or, if the
        kind admits it, a callable.
        """
        if isinstance(given, self.base):
            return given
        if isinstance(given, str):
            return self._parse_table(self.find(given, key), {}, key)
        if isinstance(given, Mapping):
            name = given.get("name")
            if name is None:
                raise ConfigError(f"{key}.name", "is missing")
            if not isinstance(name, str):
                raise ConfigError(f"{key}.name", f"must be text, got {name!r}")
            values = {option: value for option, value in given.items() if option != "name"}
            return self._parse_table(self.find(name, f"{key}.name"), values, key)
        if callable(given):
            return self._parse_table(self._as_options(_address(given), given, key), {}, key)
        raise ConfigError(key, f"expected a name or a table with a name, got {given!r}")

    def _parse_table(self, options: type[T], values: Mapping[str, Any], key: str) -> T:
        try:
            return parse_section(options, values, key)
        except UnknownKey as error:
            owners = [
                name for name, other in self.builtin.items() if error.option in other.model_fields
            ]
            if error.section is options and owners:
                others = "" if len(owners) > 3 else f" ({', '.join(owners)}: yes)"
                raise ConfigError(
                    error.key, f"{options.name} has no such option{others}{self._hint}"
                ) from None
            raise


@final
@dataclass(frozen=True, slots=True)
class Part:
    """Marks a field as a part: ``Annotated[SerializeAsAny[Base], Part(REGISTRY)]``.

    In Python the field then takes whatever ``Registry.parse`` does. ``default`` names the part
    whose options a table without a name has, where that is not the field's default; ``words`` are
    values of the field that name no part, such as "auto".
    """

    registry: Registry[Any]
    default: str | None = None
    words: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._accept, handler(source))

    def _accept(self, given: Any) -> Any:
        return self.parse(self.named(given, None), self.registry.kind)

    def parse(self, given: Any, key: str) -> Any:
        if given is None or (isinstance(given, str) and given in self.words):
            return given
        return self.registry.parse(given, key)

    def named(self, given: Any, field_default: Any) -> Any:
        """A table with the name of its part, if it has none and there is a default."""
        name = self.default or getattr(field_default, "name", None)
        if isinstance(given, Mapping) and "name" not in given and name is not None:
            return {"name": name, **given}
        return given


def load_object(address: str, key: str) -> Any:
    """Import what ``package.module:Name`` stands for."""
    module_name, _, name = address.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # missing, misspelled, or raising as it is imported
        raise ConfigError(
            key, f"{address}: module {module_name!r} cannot be imported: {placed(error)}"
        ) from error
    for step in name.split("."):
        try:
            found = getattr(found, step)
        except AttributeError:
            raise ConfigError(key, f"{address}: module {module_name!r} has no {name!r}") from None
    return found


def make_importable(path: Sequence[str]) -> None:
    """Let modules in these folders and in the working folder be found, in that order."""
    here = str(Path.cwd())
    first = next((n for n, place in enumerate(sys.path) if place in ("", here)), len(sys.path))
    for place in reversed(path):
        if place not in (here, *sys.path):
            sys.path.insert(first, place)
    if here not in sys.path:
        sys.path.append(here)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "?"


def _address(target: Callable[..., Any]) -> str:
    named: Any = (
        target if isinstance(target, type) or hasattr(target, "__qualname__") else type(target)
    )
    return f"{named.__module__}:{named.__qualname__}"
