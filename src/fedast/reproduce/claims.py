"""A claim of the paper, as a study's file states it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fedast.parts.options import Section

Measure: TypeAlias = Literal[
    "time", "gain", "largest-gain", "growing-gain", "first", "last", "similar", "linear", "best",
    "fewer", "positive-gain", "falling-rounds", "equal-final", "higher-final", "best-final",
    "ceiling", "lower-loss", "steadier", "steadier-loss",
]  # fmt: skip


class Claim(Section):
    """A number or a statement of the paper, and which of our runs are measured against it."""

    what: str
    where: str
    """Where the paper has it."""
    measure: Measure
    at: dict[str, str] = Field(default_factory=dict)
    """The variant in question: a label for each axis with several values."""
    over: dict[str, str] = Field(default_factory=dict)
    """The variant it is compared with: the labels that differ from ``at``."""
    others: tuple[str, ...] = ()
    task: str | None = None
    along: str | None = None
    """The axis along which something grows, falls or is best."""
    backwards: bool = False
    """Whether ``along`` is read from its last value to its first."""
    tolerance: float = Field(0.0, ge=0)
    paper: Annotated[float, Field(strict=False)] | str | None = None
    """The paper's number or label; None for a statement, which holds or does not."""
    paper_seeds: int = Field(3, ge=1)
    """How many runs the paper's number is the mean of."""
    headline: bool = False
    """Whether the short table has it."""
