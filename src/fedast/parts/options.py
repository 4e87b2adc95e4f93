"""Options: what can be set about a part, checked the same way in a file and in Python.

A *part* is anything that there are several of and that others may add: an algorithm, a delay
model, a server optimizer. Its options class stands beside its implementation in the same file and
builds it. Options are plain values: importing them loads neither torch nor nats, which an
implementation imports inside ``build``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)


class Section(BaseModel):
    """A table of a configuration file. Frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
    )


class Options(Section):
    """The options of a part. A subclass declares ``name`` and a method ``build``.

    A class without a name of its own is called by its address, ``package.module:Class``. The first
    line of its docstring is what ``fedast list`` shows.
    """

    name: ClassVar[str] = ""
    """What a configuration file calls the part."""
    files: ClassVar[tuple[str, ...]] = ()
    """Fields that name an input file: looked up beside the configuration, and kept with a run."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = f"{cls.__module__}:{cls.__qualname__}"

    @model_validator(mode="before")
    @classmethod
    def _without_name(cls, given: Any) -> Any:
        """A table may say the name that the class has anyway (``model`` and ``rule`` of old)."""
        if not isinstance(given, dict):
            return given
        return {
            key: value
            for key, value in given.items()
            if key in cls.model_fields or key not in ("name", "model", "rule") or value != cls.name
        }

    @classmethod
    def address(cls) -> str:
        """What finds the class again, also where its package is not installed as a plug-in."""
        if ":" in cls.name or cls.__module__.partition(".")[0] == __package__.partition(".")[0]:
            return cls.name
        return f"{cls.__module__}:{cls.__qualname__}"

    @model_serializer(mode="wrap")
    def _with_name(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: Mapping[str, Any] = handler(self)
        return {"name": self.address(), **values}


def meanings(section: type[BaseModel]) -> dict[str, str]:
    """What each field of a section means, on one line: its description or the docstring below it.

    The source is read when somebody asks. (Pydantic can do it by itself, but for each class when
    it is imported, which would be a fifth of the time that a command takes to begin.)
    """
    said: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            said |= _docstrings_below_fields(base)
    fields = section.model_fields.items()
    return {name: " ".join((f.description or said.get(name, "")).split()) for name, f in fields}


def _docstrings_below_fields(cls: type) -> dict[str, str]:
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):  # made without source, in a prompt for instance
        return {}
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
            case _:
                pass
    return found
