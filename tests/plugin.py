"""A package of somebody else's, installed for one test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest


def install(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    module: str,
    source: str,
    entry_points: Mapping[str, str],
) -> ModuleType:
    """Make a module importable, with entry points (``fedast.KIND`` to ``name = address``)."""
    (folder / f"{module}.py").write_text(source)
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "".join(f"[{group}]\n{line}\n" for group, line in entry_points.items())
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)
    return importlib.import_module(module)
