"""What tables and curves call a task of the user's own, where a file gives it no name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedast.parts.errors import ConfigError
from fedast.parts.registry import make_importable
from fedast.tasks.options import TASKS, build_task
from fedast.tasks.task import BadTask


def names(table: Mapping[str, Any], path: Sequence[str], folder: Path) -> list[str]:
    """What each entry of ``tasks`` is called in a run.

    A function of the user's own names its task itself, so it is called (its task is kept, and
    trained later). Where it cannot be called yet, it stands under its own name.
    """
    clients = table.get("simulation", {}).get("clients", 1000)
    return [_name(entry, clients, table.get("seed", 0), path, folder) for entry in table["tasks"]]


def _name(entry: Any, clients: Any, seed: Any, path: Sequence[str], folder: Path) -> str:
    if not isinstance(entry, Mapping):
        return ""
    use = entry.get("use", entry.get("task", ""))
    if "name" in entry or not isinstance(use, str) or use in TASKS.builtin:
        return str(entry.get("name", use))
    try:
        make_importable([str((folder / place).resolve()) for place in path])
        options = TASKS.find(use, use).read(entry.get("options", {}), "options")
        name = "" if ":" in use else use
        return (options.defaults or build_task(options, clients, seed, name)).name
    except (ConfigError, BadTask, TypeError):  # what is wrong is said when the file is parsed
        return use.rpartition(":")[2]
