"""What can be set about the server side of a task. No tensors here: see the modules beside."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

ADAPTIVE_RATE = 0.01
"""The server rate of adaptive steps if nobody sets one: their step does not scale with updates."""


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


@final
@dataclass(frozen=True, kw_only=True)
class Plain:
    """The paper's step."""


@final
@dataclass(frozen=True, kw_only=True)
class Momentum:
    beta: float = 0.9

    def __post_init__(self) -> None:
        _require(0 <= self.beta < 1, "beta must be at least 0 and below 1")


@final
@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """``patience`` is the delay up to which fadas keeps its rate."""

    rule: Literal["adam", "yogi", "fadas"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3
    patience: int = 10

    def __post_init__(self) -> None:
        _require(self.rule in ("adam", "yogi", "fadas"), f"unknown step {self.rule!r}")
        _require(0 <= self.beta1 < 1 and 0 <= self.beta2 < 1, "betas must be in [0, 1)")
        _require(self.epsilon > 0 and self.patience >= 1, "epsilon and patience must be positive")


Step: TypeAlias = Plain | Momentum | Adaptive


@final
@dataclass(frozen=True, kw_only=True)
class Combining:
    """How the updates of a round become one.

    ``trim`` is the part of the updates that a trimmed mean cuts off at either
    end. ``clip`` shortens longer updates to this norm, or to the median of the
    round's norms.
    """

    rule: Literal["mean", "median", "trimmed-mean"] = "mean"
    trim: float = 0.1
    clip: float | Literal["median"] | None = None

    def __post_init__(self) -> None:
        known = ("mean", "median", "trimmed-mean")
        _require(self.rule in known, f"unknown rule {self.rule!r}; there are {', '.join(known)}")
        _require(0 < self.trim < 0.5, "trim must be between 0 and 0.5")
        _require(not isinstance(self.clip, float | int) or self.clip > 0, "clip must be positive")

    @property
    def min_updates(self) -> int:
        """The fewest updates of which it cuts anything off: with fewer it is a mean, and one bad
        update moves the model as far as it likes."""
        if self.rule == "mean":
            return 1
        return next(count for count in itertools.count(1) if self.trimmed(count) > 0)

    def trimmed(self, updates: int) -> int:
        """How many of so many values are cut off at either end."""
        match self.rule:
            case "mean":
                return 0
            case "median":
                return (updates - 1) // 2
            case "trimmed-mean":
                return min(int(self.trim * updates + 1e-9), (updates - 1) // 2)


@final
@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Whether, and with what memory, the server calibrates by what each client sent last."""

    use: Literal["never", "always", "auto"] = "never"
    precision: Literal["single", "half"] = "single"
    place: Literal["auto", "device", "host", "disk"] = "auto"

    def __post_init__(self) -> None:
        _require(self.use in ("never", "always", "auto"), f"unknown use {self.use!r}")
        _require(self.precision in ("single", "half"), f"unknown precision {self.precision!r}")
        places = ("auto", "device", "host", "disk")
        _require(self.place in places, f"unknown place {self.place!r}")

    def memory(self, clients: int, parameters: int) -> int:
        """Bytes that the cache needs."""
        if self.use == "never":
            return 0
        return clients * parameters * (4 if self.precision == "single" else 2)


@final
@dataclass(frozen=True, kw_only=True)
class ServerSide:
    """What the server does with the updates of a task's round."""

    step: Step = Plain()
    combining: Combining = Combining()
    calibration: Calibration = Calibration()

    def __post_init__(self) -> None:
        _require(isinstance(self.step, Step), "step must be Plain, Momentum or Adaptive")
