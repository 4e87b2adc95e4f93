"""A hash of a run's schedule: every command and its time.

Two runs with the same hash made the same decisions. Measurements (losses, metrics, variances) are
not part of it, and times are rounded to six digits, so that another machine's logarithm does not
change it.
"""

from __future__ import annotations

import hashlib
from typing import assert_never, final

from fedast.core.protocol import (
    Accept,
    Aggregate,
    ClientId,
    Command,
    Dispatch,
    Drop,
    Evaluate,
    Evaluated,
    Finish,
    Ignore,
    MeasureVariances,
    Reallocate,
    RequestId,
)


def _line(now: float, command: Command) -> bytes:
    # Spelled out: names of classes and fields may change, the hashes on disk may not.
    match command:
        case Dispatch():
            text = f"send {command.request} {command.task} {command.client} {command.version}"
        case Accept():
            text = f"accept {command.request} {command.staleness} {command.counted:d}"
        case Aggregate():
            text = f"step {command.task} {command.round} {command.requests}"
        case Drop():
            text = f"drop {command.request} {command.reason.value}"
        case Ignore():
            text = f"ignore {command.request}"
        case Reallocate():
            text = f"allocate {sorted(command.targets.items())}"
        case Evaluate():
            text = f"evaluate {command.task} {command.round}"
        case MeasureVariances():
            text = f"measure {command.tasks}"
        case Finish():
            text = f"finish {command.task} {command.reason.value}"
        case _:
            assert_never(command)
    return f"{now:.6g} {text}\n".encode()


@final
class Schedule:
    """An observer that hashes every command as it is executed."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def digest(self) -> str:
        """The hash of everything so far."""
        return self._hash.hexdigest()

    def commanded(self, now: float, command: Command) -> None:
        self._hash.update(_line(now, command))

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        self._hash.update(f"{now:.6g} start {request} {client}\n".encode())

    def evaluated(self, now: float, event: Evaluated) -> None:
        pass


@final
class ScheduleChain:
    """The same as a chain: each command is hashed together with the hash before it, so that the
    hash of a schedule can be continued without its beginning."""

    def __init__(self) -> None:
        self.digest = ""

    def commanded(self, now: float, command: Command) -> None:
        text = self.digest.encode() + _line(now, command)
        self.digest = hashlib.blake2b(text, digest_size=16).hexdigest()

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        pass
