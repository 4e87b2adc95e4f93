"""``series.jsonl``: a run as a compact time series, written while it goes on, for whoever watches.

The first line is an object that says what runs; every other line is an array whose first item says
what it is (docs/records.md lists them). A reader may come at any time: it leaves out lines that it
does not know, and a last line without its end. ``series_writer`` writes it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeAlias, final

from fedast.records.run import UnusableFolder

VERSION = 1
KINDS = frozenset("erfshpx")

Row: TypeAlias = Any
"""A line: the header is a dict, all others are lists."""


def read(path: Path, offset: int = 0) -> tuple[list[Row], int]:
    """The rows after ``offset``, and where to read on. A file that has become shorter is read from
    its beginning; ``Follower`` also notices one that was cut and has grown again."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < offset:
            offset = 0
        file.seek(offset)
        data = file.read()
    end = data.rfind(b"\n") + 1
    rows = []
    for line in data[:end].split(b"\n"):
        row = parsed(line)
        if isinstance(row, dict) and row["series"] != VERSION:
            raise UnusableFolder(
                f"{path}: is of version {row['series']}; this version of fedast reads {VERSION}"
            )
        if row is not None:
            rows.append(row)
    return rows, offset + end


def parsed(line: bytes) -> Row | None:
    """None for a line that is damaged or of a kind that is not known."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if isinstance(row, dict):
        return row if "series" in row else None
    return row if isinstance(row, list) and len(row) > 3 and row[0] in KINDS else None


@final
class Follower:
    """Reads a series while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._last = b""

    def new(self) -> tuple[list[Row], bool]:
        """What has come since the last call, and whether the file was written anew or cut: then it
        is all there is."""
        again = self._offset > 0 and self._changed()
        rows, self._offset = read(self._path, 0 if again else self._offset)
        with self._path.open("rb") as file:
            file.seek(max(0, self._offset - 64))
            self._last = file.read(min(64, self._offset))
        return rows, again

    def _changed(self) -> bool:
        """Whether other bytes come before the offset now. (Every row has its own real time.)"""
        with self._path.open("rb") as file:
            file.seek(self._offset - len(self._last))
            return file.read(len(self._last)) != self._last
