"""A study: an experiment of the paper as data, and the configurations that it consists of.

A study's file has a ``base``, a configuration with a few shorthands (see ``expand``), and axes.
Every choice of one value per axis is a *variant*: the base with the tables of these values merged
into it, later axes last. A variant and a seed make a run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from fedast.config.load import apply_settings, parse
from fedast.config.renamed import copied
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError
from fedast.parts.options import Section
from fedast.reproduce.claims import Claim
from fedast.reproduce.expand import QUICK_TASKS, QUICK_TIME, make_quick, merge, write_out

Scale: TypeAlias = Literal["full", "quick"]


class AxisValue(Section):
    label: str = Field(min_length=1)
    set: dict[str, Any] = Field(default_factory=dict)
    """A table that is merged into the base."""
    chosen: tuple[str, ...] = ()
    """Panels of the figures in which a star marks this value as the paper's choice."""


class AxisConfig(Section):
    name: str = Field(min_length=1)
    role: Literal["panel", "x", "series"] | None = None
    """What the axis is in figures; a sweep needs none."""
    values: tuple[AxisValue, ...] = Field(min_length=1)


class StudyConfig(Section):
    """A whole study's file."""

    title: str = ""
    """Default: the file's name."""
    order: int = 100
    where: str = ""
    """Where the paper has it, if it does."""
    says: str = ""
    """What the paper says."""
    extends: str | None = None
    """One of the paper's studies; its base comes before this one's own."""
    base: dict[str, Any] = Field(default_factory=dict)
    axes: tuple[AxisConfig, ...]
    figures: tuple[str, ...] = ()
    """Names of ``figures.registry``, or ``package.module:function``."""
    baseline: str = ""
    """The label (of a series) that gains are measured against, or that figures highlight."""
    per_run: Literal["last", "mean"] = "last"
    """A run's time: when its last task reaches its target, or the mean over its tasks."""
    criterion: Literal["first", "held"] = "first"
    """When a task is done: at its first evaluation at the target, or when the mean of its last five
    is there."""
    final_at: dict[str, Annotated[float, Field(strict=False)]] = Field(default_factory=dict)
    """By task: the time whose last five evaluations are "final"; default: the end."""
    seeds: int = Field(3, ge=1)
    first_seed: int = Field(1, ge=0)
    optional: bool = False
    """Not part of ``all``."""
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Study:
    name: str
    config: StudyConfig
    base: Mapping[str, Any]
    """With that of the study that it extends."""
    source: str
    """Its name on the command line."""
    folder: Path = Path()
    """Where files and modules that its configurations name are looked for."""

    @property
    def axes(self) -> tuple[AxisConfig, ...]:
        return self.config.axes

    def variants(self) -> Iterator[Variant]:
        for values in itertools.product(*(axis.values for axis in self.axes)):
            yield Variant(self, values)


@dataclass(frozen=True)
class Variant:
    study: Study
    values: tuple[AxisValue, ...]

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(value.label for value in self.values)

    @property
    def slug(self) -> str:
        return "_".join(slug(label) for label in self.key)

    def config(
        self,
        seed: int,
        scale: Scale,
        settings: Sequence[str] = (),
        *,
        algorithm: str | None = None,
    ) -> RunConfig:
        """The resolved configuration of this variant with a seed; ``algorithm`` is run in place of
        its own, with what the base has for it."""
        table = self.table()
        if algorithm in (None, algorithm_of(table)):
            table.pop("algorithms", None)  # already merged into algorithm
        try:
            write_out(table)
            if scale == "quick":
                make_quick(table)
            table["seed"] = seed
            folder = self.study.folder
            apply_settings(table, settings, algorithm=algorithm, folder=folder)
            return resolve(parse(table, folder), folder)
        except ConfigError as error:
            raise error.within(", ".join((self.study.name, *self.key))) from None

    def table(self) -> dict[str, Any]:
        """The base with this variant's values merged in, shorthands not yet written out.

        Options that the base has for the variant's algorithm (``algorithms.NAME``) apply unless
        an axis sets them.
        """
        table: dict[str, Any] = copied(self.study.base)
        for value in self.values:
            merge(table, value.set)
        chosen = table.get("algorithm", {})
        own = table.get("algorithms", {}).get(algorithm_of(table), {})
        if own:
            table["algorithm"] = {**own, **chosen}
        return table

    def substitutes(self) -> dict[str, str]:
        """At quick scale: what trains in place of each of the paper's tasks."""
        uses = [task.use for task in self.config(0, "full").tasks]
        return {use: str(QUICK_TASKS[use]["use"]) for use in uses if use in QUICK_TASKS}

    def final_at(self, scale: Scale) -> dict[str, float]:
        factor = QUICK_TIME if scale == "quick" else 1.0
        return {name: time * factor for name, time in self.study.config.final_at.items()}


def algorithm_of(table: Mapping[str, Any]) -> str:
    return str(table.get("algorithm", {}).get("name", "fedast-d"))


def slug(label: str) -> str:
    """A label as part of a file name."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")
