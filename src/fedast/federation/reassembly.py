"""Chunk reassembly: long uploads arrive as several messages and are put together again.

Uploads are messages in one sequence; a long one is several chunks, the first chunk first. After a
crash the sequence is read again from its start, so a message may be deleted only when every message
up to it is done with: its upload was acknowledged, or will never be complete.

A client chooses the names and numbers of what it uploads, so they are not trusted: there may be no
more chunks than the longest allowed upload has, each of exactly the right size, and a client may
have only a few incomplete uploads, for a limited time, and only while they do not block the room
for others.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TypeAlias, final

from fedast.core.protocol import ClientId

Key: TypeAlias = tuple[ClientId, str]
_TIMEOUT = 600.0
"""Seconds in which all chunks of an upload must arrive."""
_INCOMPLETE_PER_CLIENT = 4
_BLOCKED_SHARE = 0.75
"""An incomplete upload keeps everything after its first chunk from being deleted. It is given up
when that takes more than this share of the room."""


def chunk_count(size: int, chunk_size: int) -> int:
    """How many chunks an upload of ``size`` bytes has."""
    return max(1, -(-size // chunk_size))


@dataclass
class _Incomplete:
    first: int
    """The sequence number of its first chunk."""
    bytes_before: int
    """Bytes that had been read before it."""
    count: int
    since: float
    chunks: list[bytes] = field(default_factory=list)


@final
class ChunkReassembly:
    def __init__(
        self, chunk_size: int, limit: int, *, after: int = 0, room: int | None = None
    ) -> None:
        """``chunk_size``: bytes of every chunk but the last; ``limit``: of a whole upload;
        ``after``: the last upload acknowledged before a restart; ``room``: bytes that the stream
        may hold."""
        self._chunk_size = chunk_size
        self._most = limit // chunk_size + 1
        self._after = after
        self._room = room
        self._read = 0
        self._bytes = 0
        self._incomplete: dict[Key, _Incomplete] = {}
        self.refused = 0
        """Messages that fit nowhere, and incomplete uploads that were given up for new ones."""
        self._leftovers: Counter[ClientId] = Counter()
        """Whole chunks of uploads that were given up, since the client's last complete upload."""
        self._complete: deque[tuple[int, int]] = deque()
        """Complete uploads that are not acknowledged: the sequence numbers of their last and first
        chunks."""

    def take(
        self, sequence: int, key: Key, number: int, count: int, data: bytes, now: float
    ) -> bytes | None:
        """Add a chunk; the whole upload, if this was its last missing chunk."""
        before = self._bytes
        self.pass_over(sequence, len(data))
        if not 0 <= number < count <= self._most:
            self.refused += 1
            return None  # no allowed upload has so many chunks
        if count == 1:
            return self._completed(sequence, sequence, data)
        self._expire(now)
        if key not in self._incomplete:
            if number > 0:
                # The rest of one that was given up is no offence.
                self._leftovers[key[0]] += 1
                if len(data) != self._chunk_size or self._leftovers[key[0]] > self._most:
                    self.refused += 1
                return None  # its upload was acknowledged or given up
            mine = [other for other in self._incomplete if other[0] == key[0]]
            if len(mine) >= _INCOMPLETE_PER_CLIENT:
                self.refused += 1
                del self._incomplete[mine[0]]
            self._incomplete[key] = _Incomplete(sequence, before, count, now)
        upload = self._incomplete[key]
        if number < len(upload.chunks):
            self.refused += 1
            return None  # a duplicate
        size = len(data)
        fits = size == self._chunk_size or (number == count - 1 and size < self._chunk_size)
        if number > len(upload.chunks) or count != upload.count or not fits:
            self.refused += 1
            del self._incomplete[key]
            return None
        upload.chunks.append(data)
        if len(upload.chunks) < count:
            return None
        del self._incomplete[key], self._leftovers[key[0]]
        return self._completed(sequence, upload.first, b"".join(upload.chunks))

    def pass_over(self, sequence: int, size: int) -> None:
        """Skip a message that is not a chunk of any upload."""
        self._read = sequence
        self._bytes += size

    def acknowledge(self, sequence: int) -> None:
        """Uploads up to this sequence number are not needed any more."""
        while self._complete and self._complete[0][0] <= sequence:
            self._complete.popleft()

    def renumber(self, after: int) -> None:
        """From now on all is read again, with numbers above ``after``. (Chunks of incomplete
        uploads are kept: they may be gone where they came from.)"""
        self._after = self._read = after
        self._complete.clear()
        for upload in self._incomplete.values():
            upload.first = after + 1

    def needed_from(self, now: float) -> int:
        """The first sequence number that is needed after a crash; messages before it may go."""
        self._expire(now)
        firsts = [first for _, first in self._complete]
        firsts += [upload.first for upload in self._incomplete.values()]
        return min(firsts, default=self._read + 1)

    def _completed(self, sequence: int, first: int, data: bytes) -> bytes | None:
        if sequence <= self._after:
            return None
        self._complete.append((sequence, first))
        return data

    def _expire(self, now: float) -> None:
        for key, upload in list(self._incomplete.items()):
            behind = self._bytes - upload.bytes_before
            blocks = self._room is not None and behind > _BLOCKED_SHARE * self._room
            if blocks or now - upload.since > _TIMEOUT:
                del self._incomplete[key]
