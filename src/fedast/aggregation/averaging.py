"""A running average of the server's models: what is evaluated and handed out, never trained on.

After round t the average xb of a task's models x becomes

    xb + c (x - xb),    c = min(1, (p + 1) / (t + p)),

which weighs about the last t / (p + 1) rounds: the window grows with the run, so that the average
both follows the model and takes out more and more of its noise (polynomial-decay averaging; Shamir,
Zhang: "Stochastic Gradient Descent for Non-smooth Optimization", ICML 2013). Clients always get
the raw model, so a run's schedule and training do not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, final

from pydantic import Field

from fedast.parts.options import Section

if TYPE_CHECKING:
    import torch


class Averaging(Section):
    """A running average of the server's models, which is evaluated and handed out."""

    use: Literal["never", "always"] = "never"
    """always: the average is evaluated, exported and handed out at the end, not the newest
    model."""
    exponent: float = Field(12.0, ge=0, le=1e6)
    """p: the average covers about the last t / (p + 1) of t rounds."""
    raw_every: int = Field(5, ge=0)
    """Every so many-th evaluation is also made of the newest model, for the records alone (rows
    whose model is raw); 0: never."""


@final
class RunningAverage:
    """One task's average: one vector, on the model's device."""

    def __init__(self, exponent: float, initial: torch.Tensor) -> None:
        self._exponent = exponent
        self.value = initial.clone()

    def follow(self, model: torch.Tensor, rounds: int) -> None:
        """Include the model after so many rounds."""
        share = min(1.0, (self._exponent + 1.0) / (rounds + self._exponent))
        self.value = self.value.lerp(model, share)
