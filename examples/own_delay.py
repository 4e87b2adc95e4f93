"""A delay model of your own: local steps with a Weibull distribution, heavy-tailed below shape 1.

python examples/own_delay.py
fedast run examples/own-delay.toml
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from fedast.core.protocol import ClientId, TaskName
from fedast.core.streams import Stream
from fedast.sim.delays import DelayOptions, Timing


@dataclass(frozen=True)
class WeibullDelay:
    """Draws from the request's own stream, so a duration depends on nothing else."""

    scale: float
    shape: float

    def duration(self, stream: Stream, timing: Timing, client: ClientId, speed: float) -> float:
        draw = self.scale * math.exp(math.log(stream.exponential() + 1e-300) / self.shape)
        return timing.steps * timing.step_cost * speed * draw


class Weibull(DelayOptions):
    """One local step takes a Weibull-distributed time, times speed and step cost."""

    name: ClassVar[str] = "weibull"
    scale: float = Field(1.0, gt=0)
    shape: float = Field(0.7, gt=0.1, le=10)
    """Below 1 the tail is heavy: a few trainings take very long."""

    def build(self, tasks: Sequence[TaskName]) -> WeibullDelay:
        return WeibullDelay(self.scale, self.shape)


if __name__ == "__main__":
    from own_tasks import diabetes

    from fedast import Simulation, simulate

    for shape in (2.0, 0.7):
        world = Simulation(clients=30, delay=Weibull(shape=shape))
        outcome = simulate([diabetes(30, seed=1)], "fedast-s", world, seed=1)
        print(f"shape {shape}: {outcome.result.finish_time:.0f}")
