"""What has been read of a stream of uploads: parts come together, and what is needed is known.

Uploads are messages in one order, long ones in several parts, the first part first. They are read
again from the start of the stream after a crash, so a message may go only when everything up to it
is done with: the upload that it is part of is acknowledged, or nothing will come of it.

A client chooses the names and numbers of what it uploads, so nothing of them is believed: no more
parts than the longest allowed upload has, each of the one size that it must have, and only so many
uploads begun at a time, for so long, while there is room for what comes after them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias, final

from fedast.core.protocol import ClientId

Key: TypeAlias = tuple[ClientId, str]
_WITHIN = 600.0
"""Seconds in which all parts of an upload must have come."""
_AT_A_TIME = 4
"""Uploads in parts that a client may have begun and not finished."""
_HELD_BACK = 0.75
"""So much of the room may be taken by what came after the first part of an unfinished upload."""


def count_of(size: int, part: int) -> int:
    """Into how many parts so many bytes are divided."""
    return max(1, -(-size // part))


@dataclass
class _Begun:
    """The parts of an upload that have come so far."""

    first: int
    """The sequence of the part that came first."""
    before: int
    """Bytes that had been read before it."""
    count: int
    since: float
    parts: list[bytes] = field(default_factory=list)


@final
class ChunkReassembly:
    def __init__(self, part: int, limit: int, *, after: int = 0, room: int | None = None) -> None:
        """``part``: bytes of every part but the last; ``limit``: of a whole upload; ``after``: the
        last upload that was acknowledged before a restart; ``room``: bytes that the stream has."""
        self._part = part
        self._most = limit // part + 1
        self._after = after
        self._room = room
        self._read = 0
        self._bytes = 0
        self._begun: dict[Key, _Begun] = {}
        self._whole: deque[tuple[int, int]] = deque()
        """Uploads that are complete and not settled: their sequences, and those of their first
        parts."""

    def take(
        self, sequence: int, key: Key, number: int, count: int, data: bytes, now: float
    ) -> bytes | None:
        """The whole upload, if this part was the last that it lacked."""
        before = self._bytes
        self.pass_over(sequence, len(data))
        if not 0 <= number < count <= self._most:
            return None  # no upload that is allowed has so many parts
        if count == 1:
            return self._completed(sequence, sequence, data)
        self._expire(now)
        if key not in self._begun:
            if number > 0:
                return None  # what it is part of was acknowledged, or given up
            mine = [other for other in self._begun if other[0] == key[0]]
            if len(mine) >= _AT_A_TIME:
                del self._begun[mine[0]]
            self._begun[key] = _Begun(sequence, before, count, now)
        begun = self._begun[key]
        if number < len(begun.parts):
            return None  # a second time
        size = len(data)
        fits = size == self._part or (number == count - 1 and size < self._part)
        if number > len(begun.parts) or count != begun.count or not fits:
            del self._begun[key]
            return None
        begun.parts.append(data)
        if len(begun.parts) < count:
            return None
        del self._begun[key]
        return self._completed(sequence, begun.first, b"".join(begun.parts))

    def pass_over(self, sequence: int, size: int) -> None:
        """A message that is of no use to anybody."""
        self._read = sequence
        self._bytes += size

    def acknowledge(self, sequence: int) -> None:
        """Uploads up to this sequence are not needed any more."""
        while self._whole and self._whole[0][0] <= sequence:
            self._whole.popleft()

    def needed_from(self, now: float) -> int:
        """The first sequence that would be read again after a crash; what is before it may go."""
        self._expire(now)
        firsts = [first for _, first in self._whole]
        firsts += [begun.first for begun in self._begun.values()]
        return min(firsts, default=self._read + 1)

    def _completed(self, sequence: int, first: int, data: bytes) -> bytes | None:
        if sequence <= self._after:
            return None
        self._whole.append((sequence, first))
        return data

    def _expire(self, now: float) -> None:
        for key, begun in list(self._begun.items()):
            held = self._bytes - begun.before
            jammed = self._room is not None and held > _HELD_BACK * self._room
            if jammed or now - begun.since > _WITHIN:
                del self._begun[key]
