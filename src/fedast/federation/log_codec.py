"""Entries of the write-ahead log as lines of JSON.

This is the only module that knows the format on disk: one object per line, ``e`` for the kind of
event, short keys for its fields, ``t`` for the time, ``a`` for the data plane's answers. In the
file that is being written a line also ends with a checksum, ``crc``, of the line and its number:
lines that are damaged, missing or moved are noticed. Logs of version 0.1.0 have the same format,
without ``a`` and ``crc``.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedast.core.protocol import StopReason
from fedast.federation.log_events import (
    ClientJoined,
    ClientLeft,
    ClientPardoned,
    ClientQuarantined,
    ClientReady,
    ClientRested,
    Configured,
    Entry,
    EvaluationReceived,
    LimitSet,
    LogEvent,
    ModelEvaluated,
    ModelPublished,
    ModelRetired,
    ModelRolledBack,
    ModelsGuarded,
    Paused,
    RequestFailed,
    Resumed,
    StrikeRecorded,
    TasksEnded,
    TaskStarted,
    TrainingBegan,
    TrainingFailed,
    UpdateReceived,
    UploadIgnored,
)

_KINDS: Mapping[str, type[LogEvent]] = {
    "config": Configured,
    "join": ClientJoined,
    "leave": ClientLeft,
    "quarantine": ClientQuarantined,
    "start": TrainingBegan,
    "arrive": UpdateReceived,
    "lost": RequestFailed,
    "evaluated": ModelEvaluated,
    "answer": EvaluationReceived,
    "add": TaskStarted,
    "stop": TasksEnded,
    "pause": Paused,
    "resume": Resumed,
    "model": ModelPublished,
    "retire": ModelRetired,
    "failure": TrainingFailed,
    "strike": StrikeRecorded,
    "superseded": UploadIgnored,
    "guard": ModelsGuarded,
    "rollback": ModelRolledBack,
    "limit": LimitSet,
    "rest": ClientRested,
    "ready": ClientReady,
    "pardon": ClientPardoned,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_KEYS = {"client": "c", "request": "r", "work_seconds": "w", "sequence": "place"}
"""Fields whose key is not their name; and the loss of an update is ``l``."""


class BadEntry(ValueError):
    """A line that is not an entry of a write-ahead log; the text says why."""


def _key(kind: type[LogEvent], field: str) -> str:
    if kind is UpdateReceived and field == "loss":
        return "l"
    return _KEYS.get(field, field)


_FIELDS = {
    kind: tuple((field.name, _key(kind, field.name), field.default) for field in fields(kind))
    for kind in _NAMES
}


def encode(entry: Entry) -> str:
    event = entry.event
    kind = type(event)
    table: dict[str, Any] = {"e": _NAMES[kind]}
    for field, key, default in _FIELDS[kind]:
        value = getattr(event, field)
        if value is not None or default is MISSING:
            table[key] = value
    table["t"] = entry.time
    if entry.answers:
        table["a"] = entry.answers
    return json.dumps(table, separators=(",", ":")) + "\n"


def decode(line: str | bytes, *, exact: bool = False) -> Entry:
    """The entry on this line; ``BadEntry`` if it is damaged or from a later version of fedast.

    ``exact``: the line has no checksum, and an unknown key is taken for a sign of damage."""
    try:
        table = json.loads(line)
        kind = _KINDS[table["e"]]
        values = {
            field: table[key]
            for field, key, default in _FIELDS[kind]
            if key in table or default is MISSING
        }
        if kind is TasksEnded:
            values["tasks"] = tuple(values["tasks"])
            values["reason"] = StopReason(values["reason"])
        elif kind is ModelRolledBack:
            values["suspects"] = tuple((request, client) for request, client in values["suspects"])
        if exact and not table.keys() <= {"e", "t", *(key for _, key, _ in _FIELDS[kind])}:
            raise ValueError("it has an unknown key")
        return Entry(table["t"], kind(**values), tuple(table.get("a", ())))
    except (ValueError, KeyError, TypeError) as error:
        raise BadEntry(f"{type(error).__name__}: {error}") from error


_SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n')
_SEAL_LENGTH = len(b',"crc":"01234567"}\n')


def seal(line: bytes, number: int) -> bytes:
    """The line with a checksum of itself and its number in the log."""
    return line[:-2] + b',"crc":"%08x"}\n' % zlib.crc32(line, number & 0xFFFFFFFF)


def sealed(line: bytes) -> bool:
    return _SEAL.fullmatch(line[-_SEAL_LENGTH:]) is not None


def unseal(line: bytes, number: int) -> bytes:
    """The line without its checksum; ``BadEntry`` if that is wrong."""
    found = _SEAL.fullmatch(line[-_SEAL_LENGTH:])
    plain = line[:-_SEAL_LENGTH] + b"}\n"
    if found is None or int(found[1], 16) != zlib.crc32(plain, number & 0xFFFFFFFF):
        raise BadEntry("its checksum is wrong")
    return plain
