"""What looks like a record under a folder, by names and sizes of files alone."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from fedast.records.lock import LOCK
from fedast.records.run import CONFIG, CURVES, EVENTS, MODELS, RESULT, SERIES
from fedast.records.sweeps import SWEEP, TRIALS

Kind: TypeAlias = Literal["run", "compact", "federation", "sweep"]
_FILES = (CONFIG, RESULT, CURVES, SERIES, EVENTS, LOCK)
_OF_RUN = {MODELS, "checkpoints"}
"""Folders of a run that hold no records and may be large."""
FEDERATION, RUN = "federation.toml", "run"
"""The configuration of a federation, and the folder of its records."""

Stamp: TypeAlias = Mapping[str, tuple[int, int, int]]
"""Of each file that is there: its number on the disk, size and time of change."""


@dataclass(frozen=True, slots=True)
class Found:
    id: str
    name: str
    """Its path below the folder that is shown."""
    path: Path
    """A folder, or the file of a compact record."""
    kind: Kind
    stamp: Stamp

    @property
    def changed(self) -> float:
        """When one of its files was last written, as seconds of the epoch."""
        return max((stamp[2] for stamp in self.stamp.values()), default=0) / 1e9


def find(root: Path, title: str = "") -> Iterator[Found]:
    """The records under a folder; ``title`` goes before their names. Links that lead out of the
    folder are not followed."""
    real = os.path.realpath(root)
    prefix = f"{title}/" if title else ""
    federation = os.path.isfile(os.path.join(real, FEDERATION))

    def found(place: str, relative: str, kind: Kind, stamp: Stamp) -> Found:
        name = prefix + relative if relative else title or Path(real).name
        if name == RUN and federation:  # "run" alone would say nothing
            name = f"{Path(real).name}/{RUN}"
        number = hashlib.blake2b(f"{kind} {place}".encode(), digest_size=6).hexdigest()
        return Found(number, name, Path(place), kind, stamp)

    for place, below, files in os.walk(real):
        is_federation = FEDERATION in files and "nats" in below
        here = set(files)
        is_run = bool(here & {CONFIG, RESULT, SERIES})
        below[:] = sorted(
            name
            for name in below
            if not name.startswith((".", "__")) and not (is_run and name in _OF_RUN)
        )
        relative = os.path.relpath(place, real)
        relative = "" if relative == "." else relative.replace(os.sep, "/")
        if is_federation:  # its keys are nobody's business
            below[:] = [RUN] if RUN in below else []
            yield found(place, relative, "federation", {})
        if SWEEP in here:
            yield found(place, relative, "sweep", _stamp(place, [SWEEP, TRIALS], real))
        if is_run:
            stamp = _stamp(place, [name for name in _FILES if name in here], real)
            yield found(place, relative, "run", stamp)
        for name in sorted(files):
            stem = name.removesuffix(".json")
            if stem != name and f"{stem}.toml" in here:
                stamp = _stamp(place, [name, f"{stem}.toml"], real)
                if name in stamp:
                    below_root = f"{relative}/{stem}" if relative else stem
                    yield found(os.path.join(place, name), below_root, "compact", stamp)


def _stamp(place: str, names: list[str], root: str) -> Stamp:
    stamps = {}
    for name in names:
        path = os.path.join(place, name)
        try:
            if os.path.islink(path) and not _within(os.path.realpath(path), root):
                continue
            status = os.stat(path)
        except OSError:
            continue  # it has just gone
        stamps[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return stamps


def _within(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root
