"""The server's write-ahead log: what happened, in order, and the tensors as of the last commit.

Theory of operation. Every decision of a server follows from its configuration and the entries of
its log: who joined and left, which updates arrived, which requests failed. ``commit`` makes the
entries so far durable, together with the tensors and measurements of that moment; only then may
uploads be acknowledged. A restarted server replays the entries of the last commit and reads on
from the upload after the last one in them. Entries after the commit are cut off: they will happen
again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import final

import torch

from fedast.federation.log_codec import BadEntry, decode, encode
from fedast.federation.log_events import Configured, Entry
from fedast.learner.checkpoints import Checkpoint, newest, save
from fedast.records.files import write_atomically
from fedast.records.run import UnusableFolder
from fedast.version import __version__

FOLDER, ENTRIES, STATE = "diary", "diary.jsonl", "state"
"""Names on disk, as version 0.1.0 chose them."""


@dataclass(frozen=True)
class Past:
    """What a log holds from before a restart."""

    entries: Sequence[Entry]
    time: float
    tensors: Mapping[str, torch.Tensor]
    answers: tuple[float, ...]
    schedule: str | None
    """A hash of the decisions; version 0.1.0 recorded neither it nor its own version."""
    fedast: str | None

    @property
    def steps(self) -> int:
        """The number of entries."""
        return len(self.entries)

    @property
    def sequence(self) -> int:
        """Of the last upload in it."""
        return max((entry.sequence or 0 for entry in self.entries), default=0)


def configuration(folder: Path) -> Configured | None:
    """What the log in this folder was started with; None without a log. Nothing is changed."""
    path = folder / ENTRIES
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    if not first.endswith("\n"):
        return None
    event = _decoded(path, 1, first).event
    return event if isinstance(event, Configured) else None


def remedy(writer: str | None) -> str:
    """What to do about a log that this version cannot continue. (0.1.0 did not record itself.)"""
    writer = writer or "0.1.0"
    same = writer == __version__
    first = "restore the folder" if same else f"serve it with fedast {writer}"
    return f"{first}, or serve to a new folder with --out"


def _decoded(path: Path, number: int, line: str, writer: str | None = __version__) -> Entry:
    try:
        return decode(line)
    except BadEntry as error:
        raise UnusableFolder(
            f"{path}, line {number}: is not an entry of a write-ahead log ({error}); "
            f"{remedy(writer)}"
        ) from error


@final
class WriteAheadLog:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritten: list[str] = []
        self._file: FileIO | None = None
        self.count = 0
        self._committed = 0

    @property
    def dirty(self) -> bool:
        return self.count != self._committed

    def open(self, say: Callable[[str], None]) -> Past | None:
        """Start a new log, or continue the one that is there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / ENTRIES
        found = newest(self._folder / STATE, say)
        entries: list[Entry] = []
        if found is not None:
            kept: list[str] = []
            with path.open(encoding="utf-8") as file:
                for line in file:
                    if len(kept) == found.steps:
                        break
                    kept.append(line)
            if len(kept) < found.steps:
                raise UnusableFolder(
                    f"{path}: has {len(kept)} entries, but its state is that after {found.steps}; "
                    "restore the file, or serve to a new folder with --out"
                )
            entries = [
                _decoded(path, number, line, found.fedast) for number, line in enumerate(kept, 1)
            ]
            os.truncate(path, sum(len(line.encode()) for line in kept))
        elif any((self._folder / STATE).glob("*.json")):
            raise UnusableFolder(
                f"{self._folder}: no state in it can be read; restore it, or serve to a new folder "
                "with --out"
            )
        elif path.exists():
            path.unlink()  # killed before its first commit: nobody depends on it
        self._file = FileIO(path, "a")
        self.count = self._committed = len(entries)
        if found is None:
            return None
        return Past(entries, found.time, found.tensors, found.answers, found.schedule, found.fedast)

    def secret(self) -> bytes:
        """The key of this federation's tokens; made once."""
        path = self._folder / "secret"
        if not path.exists():
            write_atomically(path, os.urandom(32), durable=True, mode=0o600)
        return path.read_bytes()

    def append(self, entry: Entry) -> None:
        self._unwritten.append(encode(entry))
        self.count += 1

    def commit(
        self,
        now: float,
        tensors: Mapping[str, torch.Tensor],
        answers: Sequence[float],
        schedule: str | None = None,
    ) -> None:
        """Make everything durable; an ``OSError`` (a full disk, say) leaves all as it was."""
        assert self._file is not None
        if self._unwritten:
            size = os.fstat(self._file.fileno()).st_size
            data = "".join(self._unwritten).encode()
            try:
                written = 0
                while written < len(data):
                    written += self._file.write(data[written:]) or 0
                os.fsync(self._file.fileno())
            except OSError:
                self._file.truncate(size)  # what is half written is written again next time
                raise
            self._unwritten.clear()
        save(
            self._folder / STATE,
            Checkpoint(
                steps=self.count,
                time=now,
                wall_seconds=now,
                tensors=tensors,
                answers=tuple(answers),
                schedule=schedule,
                fedast=__version__,
            ),
        )
        self._committed = self.count

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
