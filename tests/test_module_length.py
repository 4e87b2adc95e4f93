"""No module outgrows its room."""

from __future__ import annotations

from pathlib import Path

import fedast

LINES = 400


def test_no_module_has_more_than_400_lines() -> None:
    root = Path(fedast.__file__).parent
    long = {
        path.relative_to(root).as_posix(): count
        for path in root.rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > LINES
    }
    assert not long
