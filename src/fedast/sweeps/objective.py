"""What a sweep looks for: a number of ``result.json``, the smallest or the largest."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, final

from fedast.config.resolve import defaults_of
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.options import Section
from fedast.parts.parsing import parse_section
from fedast.records.run import RunResult, TaskResult
from fedast.run.batch import Pulse

Direction: TypeAlias = Literal["minimize", "maximize"]
Over: TypeAlias = Literal["mean", "max", "min", "sum"]

OF_RUN = ("finish_time", "wall_seconds", "updates_per_second")
OF_TASK = tuple(
    field.name for field in fields(TaskResult) if field.name not in ("metric", "finish_reason")
)
_TIMES = ("time_to_target", "time_held")
_OVER: Mapping[Over, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean, "max": max, "min": min, "sum": sum,
}  # fmt: skip


class ObjectiveConfig(Section):
    """The ``objective`` of a file."""

    value: str = "finish_time"
    """A number of ``result.json``: of the run, or of its tasks."""
    task: str | None = None
    """Of this task; default: of all of them, by ``over``."""
    over: Over | None = None
    """What becomes one number of the tasks' numbers; default: mean, of times max."""
    direction: Direction | None = None
    """Default: minimize; for ``final`` whatever is better for the metric."""


@final
@dataclass(frozen=True, slots=True)
class Objective:
    value: str
    task: str | None
    over: Over | None
    direction: Direction
    targets: frozenset[str]
    """Tasks that have a target."""
    names: tuple[str, ...]
    """All tasks."""

    @classmethod
    def of(cls, given: Any, config: RunConfig) -> Objective:
        """From what a file says, for runs like ``config``."""
        asked = _parse(given)
        tasks = {task.name or task.use: task for task in config.tasks}
        value, task = asked.value, asked.task
        if value not in (*OF_RUN, *OF_TASK):
            known = nearest(value, (*OF_RUN, *OF_TASK))
            raise ConfigError("objective.value", f"{value!r} is no number of result.json{known}")
        if task is not None and value in OF_RUN:
            raise ConfigError("objective.task", f"{value} is of the run, not of a task")
        if task is not None and task not in tasks:
            raise ConfigError("objective.task", f"there is no task {task!r}{nearest(task, tasks)}")
        if value in OF_RUN and asked.over is not None:
            raise ConfigError("objective.over", f"{value} is of the run; leave it out")
        if task is not None and asked.over is not None:
            raise ConfigError(
                "objective.over", "is for all tasks, and task names one; leave it out"
            )
        concerned = list(tasks) if task is None else [task]
        targets = frozenset(name for name in tasks if tasks[name].target is not None)
        if value in _TIMES and not targets.issuperset(concerned):
            lacking = next(name for name in concerned if name not in targets)
            raise ConfigError("objective", f"{value}: task {lacking!r} has no target")
        if value == "finish_time" and config.simulation.until == "time":
            raise ConfigError(
                "objective",
                'finish_time is the time limit of every run with simulation.until = "time"; '
                "use time_to_target or final",
            )
        over = asked.over
        if value in OF_TASK and task is None and over is None:
            over = "max" if value in _TIMES else "mean"
        direction = asked.direction or _usual(value, concerned, config)
        return cls(value, task, over, direction, targets, tuple(tasks))

    def measure(self, result: RunResult) -> float | None:
        """The number of a finished run; None if a target was missed, or there is no number."""
        if self.value in OF_RUN:
            missed = any(
                (name in self.targets and task.time_to_target is None)
                or task.finish_reason == "diverged"
                for name, task in result.tasks.items()
            )
            return (
                None
                if missed and self.value == "finish_time"
                else float(getattr(result, self.value))
            )
        found = [getattr(result.tasks[name], self.value) for name in self._concerned]
        return None if None in found else self._joined([float(number) for number in found])

    def least(self, pulse: Pulse) -> float | None:
        """What the number of a run under way cannot be below, if that is known: its time goes on
        until the last target is reached."""
        if self.value == "finish_time":
            return pulse.time
        if self.value != "time_to_target" or not pulse.reached:
            return None
        names = [name for name, _ in pulse.tasks]
        times = dict(zip(names, pulse.reached, strict=True))
        return self._joined(
            [pulse.time if (time := times[name]) is None else time for name in self._concerned]
        )

    def latest(self, pulse: Pulse) -> float | None:
        """The number by the latest evaluations of a run under way, for ``final``."""
        values = dict(pulse.tasks)
        found = [value for name in self._concerned if (value := values.get(name)) is not None]
        return self._joined(found) if len(found) == len(self._concerned) else None

    def at(self, result: RunResult, time: float) -> float | None:
        """What ``latest`` was at a time of a finished run."""
        found = []
        for name in self._concerned:
            before = [point.value for point in result.curves[name] if point.time <= time]
            if not before:
                return None
            found.append(before[-1])
        return self._joined(found)

    def better(self, one: float, other: float) -> bool:
        return one < other if self.direction == "minimize" else one > other

    @property
    def label(self) -> str:
        """In a table's head."""
        if self.value in OF_RUN:
            return self.value
        return f"{self.over} {self.value}" if self.task is None else f"{self.value} of {self.task}"

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "task": self.task,
            "over": self.over,
            "direction": self.direction,
        }

    @property
    def _concerned(self) -> Sequence[str]:
        return self.names if self.task is None else (self.task,)

    def _joined(self, numbers: Sequence[float]) -> float:
        return numbers[0] if self.task is not None else _OVER[self.over or "mean"](numbers)


def _parse(given: Any) -> ObjectiveConfig:
    """A table, or a key of ``result.json`` such as ``final`` or ``tasks.mnist.final``."""
    if not isinstance(given, str):
        return parse_section(ObjectiveConfig, given, "objective")
    if given.startswith("tasks."):
        task, _, value = given.removeprefix("tasks.").rpartition(".")
        return ObjectiveConfig(value=value, task=task)
    return ObjectiveConfig(value=given)


def _usual(value: str, concerned: Sequence[str], config: RunConfig) -> Direction:
    if value == "updates_per_second":
        return "maximize"
    if value != "final":
        return "minimize"
    better = {
        defaults_of(task, config).metric.higher_is_better
        for task in config.tasks
        if (task.name or task.use) in concerned
    }
    if len(better) > 1:
        raise ConfigError(
            "objective",
            "higher is better for one task's metric and worse for another's; name a task",
        )
    return "maximize" if better == {True} else "minimize"
