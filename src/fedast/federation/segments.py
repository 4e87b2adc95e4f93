"""The files of the write-ahead log.

Entries are appended to one file. When it has become long, it is compressed (``.gz``), and another
is begun whose name says how many entries came before it. A segment ends where the next one begins:
whatever it has after that does not count. Compressed lines have no checksums of their own, since
gzip has one for the file.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedIOBase, FileIO
from pathlib import Path
from typing import final

from fedast.federation.log_codec import BadEntry, decode, encode, seal, sealed, unseal
from fedast.federation.log_events import Entry
from fedast.records.files import write_atomically

FIRST = "diary.jsonl"
"""Named as version 0.1.0 did."""
_NAME = re.compile(r"diary(?:-(\d{12,}))?\.jsonl(\.gz)?")
_ENTRIES = 20_000
"""A segment with so many is compressed."""


class Damaged(Exception):
    """An entry cannot be read; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where an entry begins: the number of entries before its segment, and bytes in it."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Segment:
    start: int
    path: Path

    @property
    def compressed(self) -> bool:
        return self.path.suffix == ".gz"


@final
class Segments:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: FileIO | None = None
        self._start = 0
        self.end = Position(0, 0)
        """Of everything that was appended."""

    # --- reading --------------------------------------------------------------------------------

    def read(
        self, after: int, until: int, position: Position | None = None
    ) -> Iterator[tuple[Entry, Position]]:
        """Entries number ``after + 1`` to ``until``, each with the position behind it.

        ``position``: where the first of them begins, if that is known: then it does not matter
        what is before it. Raises ``Damaged``."""
        segments = self._segments()
        number = after
        for place, segment in enumerate(segments):
            last = segments[place + 1].start if place + 1 < len(segments) else until
            if last <= number or number >= until:
                continue
            known = position is not None and position.segment == segment.start
            offset = position.offset if position is not None and known else 0
            skip = 0 if offset and not segment.compressed else number - segment.start
            if segment.compressed:
                offset = 0
            for entry, end in self._lines(segment, number, min(last, until), skip, offset):
                yield entry, Position(segment.start, end)
            number = min(last, until)
        if number < until:
            raise Damaged(f"{self._folder}: entry {number + 1} is missing")

    def _lines(
        self, segment: _Segment, number: int, until: int, skip: int, offset: int
    ) -> Iterator[tuple[Entry, int]]:
        path = segment.path
        checked = offset > 0  # whether lines must have a checksum: those of older versions have not
        try:
            with _opened(segment) as file:
                file.seek(offset)
                for line in file:
                    offset += len(line)
                    if skip:
                        skip -= 1
                        checked = checked or sealed(line)
                        continue
                    number += 1
                    if segment.compressed:
                        yield decode(line), offset
                    elif checked or sealed(line):
                        checked = True
                        yield decode(unseal(line, number)), offset
                    else:
                        yield decode(line, exact=True), offset
                    if number == until:
                        return
        except BadEntry as error:
            raise Damaged(
                f"{path}, line {number - segment.start}: is not an entry of a write-ahead log "
                f"({error})"
            ) from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Damaged(f"{path}: {error}") from error
        except OSError as error:
            raise Damaged(f"{path}: {error.strerror}") from error
        raise Damaged(f"{path}: ends after entry {number}, before entry {until}")

    def first(self) -> Entry | None:
        """The first entry; None if there is no log. Nothing is changed."""
        segments = self._segments()
        if not segments or segments[0].start > 0:
            return None
        with _opened(segments[0]) as file:
            line = file.readline()
        if not line.endswith(b"\n"):
            return None
        for entry, _ in self.read(0, 1):
            return entry
        return None

    def damage(self) -> str | None:
        """What is damaged, if anything is, whether it is needed or not. (Entries of older versions
        have no checksums.)"""
        for segment in self._segments():
            number, checked = segment.start, False
            try:
                with _opened(segment) as file:
                    for number, line in enumerate(file, segment.start + 1):
                        checked = checked or sealed(line)
                        if checked and not segment.compressed:
                            unseal(line, number)
            except (BadEntry, EOFError, OSError, zlib.error) as error:
                return f"{segment.path}, line {number - segment.start}: {error}"
        return None

    def _segments(self) -> list[_Segment]:
        found: dict[int, _Segment] = {}
        for path in sorted(self._folder.glob("diary*")):  # the compressed one of a pair comes last
            match = _NAME.fullmatch(path.name)
            if match is not None:
                start = int(match[1] or 0)
                found[start] = _Segment(start, path)
        return [found[start] for start in sorted(found)]

    # --- writing --------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes on disk, compressed or not."""
        return sum(segment.path.stat().st_size for segment in self._segments())

    def tidy(self) -> None:
        """Finish a compression that a crash interrupted before its end."""
        for segment in self._segments():
            if segment.compressed:
                segment.path.with_suffix("").unlink(missing_ok=True)

    def begin(self) -> None:
        """Start a new log; an existing one is useless and is removed."""
        for segment in self._segments():
            segment.path.unlink()
        self._open(0)

    def continue_at(self, number: int, end: Position | None) -> None:
        """Append after this entry; whatever comes after it is cut off.

        ``end``: where it ends, if it was read; else a new segment is begun."""
        for segment in self._segments():
            if segment.start > number:  # kept for whoever wants to look into it
                segment.path.replace(segment.path.with_name(f"{segment.path.name}.damaged"))
        path = None if end is None else self._path(end.segment)
        if end is None or path is None or not path.exists() or path.stat().st_size < end.offset:
            end = Position(number, 0)
            self._path(number).touch()
        os.truncate(self._path(end.segment), end.offset)
        self._open(end.segment)

    def _open(self, start: int) -> None:
        self.close()
        self._start = start
        path = self._path(start)
        self._file = FileIO(path, "a")
        self.end = Position(start, os.fstat(self._file.fileno()).st_size)

    def _path(self, start: int) -> Path:
        return self._folder / (FIRST if start == 0 else f"diary-{start:012d}.jsonl")

    def append(self, entries: Sequence[Entry], before: int) -> None:
        """Write entries durably, ``before`` of which are there; an ``OSError`` leaves all as it
        was."""
        assert self._file is not None
        data = b"".join(
            seal(encode(entry).encode(), number) for number, entry in enumerate(entries, before + 1)
        )
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:]) or 0
            os.fsync(self._file.fileno())
        except OSError:
            self.undo()
            raise
        self.end = Position(self._start, self.end.offset + len(data))

    def undo(self, end: Position | None = None) -> None:
        """Cut off what was written since; it is written again next time."""
        assert self._file is not None
        self.end = end or self.end
        self._file.truncate(self.end.offset)

    def compact(self, count: int) -> None:
        """Compress the segment if it is long; ``count``: all entries so far, which are durable."""
        if count - self._start < _ENTRIES:
            return
        path = self._path(self._start)
        with path.open("rb") as file:
            try:
                lines = [
                    unseal(line, number) if sealed(line) else line
                    for number, line in enumerate(file, self._start + 1)
                ]
            except BadEntry:  # the disk has damaged it: as it is, more of it can be saved
                self._open(count)
                return
        archive = path.with_name(f"{path.name}.gz")
        write_atomically(archive, gzip.compress(b"".join(lines), mtime=0), durable=True)
        self._open(count)
        path.unlink()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _opened(segment: _Segment) -> BufferedIOBase:
    return (gzip.open if segment.compressed else open)(segment.path, "rb")
