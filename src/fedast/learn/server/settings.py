"""What can be set about the server side of a task. No tensors here: see the modules beside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

ADAPTIVE_RATE = 0.01
"""The server rate of adaptive steps if nobody sets one: their step does not scale with updates."""


@final
@dataclass(frozen=True, kw_only=True)
class Plain:
    """The paper's step."""


@final
@dataclass(frozen=True, kw_only=True)
class Momentum:
    beta: float = 0.9


@final
@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """``patience`` is the delay up to which fadas keeps its rate."""

    rule: Literal["adam", "yogi", "fadas"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3
    patience: int = 10


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
