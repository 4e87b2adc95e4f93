"""The server's diary: what happened, in order, and the tensors as of the last commit.

Theory of operation. Everything that a server decides follows from its configuration and the
entries of its diary: who joined and left, which updates came, what was given up. ``commit`` makes
the entries so far durable, and beside them the tensors and measurements of that moment; only then
may an upload be settled. A server that starts over replays the entries of the last commit and
reads on from the upload after the last one in it. Entries beyond the commit are cut off: they
will happen again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, final

import torch

from fedast.learner.checkpoints import Checkpoint, newest, save
from fedast.records.run import UnusableFolder
from fedast.version import __version__

ENTRIES, STATE = "diary.jsonl", "state"


@dataclass(frozen=True)
class Past:
    """What a diary has to say about the time before."""

    entries: Sequence[Mapping[str, Any]]
    time: float
    tensors: Mapping[str, torch.Tensor]
    answers: tuple[float, ...]
    schedule: str | None
    """A hash of what was decided; version 0.1.0 wrote none, and did not say its version."""
    fedast: str | None

    @property
    def place(self) -> int:
        """Of the last upload that is in it."""
        return max((entry.get("place", 0) for entry in self.entries), default=0)


def first_entry(folder: Path) -> Mapping[str, Any] | None:
    """What a diary, if there is one, says about its configuration; nothing is touched."""
    path = folder / ENTRIES
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    found: Mapping[str, Any] | None = json.loads(first) if first.endswith("\n") else None
    return found


@final
class Diary:
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
        """Begin, or take up what is there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / ENTRIES
        found = newest(self._folder / STATE, say)
        entries: list[Mapping[str, Any]] = []
        if found is not None:
            kept: list[str] = []
            with path.open(encoding="utf-8") as file:
                for line in file:
                    if len(kept) == found.steps:
                        break
                    kept.append(line)
            entries = [json.loads(line) for line in kept]
            if len(entries) < found.steps:
                raise UnusableFolder(
                    f"{path}: has {len(entries)} entries, its state is of {found.steps}"
                )
            os.truncate(path, sum(len(line.encode()) for line in kept))
        elif any((self._folder / STATE).glob("*.json")):
            raise UnusableFolder(
                f"{self._folder}: no state in it can be read; restore it, or serve to a new folder"
            )
        elif path.exists():
            path.unlink()  # killed before its first commit: nothing was promised to anybody
        self._file = FileIO(path, "a")
        self.count = self._committed = len(entries)
        if found is None:
            return None
        return Past(entries, found.time, found.tensors, found.answers, found.schedule, found.fedast)

    def secret(self) -> bytes:
        """A key that nobody else has; made once."""
        path = self._folder / "secret"
        if not path.exists():
            draft = path.with_suffix(".part")
            draft.unlink(missing_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(32))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        return path.read_bytes()

    def write(self, entry: Mapping[str, Any]) -> None:
        self._unwritten.append(json.dumps(entry, separators=(",", ":")) + "\n")
        self.count += 1

    def commit(
        self,
        now: float,
        tensors: Mapping[str, torch.Tensor],
        answers: Sequence[float],
        schedule: str | None = None,
    ) -> None:
        """All of it on disk, or (if the disk is full, say) an ``OSError`` and all as before."""
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
