"""A task has at most six types, and the design page says why each exists."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import get_args

from fedast.core.protocol import Event
from fedast.core.task_table import TaskTable
from fedast.federation.log_events import LogEvent
from fedast.tasks.options import TaskOptions

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedast"
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
NAMED_AFTER_TASKS = re.compile(r"Tasks?([A-Z]\w*)?|[A-Z]\w*Task")
FOLLOWERS = {"TaskStatus", "TaskMetrics"}
"""They follow a task while it runs; the page names them too."""


def documented() -> dict[str, tuple[str, str]]:
    """Type -> (file, sentence), from the table."""
    table = DESIGN.partition("Six types describe a task")[2].partition("\n\nA running task")[0]
    rows = re.findall(r"^\| `(\w+)` \(`([\w/.]+)`\) \| (.+) \|$", table, re.MULTILINE)
    return {name: (file, sentence) for name, file, sentence in rows}


def test_six_types_describe_a_task() -> None:
    found = documented()
    assert len(found) == 6
    for name, (file, sentence) in found.items():
        module = "fedast." + file.removesuffix(".py").replace("/", ".")
        assert getattr(import_module(module), name).__doc__, name
        assert sentence.endswith("."), name


def test_no_other_type_does() -> None:
    others = []
    events = {kind.__name__ for kind in (*get_args(Event), *get_args(LogEvent))}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or not NAMED_AFTER_TASKS.fullmatch(node.name):
                continue
            module = ".".join(("fedast", *path.relative_to(SOURCE).with_suffix("").parts))
            kind = getattr(import_module(module), node.name)
            part = issubclass(kind, TaskOptions) and kind is not TaskOptions  # a particular task
            if not (part or issubclass(kind, Exception) or kind is TaskTable):
                others.append(node.name)
    assert set(others) - events - FOLLOWERS == set(documented())
    for name in FOLLOWERS:
        assert f"`{name}`" in DESIGN
