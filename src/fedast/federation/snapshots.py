"""Snapshots of the control plane, so that a restart need not replay the log from its beginning.

A snapshot holds the attributes of the objects that replaying the log would have brought to this
point: the server's state, the driver, the algorithm, the pool, the numbers of the records. It is a
pickle, which is the only way to store an algorithm that somebody else wrote; so it is authenticated
with the federation's secret before it is loaded. What the configuration determines (functions such
as a staleness weight) is not in it: a restarted server gets that from its configuration. A snapshot
is only a short cut: if there is no usable one, the log is replayed.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, final

from fedast.federation.segments import Position
from fedast.records.files import write_atomically
from fedast.version import __version__

_SCHEMA = 2
"""Changes whenever an object that is stored gets other attributes within one version."""
_DEPTH = 3
_KEPT = 2


class Unusable(Exception):
    """A snapshot that cannot be made or taken up; the text says why."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the records were written: the length of events.jsonl, and a checksum of it."""

    size: int
    crc: int


@dataclass(frozen=True)
class Snapshot:
    steps: int
    """Entries of the log that led to it."""
    position: Position
    """Where the next entry begins."""
    events: Mark
    payload: bytes


class Bookkeeping(Protocol):
    """What a learner knows beside tensors."""

    def books(self) -> Any: ...

    def take_up(self, books: Any) -> None: ...


@final
class ControlPlane:
    """The objects whose attributes make up a snapshot."""

    def __init__(
        self,
        kept: Mapping[str, object],
        outside: Mapping[str, object],
        learner: Bookkeeping,
    ) -> None:
        """``kept``: objects whose attributes are stored. ``outside``: objects that they refer to
        and that are not stored. All of them keep their identity."""
        self._kept = kept
        self._learner = learner
        self._named = {**kept, **outside}
        for name, thing in kept.items():
            self._named.update(_functions(thing, name, _DEPTH))

    def freeze(self) -> bytes:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, {id(thing): name for name, thing in self._named.items()})
        try:
            attributes = {name: vars(thing) for name, thing in self._kept.items()}
            pickler.dump((attributes, self._learner.books()))
        except Exception as error:  # whatever an algorithm of somebody else's raises
            raise Unusable(f"{type(error).__name__}: {error}") from error
        return buffer.getvalue()

    def thaw(self, payload: bytes) -> None:
        """Bring everything to where it was; only for what ``Snapshots`` has authenticated."""
        try:
            attributes, books = _Unpickler(io.BytesIO(payload), self._named).load()
            if attributes.keys() != self._kept.keys():
                raise Unusable("it is of other objects")
        except Unusable:
            raise
        except Exception as error:  # a class that was moved or changed, for instance
            raise Unusable(f"{type(error).__name__}: {error}") from error
        for name, thing in self._kept.items():
            vars(thing).clear()
            vars(thing).update(attributes[name])
        self._learner.take_up(books)


def _functions(thing: object, name: str, depth: int) -> Iterator[tuple[str, object]]:
    """Functions that an object has as attributes, or that its attributes have, by their path."""
    for key, value in getattr(thing, "__dict__", {}).items():
        if isinstance(value, FunctionType):
            yield f"{name}.{key}", value
        elif depth > 1 and type(value).__module__ != "builtins":
            yield from _functions(value, f"{name}.{key}", depth - 1)


@final
class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._names = names

    def persistent_id(self, obj: Any) -> str | None:
        return self._names.get(id(obj))


@final
class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, named: Mapping[str, object]) -> None:
        super().__init__(file)
        self._named = named

    def persistent_load(self, pid: str) -> object:
        return self._named[pid]


@final
class Snapshots:
    """The snapshots in a folder, one file each beside the checkpoint of the same step."""

    def __init__(self, folder: Path, secret: Callable[[], bytes]) -> None:
        self._folder = folder
        self._secret = secret

    def save(self, snapshot: Snapshot) -> None:
        about = {
            "schema": _SCHEMA,
            "fedast": __version__,
            "steps": snapshot.steps,
            "position": asdict(snapshot.position),
            "events": asdict(snapshot.events),
        }
        body = json.dumps(about).encode() + b"\n" + snapshot.payload
        content = self._code(body) + b"\n" + body
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(snapshot.steps), content, durable=True, mode=0o600)

    def load(self, steps: int) -> Snapshot:
        """``Unusable`` if it is damaged, not ours, or of another version of fedast."""
        try:
            code, _, body = self._path(steps).read_bytes().partition(b"\n")
        except OSError as error:
            raise Unusable(str(error.strerror)) from error
        if not hmac.compare_digest(code, self._code(body)):
            raise Unusable("it is damaged")
        head, _, payload = body.partition(b"\n")
        about = json.loads(head)
        if (about["schema"], about["fedast"]) != (_SCHEMA, __version__):
            raise Unusable(f"it is of fedast {about['fedast']}")
        if about["steps"] != steps:
            raise Unusable("it is of another step")
        return Snapshot(steps, Position(**about["position"]), Mark(**about["events"]), payload)

    def numbers(self) -> list[int]:
        """The steps that have one, usable or not, newest first."""
        found = (int(path.stem) for path in self._folder.glob("*.state") if path.stem.isdecimal())
        return sorted(found, reverse=True)

    def prune(self) -> list[int]:
        """Delete all but the newest; the steps of those that are left."""
        kept = self.numbers()[:_KEPT]
        for steps in self.numbers()[_KEPT:]:
            self._path(steps).unlink()
        return kept

    def discard_after(self, steps: int) -> None:
        """The log went back: later ones belong to events that are no longer in it."""
        for number in self.numbers():
            if number > steps:
                self._path(number).unlink()

    def _path(self, steps: int) -> Path:
        return self._folder / f"{steps:012d}.state"

    def _code(self, body: bytes) -> bytes:
        key = hmac.digest(self._secret(), b"fedast snapshot", hashlib.sha256)
        return hmac.new(key, body, hashlib.sha256).hexdigest().encode()
