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
from pathlib import Path
from typing import Any, TextIO, final

import torch

from fedast.learn.checkpoints import Checkpoint, newest, save

ENTRIES, STATE = "diary.jsonl", "state"


@dataclass(frozen=True)
class Past:
    """What a diary has to say about the time before."""

    entries: Sequence[Mapping[str, Any]]
    time: float
    tensors: Mapping[str, torch.Tensor]
    answers: tuple[float, ...]

    @property
    def place(self) -> int:
        """Of the last upload that is in it."""
        return max((entry.get("place", 0) for entry in self.entries), default=0)


@final
class Diary:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritten: list[str] = []
        self._file: TextIO | None = None
        self.count = 0

    @property
    def dirty(self) -> bool:
        return bool(self._unwritten)

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
                raise ValueError(
                    f"{path}: has {len(entries)} entries, its state is of {found.steps}"
                )
            draft = path.with_suffix(".part")
            with draft.open("w", encoding="utf-8") as file:
                file.writelines(kept)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        elif path.exists():
            path.unlink()  # killed before its first commit: nothing was promised to anybody
        self._file = path.open("a", encoding="utf-8")
        self.count = len(entries)
        if found is None:
            return None
        return Past(entries, found.time, found.tensors, found.answers)

    def write(self, entry: Mapping[str, Any]) -> None:
        self._unwritten.append(json.dumps(entry, separators=(",", ":")) + "\n")
        self.count += 1

    def commit(
        self, now: float, tensors: Mapping[str, torch.Tensor], answers: Sequence[float]
    ) -> None:
        """All of it on disk, or (if the disk is full, say) an ``OSError`` and all as before."""
        assert self._file is not None
        if self._unwritten:
            size = self._file.tell()
            try:
                self._file.writelines(self._unwritten)
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError:
                # What is half written is cut off, and written again by the next commit.
                self._reopen(size)
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
            ),
        )

    def _reopen(self, size: int) -> None:
        path = self._folder / ENTRIES
        os.truncate(path, size)
        self._file = path.open("a", encoding="utf-8")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
