"""Samplers: which points of a sweep's space are tried, and in which order."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, final

from pydantic import Field

from fedast.core.streams import Stream
from fedast.parts.options import Options
from fedast.parts.registry import Registry
from fedast.sweeps.space import Parameter, Point, inline

if TYPE_CHECKING:
    from fedast.records.sweeps import Trial

_DRAWS = 1000
"""So many draws in a row that were there before: the space is used up."""


class Sampler(Protocol):
    """Chooses points. What it chooses follows from its options, the number of the trial and what
    it was told, so that a sweep that was interrupted goes on as it would have."""

    def ask(self, number: int) -> Point | None:
        """The point of the trial with this number; None: there are no more.

        Numbers come in order, from 0 or from where an interrupted sweep stopped.
        """

    def tell(self, trial: Trial) -> None:
        """A trial has begun or ended (``trial.state``); also those from before an interruption."""


class SamplerOptions(Options, ABC):
    """Options of a sampler."""

    foreseeable: ClassVar[bool] = True
    """Whether its points are known before anything has been run."""

    @abstractmethod
    def build(
        self, space: Sequence[Parameter], direction: Literal["minimize", "maximize"]
    ) -> Sampler: ...

    @abstractmethod
    def count(self, space: Sequence[Parameter]) -> int:
        """How many trials there are at most."""


class Grid(SamplerOptions):
    """Every combination of the listed values; the last parameter changes first."""

    name: ClassVar[str] = "grid"

    def build(
        self, space: Sequence[Parameter], direction: Literal["minimize", "maximize"]
    ) -> Sampler:
        return _Listed(
            [
                dict(zip((parameter.name for parameter in space), values, strict=True))
                for values in itertools.product(*(parameter.grid() for parameter in space))
            ]
        )

    def count(self, space: Sequence[Parameter]) -> int:
        total = 1
        for parameter in space:
            total *= len(parameter.grid())
        return total


class Random(SamplerOptions):
    """Random points, none of them twice."""

    name: ClassVar[str] = "random"
    trials: int = Field(20, ge=1)
    """How many; fewer if there are no more points."""
    seed: int = Field(0, ge=0)
    """The same seed gives the same points."""

    def build(
        self, space: Sequence[Parameter], direction: Literal["minimize", "maximize"]
    ) -> Sampler:
        return _Drawn(space, self.seed, self.trials)

    def count(self, space: Sequence[Parameter]) -> int:
        return self.trials


@final
class _Listed:
    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points

    def ask(self, number: int) -> Point | None:
        return self._points[number] if number < len(self._points) else None

    def tell(self, trial: Trial) -> None:
        pass


@final
class _Drawn:
    def __init__(self, space: Sequence[Parameter], seed: int, trials: int) -> None:
        self._space = space
        self._seed = seed
        self._trials = trials
        self._points: list[Point] = []
        self._seen: set[str] = set()
        self._draws = 0

    def ask(self, number: int) -> Point | None:
        while len(self._points) <= min(number, self._trials - 1) and self._draw():
            pass
        return self._points[number] if number < len(self._points) else None

    def tell(self, trial: Trial) -> None:
        pass

    def _draw(self) -> bool:
        """Add a new point; False if none is found."""
        for _ in range(_DRAWS):
            point = drawn(self._space, self._seed, self._draws)
            self._draws += 1
            text = inline(point)
            if text not in self._seen:
                self._seen.add(text)
                self._points.append(point)
                return True
        return False


def drawn(space: Sequence[Parameter], seed: int, number: int) -> Point:
    """A random point; each parameter has a stream of its own."""
    return {
        parameter.name: parameter.at(Stream.of(seed, "sweep", parameter.name, number).uniform())
        for parameter in space
    }


SAMPLERS: Registry[SamplerOptions] = Registry(
    "samplers",
    SamplerOptions,  # type: ignore[type-abstract]
    [__name__, "fedast.sweeps.optuna"],
)
