"""Named tasks, and how to add one.

A task's options class derives from ``TaskOptions``, has a ``name``, and builds a ``Task``. A
configuration names it, or ``package.module:Class``; another package offers it as an entry point in
the group ``fedast.tasks``. A function will do instead, its keywords being its options:

    def my_task(clients: int, seed: int, *, width: int = 64) -> Task: ...
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from fedast.parts.options import Options
from fedast.parts.parsing import parse_section
from fedast.parts.registry import Registry, described
from fedast.tasks.task import BadTask, Task, Training

if TYPE_CHECKING:
    import torch


class TaskOptions(Options, ABC):
    """Options of a task."""

    display_name: ClassVar[str] = ""
    """How figures write it, such as CIFAR-10; default: what the run calls it."""
    defaults: ClassVar[Task | None] = None
    """The task without its data, so that a configuration can be checked and planned without
    loading any; None: the task is built to find out."""
    sync_training: ClassVar[Training | None] = None
    """What synchronous algorithms use instead of ``defaults.training``; None: the same."""
    targets: ClassVar[Mapping[str, float]] = {}
    """Its ``low`` and ``high`` targets; ``main`` is the target of ``defaults``."""
    datasets: ClassVar[tuple[str, ...]] = ()
    """The datasets that must be in the cache (fedast data list)."""

    @abstractmethod
    def build(self, clients: int, seed: int, name: str) -> Task:
        """The task over so many clients. ``name`` is what the run calls it."""

    @classmethod
    def targets_by_level(cls, defaults: Task) -> dict[str, float]:
        found = {**cls.targets, "main": defaults.goal.target}
        return {
            level: target
            for level in ("low", "main", "high")
            if (target := found.get(level)) is not None
        }

    def model(self) -> Callable[[], torch.nn.Module] | None:
        """What makes its module, if that can be said without its data; None: build the task."""
        return None

    @classmethod
    def read(cls, table: Mapping[str, Any], key: str) -> Self:
        """Options from a configuration's table, which is at ``key``."""
        return parse_section(cls, table, key)

    def table(self) -> dict[str, Any]:
        """What ``read`` reads, with every default written out."""
        return {key: value for key, value in self.model_dump().items() if key != "name"}


class FunctionTask(TaskOptions):
    """A function ``(clients, seed, **options) -> Task``; the task has its own name."""

    function: ClassVar[Callable[..., Any]]
    arguments: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def read(cls, table: Mapping[str, Any], key: str) -> Self:
        return cls(arguments=dict(table))

    def table(self) -> dict[str, Any]:
        return dict(self.arguments)

    def build(self, clients: int, seed: int, name: str) -> Task:
        task: Task = _call(type(self), json.dumps(self.arguments, sort_keys=True), clients, seed)
        return task


def build_task(options: TaskOptions, clients: int, seed: int, name: str) -> Task:
    """The task that options build, with errors that name it; the last few are kept.

    Without a name it gets that of its class.
    """
    name = name or options.name.rpartition(":")[2].rpartition(".")[2]
    if options.defaults is not None:
        return options.build(clients, seed, name)
    given = json.dumps(options.table(), sort_keys=True)
    return _built(type(options), given, clients, seed, name)


@lru_cache(maxsize=8)
def _built(kind: type[TaskOptions], given: str, clients: int, seed: int, name: str) -> Task:
    """``given`` are the options as JSON, so that they can be cached by."""
    use = kind.name
    try:
        task: Any = kind.read(json.loads(given), use).build(clients, seed, name)
    except BadTask:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise BadTask(f"{use}: {described(error)}") from error
    if not isinstance(task, Task):
        raise BadTask(f"{use}: returned {type(task).__name__}, not a fedast.Task")
    if len(task.partition) != clients:
        raise BadTask(f"{use}: its partition has {len(task.partition)} parts for {clients} clients")
    return task


@lru_cache(maxsize=8)
def _call(kind: type[FunctionTask], given: str, clients: int, seed: int) -> Any:
    """Whatever the run calls it, the task is the same, and built once."""
    function, options = kind.function, json.loads(given)
    try:
        inspect.signature(function).bind(clients, seed, **options)
    except TypeError as error:
        raise BadTask(
            f"{kind.name}: cannot be called with (clients, seed) and its options: {error}"
        ) from None
    return function(clients, seed, **options)


def _from_function(name: str, function: Callable[..., Any]) -> type[TaskOptions]:
    attributes = {"__doc__": function.__doc__, "name": name, "function": staticmethod(function)}
    return type("FromFunction", (FunctionTask,), attributes | {"__module__": __name__})


TASKS: Registry[TaskOptions] = Registry(
    "tasks",
    TaskOptions,  # type: ignore[type-abstract]
    [
        "fedast.tasks.embedded",
        "fedast.tasks.paper",
        "fedast.tasks.texts",
        "fedast.tasks.adapters.options",
    ],
    adapt=_from_function,
)
