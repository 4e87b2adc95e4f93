"""Rate control: a task's steps are scaled by a factor that depends on how its model moves.

Theory of operation. A step is computed from models that are one latency old (the mean staleness
s, in rounds). With too high a rate the model overshoots and comes back: it oscillates, with a
period of about three latencies, whatever the model is, since the delay sets it. So the movement
of the model over one latency is compared with its movement one and a half latencies before, half
a period: rho is the cosine of the two. Noise makes it about 0, since noise of different rounds
points in different directions; progress makes it positive; oscillation makes it negative. Twice
per latency the factor f becomes

    f * exp(clip(gain * (rho + tolerance), -0.2, rise)),    lowest <= f <= highest:

it rises slowly where there is room and falls quickly where the model begins to swing. Nothing but
the server's own steps enters: no test data and no word from clients beyond their updates.

Movements are kept for half latencies, and only of every so many-th parameter, since a cosine of
some ten thousand entries is exact enough. Everything stays on the model's device, so that the
host never waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, final

from pydantic import Field

from fedast.parts.options import Section

if TYPE_CHECKING:
    import torch

_PIECES = 5
"""Half latencies that are kept: two, one in between, two."""
_ENTRIES = 50_000
"""About how many parameters are sampled."""
_LARGEST_FALL = 0.2
_MEMORY = 0.05
"""How fast the measured staleness follows: about twenty rounds."""


class RateControl(Section):
    """A factor on the steps, which falls when the model swings and rises again when it does not."""

    use: Literal["never", "always"] = "never"
    """always: the server learning rate is multiplied by the factor."""
    lowest: float = Field(0.25, gt=0, le=1)
    """The factor's lower bound."""
    highest: float = Field(1.0, ge=1, le=100)
    """The factor's upper bound, which keeps an unlucky task from being lost."""
    tolerance: float = Field(0.5, ge=0, le=1)
    """How negative the cosine may be on average before the factor falls."""
    gain: float = Field(0.3, gt=0, le=10)
    """How much the factor's logarithm changes per half latency, times cosine and tolerance."""
    rise: float = Field(0.02, ge=0, le=1)
    """How much the factor's logarithm rises at most per half latency."""


@final
class RateController:
    """One task's factor at work."""

    def __init__(self, settings: RateControl, initial: torch.Tensor, trained: int) -> None:
        """``initial`` are the model's parameters, of which SGD trains the first ``trained``."""
        self._settings = settings
        self._stride = max(1, trained // _ENTRIES)
        self._trained = trained
        seen = initial[:trained][:: self._stride]
        self._pieces = seen.new_zeros((_PIECES, len(seen)))
        """Movements over half latencies, the present one first."""
        self._log_factor = seen.new_zeros(())
        self._staleness = 0.0
        self._total = 0
        """Rounds so far."""
        self._rounds = 0
        """Since the present piece began."""
        self._complete = 0
        """Pieces so far."""

    def scale(self, step: torch.Tensor, staleness: float) -> torch.Tensor:
        """The step times the factor; ``staleness`` is the mean of its updates'."""
        step = step * self._log_factor.exp()
        self._pieces[0] += step[: self._trained][:: self._stride]
        self._rounds += 1
        self._total += 1
        share = max(_MEMORY, 1.0 / self._total)
        self._staleness += share * (staleness - self._staleness)
        if self._rounds >= max(1.0, self._staleness / 2.0):
            self._complete += 1
            self._rounds = 0
            if self._complete >= _PIECES:
                self._adapt()
            self._pieces = self._pieces.roll(1, dims=0)
            self._pieces[0] = 0.0
        return step

    def _adapt(self) -> None:
        now, before = self._pieces[:2].sum(dim=0), self._pieces[3:].sum(dim=0)
        cosine = (now @ before) / (now.norm() * before.norm()).clamp_min(1e-30)
        how = self._settings
        change = (how.gain * (cosine + how.tolerance)).clamp(-_LARGEST_FALL, how.rise)
        self._log_factor = (self._log_factor + change.nan_to_num(-_LARGEST_FALL)).clamp(
            math.log(how.lowest), math.log(how.highest)
        )

    def state(self) -> dict[str, torch.Tensor]:
        import torch

        counted = [self._staleness, self._total, self._rounds, self._complete]
        numbers = self._log_factor.new_tensor(counted, dtype=torch.float64)
        return {"pieces": self._pieces, "log_factor": self._log_factor, "numbers": numbers}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._pieces = state["pieces"].to(self._pieces)
        self._log_factor = state["log_factor"].to(self._log_factor)
        self._staleness, *counts = state["numbers"].tolist()
        self._total, self._rounds, self._complete = map(int, counts)
