"""Long messages travel in parts; here they come together again.

A client chooses the names and numbers of what it uploads, so nothing of them is believed: no more
parts than the longest allowed upload has, each of the one size that it must have, and only so many
uploads begun at a time, for so long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, final

from fedast.core.protocol import ClientId

Key: TypeAlias = tuple[ClientId, str]
_WITHIN = 600.0
"""Seconds in which all parts of an upload must have come."""
_AT_A_TIME = 4
"""Uploads in parts that a client may have begun and not finished."""


def count_of(size: int, part: int) -> int:
    """Into how many parts so many bytes are divided."""
    return max(1, -(-size // part))


@dataclass
class _Assembly:
    """The parts of an upload that have come so far."""

    first: int
    """The place of the part that came first."""
    count: int
    since: float
    parts: dict[int, bytes] = field(default_factory=dict)


@final
class Assemblies:
    def __init__(self, part: int, limit: int) -> None:
        """``part``: bytes of every part but the last; ``limit``: of a whole upload."""
        self._part = part
        self._most = limit // part + 1
        self._begun: dict[Key, _Assembly] = {}

    @property
    def first_place(self) -> int | None:
        """Of all parts that wait for others, the one that came first."""
        return min((assembly.first for assembly in self._begun.values()), default=None)

    def add(
        self, key: Key, number: int, count: int, data: bytes, *, place: int, now: float
    ) -> bytes | None:
        """The whole upload, if this part was the last that it lacked."""
        if not 0 <= number < count <= self._most:
            return None  # no upload that is allowed has so many parts
        for other, begun in list(self._begun.items()):
            if now - begun.since > _WITHIN:
                del self._begun[other]
        mine = [other for other in self._begun if other[0] == key[0]]
        if key not in self._begun and len(mine) >= _AT_A_TIME:
            del self._begun[mine[0]]
        assembly = self._begun.setdefault(key, _Assembly(place, count, now))
        size = len(data)
        fits = size == self._part or (number == count - 1 and size < self._part)
        if count != assembly.count or not fits:
            del self._begun[key]
            return None
        assembly.parts[number] = data
        if len(assembly.parts) < count:
            return None
        del self._begun[key]
        return b"".join(assembly.parts[n] for n in range(count))
