"""Random streams as arguments: a counter hashed under a key.

A stream is a 64-bit key and a counter; the n-th number is a mix of both
(SplitMix64's finaliser). Making one costs well under a microsecond and it has no
hidden state, so every purpose, task, client and request can own a stream:
drawing from one never disturbs another, and a stream is checkpointed by writing
down two integers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import MutableSequence
from typing import Any, final

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit integers that scatters neighbours."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _label(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


@final
class Stream:
    __slots__ = ("counter", "key")

    def __init__(self, key: int, counter: int = 0) -> None:
        self.key = key & _MASK
        self.counter = counter

    @classmethod
    def of(cls, seed: int, *path: str | int) -> Stream:
        """The stream for a run's seed and a purpose, such as ``of(7, "delay", "mnist")``."""
        return cls(mix((seed + _GOLDEN) & _MASK)).child(*path)

    def child(self, *path: str | int) -> Stream:
        """An independent stream, named by strings and integers below this one."""
        key = self.key
        for part in path:
            number = _label(part) if isinstance(part, str) else part & _MASK
            key = mix((key + _GOLDEN) & _MASK ^ mix((number + _GOLDEN) & _MASK))
        return Stream(key)

    def at(self, number: int) -> Stream:
        """``child(number)`` for the hot path: one integer, no loop."""
        return Stream(mix((self.key + _GOLDEN) & _MASK ^ mix((number + _GOLDEN) & _MASK)))

    def bits(self) -> int:
        """The next 64 random bits."""
        self.counter += 1
        # mix(), written out: this is called several times per simulated update.
        x = (self.key + self.counter * _GOLDEN) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        return x ^ (x >> 31)

    def uniform(self) -> float:
        """A float in [0, 1)."""
        return (self.bits() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """An integer in [0, n); the bias of multiply-and-shift is below n / 2**64."""
        return (self.bits() * n) >> 64

    def exponential(self) -> float:
        """Exponential with mean 1."""
        return -math.log1p(-self.uniform())

    def normal(self) -> float:
        """Standard normal (Box-Muller, one of the pair)."""
        radius = math.sqrt(2.0 * self.exponential())
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Fisher-Yates, in place."""
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]

    def sample(self, population: int, count: int) -> list[int]:
        """``count`` distinct integers of range(population), in random order, in O(count)."""
        if count > population:
            raise ValueError(f"cannot sample {count} of {population}")
        moved: dict[int, int] = {}
        picks = []
        for i in range(count):
            j = i + self.below(population - i)
            picks.append(moved.get(j, j))
            moved[j] = moved.get(i, i)
        return picks
