"""``events.jsonl`` of a federation, which must not stop it when the disk is full.

Lines wait in memory until they can be written. A restarted server continues after the part that its
snapshot covers, or rewrites the file while it replays the log; the new file replaces the old one
only when the replay has succeeded.
"""

from __future__ import annotations

import logging
import os
import zlib
from io import FileIO
from pathlib import Path
from typing import final

from fedast.federation.snapshots import Mark

log = logging.getLogger("fedast.server")
_ENOUGH = 8192
_PIECE = 1 << 20


@final
class EventFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f"{path.name}.part")
        self._file: FileIO | None = None
        self._waiting: list[str] = []
        self._characters = 0
        self._size = 0
        self._crc = 0
        self._committed = 0
        self._troubled = False
        self.restart()

    def restart(self, mark: Mark | None = None) -> bool:
        """Start a new file with what the old one had at this mark; False if that is gone."""
        if self._file is not None:
            self._file.close()
        self._waiting.clear()
        self._characters = self._size = self._crc = 0
        self._file = FileIO(self._draft, "w")
        return mark is None or self._copy(mark)

    def _copy(self, mark: Mark) -> bool:
        assert self._file is not None
        try:
            with self._path.open("rb") as old:
                while self._size < mark.size:
                    piece = old.read(min(_PIECE, mark.size - self._size))
                    if not piece:
                        return False
                    self._crc = zlib.crc32(piece, self._crc)
                    self._size += len(piece)
                    self._file.write(piece)
        except OSError:
            return False
        return self._crc == mark.crc

    def publish(self) -> None:
        """The replay has succeeded: take the place of the old file."""
        self.committed()
        self._draft.replace(self._path)

    def committed(self) -> None:
        """What was written so far follows from entries that are committed."""
        self.flush()
        self._committed = self._size

    def undo(self) -> None:
        """Cut off what follows from entries that were not committed and never will be."""
        self._waiting.clear()
        if self._file is not None:
            self._cut(self._committed)

    def write(self, text: str) -> int:
        self._waiting.append(text)
        self._characters += len(text)
        if self._characters >= _ENOUGH:
            self.flush()
        return len(text)

    def flush(self) -> bool:
        """Write what is waiting; False if the disk does not accept it."""
        assert self._file is not None
        data = "".join(self._waiting).encode()
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError as error:
            if not self._troubled:
                log.error("events.jsonl cannot be written: %s; it is tried again", error)
            self._troubled = True
            self._characters = 0  # not at every line
            self._cut(self._size)
            return False
        self._troubled = False
        self._waiting.clear()
        self._characters = 0
        self._size += len(data)
        self._crc = zlib.crc32(data, self._crc)
        return True

    def mark(self) -> Mark | None:
        """Make everything durable; None if that is not possible now."""
        if self._file is None or not self.flush():
            return None
        try:
            os.fsync(self._file.fileno())
        except OSError:
            return None
        return Mark(self._size, self._crc)

    def _cut(self, size: int) -> None:
        assert self._file is not None
        self._file.truncate(size)
        self._file.seek(size)

    def close(self) -> None:
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None
        self._draft.unlink(missing_ok=True)
