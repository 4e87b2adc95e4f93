"""Names that were retired are gone, but for the places that still read what used them.

Each name had a plainer one in the field's own words; the lists are what must not come back.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

IDENTIFIERS = (
    "client_rate", "server_rate", "server_step", "combining", "Combining", "CombiningConfig",
    "as_points", "Points", "Keeper", "keeper", "keeping", "Keeping", "Reader", "ModuleReader",
    "KernelReader", "metering", "Meter", "Meters", "MeteredLearner", "MeteredTrainer", "diary",
    "Diary", "polls", "Polls", "intake", "Intake", "chapter", "Chapter", "Reported", "Cell",
    "Tally", "TaskTally", "tally", "deal", "dealt", "nought", "initialisation", "Workbench",
    "WEIGHTINGS", "weighting", "Journal", "settle", "settle_compute", "settle_trainers", "_settled",
    "PlainStep", "AsyncConfig", "SyncConfig", "AlgorithmConfig", "DelayConfig",
    "AvailabilityConfig", "TorchLearner",
)  # fmt: skip
"""(A reader of English may still meet some of these as words: only whole identifiers count.)"""

TRANSLATIONS = {
    "src/fedast/config/renamed.py",
    "src/fedast/algorithms/renamed.py",
    "src/fedast/tasks/task.py",  # Training(client_rate=, server_rate=)
    "src/fedast/deprecated.py",
    "src/fedast/aggregation/settings.py",  # ServerSide(step=, combining=)
    "src/fedast/federation/write_ahead_log.py",  # the folder on disk is still called diary/
    "src/fedast/federation/segments.py",  # ... and so are the files in it
    "docs/configuration.md",  # the table of earlier names
}
"""Where old names are read, or said to be old."""
ALLOWED = {
    ("docs/records.md", "diary"),
    ("docs/federation.md", "diary"),
    ("docs/reliability.md", "diary"),
    ("examples/own_tasks.py", "chapter"),  # of Python's manual
}


def texts() -> list[Path]:
    found = [
        path
        for folder in ("src", "examples", "benchmarks")
        for kind in ("*.py", "*.toml")
        for path in (REPOSITORY / folder).rglob(kind)
    ]
    docs = REPOSITORY / "docs"
    made = (docs / "_build", docs / "generated")
    pages = [
        path
        for kind in ("*.md", "*.py", "*.toml")
        for path in docs.rglob(kind)
        if path.name != "results.md" and not any(path.is_relative_to(place) for place in made)
    ]
    return [*found, *pages, REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_a_retired_name_is_gone(name: str) -> None:
    pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    left = []
    for path in texts():
        place = path.relative_to(REPOSITORY).as_posix()
        if place in TRANSLATIONS or (place, name) in ALLOWED:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                left.append(f"{place}:{number}: {line.strip()}")
    assert not left, "\n".join(left)


def test_the_list_of_exceptions_is_needed() -> None:
    for place in TRANSLATIONS:
        path = REPOSITORY / place
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert any(re.search(rf"(?<![\w-]){name}(?![\w-])", text) for name in IDENTIFIERS), (
                place
            )
