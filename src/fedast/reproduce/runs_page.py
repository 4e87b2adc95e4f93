"""Runs of ``fedast run`` or ``compare`` as one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedast.records.files import write_atomically
from fedast.reproduce.page import embedded, environment


@dataclass(frozen=True)
class PageTable:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_runs_page(
    path: Path, title: str, tables: Sequence[PageTable], figures: Mapping[str, Path]
) -> None:
    """``figures`` are PNG files by name; they become part of the page."""
    page = environment().get_template("runs.html.jinja").render(
        title=title,
        tables=tables,
        figures=[embedded(name, file) for name, file in figures.items()],
    )  # fmt: skip
    write_atomically(path, page)
