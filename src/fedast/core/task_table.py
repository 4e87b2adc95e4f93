"""The tasks of an algorithm, by name: what an algorithm does with them besides training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import final

from fedast.core.progress import Progress
from fedast.core.protocol import (
    Command,
    IllegalEvent,
    StopReason,
    TaskName,
    TaskSpec,
)


@final
class TaskTable:
    """How far each task is, in the order in which tasks came.

    Whatever does not fit raises ``IllegalEvent`` and changes nothing.
    """

    def __init__(self, specs: Iterable[TaskSpec]) -> None:
        self._tasks = {spec.name: Progress(spec) for spec in specs}

    def __iter__(self) -> Iterator[Progress]:
        return iter(self._tasks.values())

    def __getitem__(self, name: TaskName) -> Progress:
        try:
            return self._tasks[name]
        except KeyError:
            raise IllegalEvent(f"there is no task named {name!r}") from None

    def add(self, spec: TaskSpec) -> Progress:
        if spec.name in self._tasks:
            raise IllegalEvent(f"a task named {spec.name!r} exists already")
        self._tasks[spec.name] = Progress(spec)
        return self._tasks[spec.name]

    def stop(self, names: Sequence[TaskName], reason: StopReason) -> list[Command]:
        """Stop tasks from outside, all or none of them."""
        tasks = [self[name] for name in names]
        if any(task.finished is not None for task in tasks):
            raise IllegalEvent(f"a task of {tuple(names)} has finished already")
        commands = [task.stop(reason) for task in tasks]
        return [command for command in commands if command is not None]

    @property
    def unfinished(self) -> tuple[TaskName, ...]:
        return tuple(name for name, task in self._tasks.items() if task.finished is None)

    @property
    def open(self) -> list[Progress]:
        """Tasks that may receive requests."""
        return [task for task in self._tasks.values() if task.open]
