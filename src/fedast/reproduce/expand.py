"""From a study's tables to a configuration: merging, shorthands, quick scale.

The shorthands are ``template`` and ``copies`` (that many tasks alike), ``each`` (a table merged
into every task) and ``task`` (tables merged into tasks by name).

Quick scale makes the same study small: every number of clients or requests times ``QUICK_SIZE``,
every time limit times ``QUICK_TIME``, and small tasks with bundled data in place of the paper's,
with their own options. It shows that a study runs, and nothing about the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedast.algorithms.options import ALGORITHMS, USUAL_RATIO
from fedast.config.renamed import copied
from fedast.config.renamed import with_current_keys as with_renamed_keys
from fedast.parts.errors import ConfigError

QUICK_SIZE, QUICK_TIME = 0.16, 0.05
QUICK_TASKS: Mapping[str, Mapping[str, Any]] = {
    "mnist": {"use": "digits-mlp", "low": 0.3, "main": 0.5, "high": 0.6},
    "fashion-mnist": {"use": "synthetic", "low": 0.15, "main": 0.2, "high": 0.22},
    "cifar10": {"use": "digits-cnn", "low": 0.2, "main": 0.3, "high": 0.35},
    "shakespeare": {"use": "synthetic", "low": 0.15, "main": 0.2, "high": 0.22},
    "cifar100": {"use": "digits-cnn", "main": 0.3},
}
"""What trains in place of a task of the paper, and its targets."""


def merge(table: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Write ``other`` over ``table``; another part (delay, availability) discards the old options.

    (Another algorithm does not: algorithms share many options, and one that the new algorithm
    does not have is an error.)
    """
    for key, value in other.items():
        old = table.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            if key != "algorithm" and "name" in value and value["name"] != old.get("name"):
                old.clear()
            merge(old, value)
        else:
            table[key] = copied(value)


def with_current_keys(table: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a table with shorthands in which renamed configuration keys have their new name."""
    new = with_renamed_keys(table)
    for key in ("template", "each"):
        if key in new:
            new[key] = _task_with_current_keys(new[key])
    if isinstance(new.get("task"), dict):
        new["task"] = {name: _task_with_current_keys(task) for name, task in new["task"].items()}
    return new


def _task_with_current_keys(task: Any) -> Any:
    return with_renamed_keys({"tasks": [task]})["tasks"][0]


def write_out(table: dict[str, Any]) -> None:
    """Replace the shorthands by what they stand for."""
    if "copies" in table and "template" not in table:
        raise ConfigError("copies", "needs a template, the task to copy")
    if "template" in table and "tasks" in table:
        raise ConfigError("template", "replaces tasks; set only one of the two")
    template, copies = table.pop("template", None), table.pop("copies", 1)
    if template is not None:
        if copies == 1:
            table["tasks"] = [copied(template)]
        else:
            table["tasks"] = [
                {**copied(template), "name": f"{template['use']}-{number}"}
                for number in range(1, copies + 1)
            ]
    each, by_name = table.pop("each", {}), table.pop("task", {})
    for task in table.get("tasks", []):
        merge(task, each)
        merge(task, by_name.get(task.get("name", task["use"]), {}))


def make_quick(table: dict[str, Any]) -> None:
    """Scale a configuration down (see the module's docstring)."""
    simulation = table.setdefault("simulation", {})
    simulation["clients"] = _scaled(simulation.get("clients", 1000))
    simulation["max_time"] = simulation.get("max_time", 3000) * QUICK_TIME
    availability = simulation.get("availability", {})
    if "cap" in availability:
        availability["cap"] = _scaled(availability["cap"])
    algorithm = table.setdefault("algorithm", {})
    for key in ("requests", "first_k"):
        if isinstance(algorithm.get(key), int):
            algorithm[key] = _scaled(algorithm[key])
    options = ALGORITHMS.find(algorithm.get("name", "fedast-d"), "algorithm.name").model_fields
    if "first_k" in options:
        algorithm.setdefault("first_k", _scaled(30))
    else:
        if algorithm.get("ratio", USUAL_RATIO) == USUAL_RATIO:
            algorithm["ratio"] = 8
        algorithm.setdefault("server_lr", 0.4)
    for task in table["tasks"]:
        use = task["use"]
        small = QUICK_TASKS.get(use)
        if small is not None:
            task.setdefault("name", use)
            task["use"] = small["use"]
            task.pop("options", None)
            task.setdefault("target", small[task.pop("level", "main")])
        if "requests" in task:
            task["requests"] = _scaled(task["requests"])
            if "buffer" in task:
                task["buffer"] = min(task["buffer"], task["requests"])


def _scaled(count: int) -> int:
    return max(1, round(count * QUICK_SIZE))
