"""How long a local training takes, in simulated time.

Every model but ``measured`` draws the time X of one local step for a task of
cost 1 on a client of speed 1; the training takes ``steps * step_cost * speed * X``,
where a larger ``speed`` factor means a slower client.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, final

import numpy as np
from pydantic import Field, model_validator

from fedast.core.apportion import largest_remainder
from fedast.core.protocol import ClientId, TaskName
from fedast.core.streams import Stream
from fedast.parts.options import Options
from fedast.parts.registry import Registry
from fedast.sim.tables import BadInputFile, read_rows, to_client, to_number


@dataclass(frozen=True, slots=True)
class Timing:
    """What a task asks of a client: ``steps`` local steps of relative cost ``step_cost``."""

    task: TaskName
    steps: int
    step_cost: float


class Delay(Protocol):
    def duration(self, stream: Stream, timing: Timing, client: ClientId, speed: float) -> float: ...


@final
@dataclass(frozen=True, slots=True)
class ShiftedExponentialDelay:
    """X = beta + Exp(mean 2 beta), with beta = ``scale``: the paper's model."""

    scale: float = 0.5

    def duration(self, stream: Stream, timing: Timing, client: ClientId, speed: float) -> float:
        beta = self.scale * speed * timing.step_cost
        return timing.steps * beta * (1.0 + 2.0 * stream.exponential())


@final
@dataclass(frozen=True, slots=True)
class ConstantDelay:
    """X = ``value``."""

    value: float = 1.0

    def duration(self, stream: Stream, timing: Timing, client: ClientId, speed: float) -> float:
        return timing.steps * timing.step_cost * speed * self.value


@final
@dataclass(frozen=True, slots=True)
class UniformDelay:
    """X uniform between ``low`` and ``high``."""

    low: float = 0.5
    high: float = 1.5

    def duration(self, stream: Stream, timing: Timing, client: ClientId, speed: float) -> float:
        draw = self.low + (self.high - self.low) * stream.uniform()
        return timing.steps * timing.step_cost * speed * draw


@final
@dataclass(frozen=True, slots=True)
class LognormalDelay:
    """X = ``median`` * exp(``sigma`` * Z), Z standard normal."""

    median: float = 1.0
    sigma: float = 0.5

    def duration(self, stream: Stream, timing: Timing, client: ClientId, speed: float) -> float:
        draw = self.median * math.exp(self.sigma * stream.normal())
        return timing.steps * timing.step_cost * speed * draw


@final
class MeasuredDelay:
    """Durations of whole local trainings, drawn at random from a file of measurements.

    The file is a CSV with a header and the columns ``task`` and ``seconds``,
    and if you have it ``client``. A request draws from the rows of its task
    and client, else from all rows of its task. The drawn time is multiplied by
    the client's speed factor (1 if the run has no speed groups) and by nothing
    else.
    """

    def __init__(self, path: Path, tasks: Sequence[TaskName]) -> None:
        self._by_task: dict[TaskName, list[float]] = {}
        self._by_client: dict[tuple[TaskName, ClientId], list[float]] = {}
        for line, row in read_rows(path, required=("task", "seconds")):
            seconds = to_number(path, line, "seconds", row["seconds"])
            if seconds <= 0.0:
                raise BadInputFile(f"{path}, line {line}: seconds must be positive")
            self._by_task.setdefault(row["task"], []).append(seconds)
            if row.get("client"):
                client = to_client(path, line, row["client"])
                self._by_client.setdefault((row["task"], client), []).append(seconds)
        missing = [name for name in tasks if name not in self._by_task]
        if missing:
            raise BadInputFile(f"{path}: no row for task {missing[0]!r}; add measurements of it")

    def duration(self, stream: Stream, timing: Timing, client: ClientId, speed: float) -> float:
        rows = self._by_client.get((timing.task, client)) or self._by_task[timing.task]
        return speed * rows[stream.below(len(rows))]


class DelayOptions(Options, ABC):
    """Options of a delay model."""

    uses_step_cost: ClassVar[bool] = True
    """Whether a task's ``step_cost`` matters to it."""

    @abstractmethod
    def build(self, tasks: Sequence[TaskName]) -> Delay: ...


class ShiftedExponential(DelayOptions):
    """A local step takes beta + Exp(mean 2 beta), beta = scale * speed * step_cost (the paper)."""

    name: ClassVar[str] = "shifted-exponential"
    scale: float = Field(0.5, gt=0)

    def build(self, tasks: Sequence[TaskName]) -> Delay:
        return ShiftedExponentialDelay(self.scale)


class Constant(DelayOptions):
    """One local step takes value * speed * step_cost."""

    name: ClassVar[str] = "constant"
    value: float = Field(1.0, gt=0)

    def build(self, tasks: Sequence[TaskName]) -> Delay:
        return ConstantDelay(self.value)


class Uniform(DelayOptions):
    """One local step takes between low and high, times speed * step_cost."""

    name: ClassVar[str] = "uniform"
    low: float = Field(0.5, ge=0)
    high: float = Field(1.5, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above high ({self.high})")
        return self

    def build(self, tasks: Sequence[TaskName]) -> Delay:
        return UniformDelay(self.low, self.high)


class Lognormal(DelayOptions):
    """One local step takes median * exp(sigma * normal), times speed * step_cost."""

    name: ClassVar[str] = "lognormal"
    median: float = Field(1.0, gt=0)
    sigma: float = Field(0.5, ge=0, le=10)

    def build(self, tasks: Sequence[TaskName]) -> Delay:
        return LognormalDelay(self.median, self.sigma)


class Measured(DelayOptions):
    """Whole local trainings drawn from a CSV of measurements: task, seconds[, client]."""

    name: ClassVar[str] = "measured"
    files = ("file",)
    uses_step_cost = False
    file: str

    def build(self, tasks: Sequence[TaskName]) -> Delay:
        return MeasuredDelay(Path(self.file), tasks)


DELAYS: Registry[DelayOptions] = Registry(
    "delays",
    DelayOptions,  # type: ignore[type-abstract]
    [__name__],
)


@final
class Speeds:
    """A speed factor per client: groups of exact sizes, members chosen by the seed."""

    def __init__(
        self, clients: int, factors: Sequence[float], shares: Sequence[float], seed: int
    ) -> None:
        self.factors = tuple(factors)
        groups = np.repeat(
            np.arange(len(factors), dtype=np.uint8), largest_remainder(clients, shares)
        )
        np.random.default_rng(Stream.of(seed, "speeds").bits()).shuffle(groups)
        self.groups = groups.tobytes()
        """The group of each client."""

    def of(self, client: ClientId) -> float:
        return self.factors[self.groups[client]]
