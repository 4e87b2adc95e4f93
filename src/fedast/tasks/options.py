"""What a task by name is, and how to add one.

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
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from fedast.aggregation.settings import ServerSide
from fedast.parts.options import Options
from fedast.parts.parsing import parse_section
from fedast.parts.registry import Registry, described
from fedast.tasks.metrics import Accuracy, MetricOptions
from fedast.tasks.task import Allocation, BadTask, Goal, Task, Training

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """The settings of a task without its data: a named task's defaults, or what a run decided.

    A configuration is planned from them before any data is loaded. ``training`` is for asynchronous
    algorithms and ``sync_training`` for synchronous ones, which often want other learning rates;
    None: the same. ``targets`` are by level: low, main and high.
    """

    name: str = ""
    metric: MetricOptions = field(default_factory=Accuracy)
    targets: Mapping[str, float] = field(default_factory=dict)
    step_cost: float = 1.0
    training: Training = field(default_factory=Training)
    sync_training: Training | None = None
    goal: Goal = field(default_factory=Goal)
    """Of a named task's defaults the target is that of a level, and not here."""
    server: ServerSide = field(default_factory=ServerSide)
    allocation: Allocation = field(default_factory=Allocation)

    @classmethod
    def of(cls, task: Task) -> TaskSettings:
        return cls(
            name=task.name,
            metric=task.metric,
            targets={} if task.goal.target is None else {"main": task.goal.target},
            step_cost=task.step_cost,
            training=task.training,
            goal=task.goal,
            server=task.server,
            allocation=task.allocation,
        )

    def settings(self) -> dict[str, Any]:
        """The same as arguments of ``Task``."""
        return {
            "metric": self.metric,
            "step_cost": self.step_cost,
            "training": self.training,
            "goal": self.goal.model_copy(update={"target": self.targets.get("main")}),
            "server": self.server,
            "allocation": self.allocation,
        }


class TaskOptions(Options, ABC):
    """Options of a task."""

    display_name: ClassVar[str] = ""
    """How figures write it, such as CIFAR-10; default: what the run calls it."""
    defaults: ClassVar[TaskSettings | None] = None
    """Its settings, so that a configuration is checked without loading data; None: those of the
    task that is built."""
    datasets: ClassVar[tuple[str, ...]] = ()
    """The datasets that must be in the cache (fedast data list)."""

    @abstractmethod
    def build(self, clients: int, seed: int, name: str) -> Task:
        """The task over so many clients. ``name`` is what the run calls it."""

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
    ["fedast.tasks.embedded", "fedast.tasks.paper"],
    adapt=_from_function,
)
