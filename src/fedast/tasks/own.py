"""Users' own tasks: functions named in a configuration, or by an installed package.

A function takes the number of clients and the run's seed, and any options by
keyword, and returns a ``Task``:

    def my_task(clients: int, seed: int, *, width: int = 64) -> Task: ...

A configuration names it as ``package.module:my_task``; an installed package can
give it a name of its own with an entry point in the group ``fedast.tasks``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedast.tasks.preset import Preset
from fedast.tasks.task import BadTask, Task

GROUP = "fedast.tasks"


def plugins() -> Mapping[str, str]:
    """The tasks of installed packages: their names, and where their functions are."""
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def is_own(use: str) -> bool:
    return ":" in use or use in plugins()


def make_importable(path: Sequence[str]) -> None:
    """Let modules in these folders and in the working folder be found."""
    for place in (*path, str(Path.cwd())):
        if place not in sys.path:
            sys.path.append(place)


def own_preset(
    use: str, options: Mapping[str, Any], clients: int, seed: int, path: Sequence[str]
) -> Preset:
    """What the function builds, as a preset; the task's own settings are its defaults.

    ``path`` are further folders in which modules are looked for.
    """
    make_importable(path)
    task = _build(use, json.dumps(options, sort_keys=True), clients, seed)

    return Preset(
        name=use,
        summary=task.name,
        build=lambda _options, _clients, _seed, name: replace(task, name=name),
        options=None,
        metric=task.metric,
        targets={} if task.goal.target is None else {"main": task.goal.target},
        goal=task.goal,
        step_cost=task.step_cost,
        training=task.training,
        sync_training=task.training,
        server=task.server,
        allocation=task.allocation,
    )


@lru_cache(maxsize=8)
def _build(use: str, given: str, clients: int, seed: int) -> Task:
    """``given`` are the options as JSON, so that they can be cached by."""
    function, options = find_function(use), json.loads(given)
    try:
        inspect.signature(function).bind(clients, seed, **options)
    except TypeError as error:
        raise BadTask(
            f"{use}: cannot be called with (clients, seed) and its options: {error}"
        ) from None
    try:
        task = function(clients, seed, **options)
    except BadTask:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise BadTask(f"{use}: {_said(error)}") from error
    if not isinstance(task, Task):
        raise BadTask(f"{use}: returned {type(task).__name__}, not a fedast.Task")
    if len(task.partition) != clients:
        raise BadTask(f"{use}: its partition has {len(task.partition)} parts for {clients} clients")
    return task


def find_function(use: str) -> Callable[..., Any]:
    """Import the function that a name refers to."""
    where = use if ":" in use else plugins()[use]
    module_name, _, name = where.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # missing, misspelled, or raising as it is imported
        problem = f"module {module_name!r} cannot be imported: {_said(error)}"
        raise BadTask(f"{use}: {problem}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise BadTask(f"{use}: module {module_name!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def _said(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
