"""Model versions in Ray's object store, and what is said when it or Ray fails."""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from collections.abc import Set
from typing import Any, TypeAlias, final

import torch

from fedast.tasks.task import TrainingFailed

_IDLE = 2**26
"""Bytes of versions that are kept although no job needs them, in case that later ones do."""

_ATTEMPTS = 3
"""To connect to the head, before it is taken to be gone."""

_Place: TypeAlias = tuple[int, int, int]


@final
class SentVersions:
    """Each version is put into the store once, and has a number by which actors know it."""

    def __init__(self) -> None:
        self._versions: OrderedDict[int, tuple[_Place, torch.Tensor, Any]] = OrderedDict()
        self._numbers: dict[_Place, int] = {}
        self._next = 0

    def number(self, base: torch.Tensor) -> int:
        """The tensor is kept with it, so that its place in memory stays its own and tells it from
        others."""
        place = base.data_ptr(), base.numel(), base._version
        number = self._numbers.get(place)
        if number is None:
            self._versions[self._next] = place, base, stored(base.detach().cpu().numpy())
            number = self._numbers[place] = self._next
            self._next += 1
        else:
            self._versions.move_to_end(number)
        return number

    def reference(self, number: int) -> Any:
        return self._versions[number][2]

    def kept(self) -> Set[int]:
        return self._versions.keys()

    def prune(self, needed: Set[int]) -> None:
        """Forget the oldest of those that are not needed."""
        room = _IDLE
        for number in [number for number in reversed(self._versions) if number not in needed]:
            place, base, _ = self._versions[number]
            room -= base.numel() * base.element_size()
            if room < 0:
                del self._versions[number], self._numbers[place]

    def clear(self) -> None:
        self._versions.clear()
        self._numbers.clear()


def stored(value: Any) -> Any:
    """A reference to a value in the object store."""
    import ray

    errors = ray.exceptions
    try:
        return ray.put(value)
    except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
        raise full(error) from None


def reason(error: Exception) -> str:
    return type(error).__name__


def full(error: Exception) -> TrainingFailed:
    return TrainingFailed(
        f"Ray's object store is full ({reason(error)}); make room in memory or on the disk it "
        "spills to (ray memory, df), or start Ray with a larger --object-store-memory; then go on "
        "from the newest checkpoint"
    )


def gone(why: str) -> TrainingFailed:
    return TrainingFailed(
        f"Ray does not answer any more ({why}); start it again, and go on from the newest "
        "checkpoint"
    )


@final
class Head:
    """The head of the cluster. Without it Ray goes on waiting, and says nothing."""

    def __init__(self) -> None:
        import ray

        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._address = host, int(port)

    def check(self) -> None:
        """Raise ``TrainingFailed`` if it does not listen any more."""
        for number in range(_ATTEMPTS):
            try:
                socket.create_connection(self._address, timeout=5).close()
                return
            except OSError as error:
                if number == _ATTEMPTS - 1:
                    why = f"its head at {':'.join(map(str, self._address))}: {error}"
                    raise gone(why) from None
                time.sleep(2)
