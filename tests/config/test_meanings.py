"""What `fedast list` and the documentation say of a field is what its class says."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, create_model

from fedast.parts.options import Options, Section, meanings


class Base(Options):
    """Options that others inherit."""

    kept: int = 1
    """Kept by those that
    inherit it."""
    changed: int = 2
    """Said anew below."""


class Derived(Base):
    """Options with all ways to say what a field means."""

    name: ClassVar[str] = "derived"
    """Not a field."""
    changed: int = 3
    """Said anew."""
    described: int = Field(4, description="Described.")
    """Not what counts."""
    silent: int = 5
    last: int = 6


def test_a_field_means_what_stands_below_it() -> None:
    assert meanings(Derived) == {
        "kept": "Kept by those that inherit it.",
        "changed": "Said anew.",
        "described": "Described.",
        "silent": "",
        "last": "",
    }


def test_a_class_without_source_has_only_descriptions() -> None:
    made = create_model(
        "Made", __base__=Section, known=(int, Field(1, description="Known.")), other=(int, 2)
    )
    assert meanings(made) == {"known": "Known.", "other": ""}
