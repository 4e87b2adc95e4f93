"""The server's write-ahead log: what happened, in order, and the tensors as of the last commit.

Theory of operation. Every decision of a server follows from its configuration and the entries of
its log: who joined and left, which updates arrived, which requests failed. ``commit`` makes the
entries so far durable, together with the tensors of that moment (a checkpoint); only then may
uploads be acknowledged. A restarted server brings itself to the last commit and reads on from the
upload after it. Entries after the commit are cut off: they will happen again.

There are two ways to a commit: from a snapshot of the control plane and the entries after it, or
from the first entry on. Entries, checkpoints and snapshots have checksums. If the last commit
cannot be reached because something is damaged, the server uses the last one that can: the log *goes
back*.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import final

import torch

from fedast.federation.log_events import Configured, Entry
from fedast.federation.segments import FIRST, Damaged, Position, Segments
from fedast.federation.snapshots import Mark, Snapshot, Snapshots, Unusable
from fedast.learner.checkpoints import (
    Checkpoint,
    intact,
    numbers,
    read_note,
    save,
    set_aside_after,
)
from fedast.records.files import write_atomically
from fedast.records.run import UnusableFolder
from fedast.version import __version__

FOLDER, ENTRIES, STATE = "diary", FIRST, "state"
"""Names on disk, as version 0.1.0 chose them."""
_SNAPSHOT_ENTRIES = 5_000
"""After so many entries the next snapshot is made earlier."""
_SNAPSHOT_SHARE = 0.02
"""The share of the time that snapshots may take."""


@dataclass(frozen=True)
class Start:
    """One way to the commit: from a snapshot, or from nothing."""

    snapshot: Snapshot | None
    entries: Sequence[Entry]
    """What comes after it."""
    end: Position | None
    """Where the last of them ends; None if the files up to there are damaged."""


@dataclass(frozen=True)
class Past:
    """What a log holds from before a restart."""

    steps: int
    """The number of entries."""
    time: float
    tensors: Mapping[str, torch.Tensor]
    answers: tuple[float, ...]
    """What the data plane answered to an older version, which did not log it."""
    schedule: str | None
    """A hash of the decisions, if an older version recorded it (0.1.0 did not)."""
    chain: str | None
    """A hash of the decisions that can be continued from a snapshot."""
    fedast: str | None
    """The version that wrote it; 0.1.0 did not say."""
    went_back: bool
    """Later commits are lost: updates that they acknowledged have to be trained again."""
    starts: Iterator[Start]
    """The ways to this commit that can be read, the shortest first."""
    whole: Callable[[], Iterator[Start]]
    """The one from the first entry on, if it can be read."""


def configuration(folder: Path) -> Configured | None:
    """What the log in this folder was started with; None without a log. Nothing is changed."""
    for steps in reversed(numbers(folder / STATE)):
        try:
            kept = read_note(folder / STATE, steps).get("config")
            if kept is not None:
                return Configured(**kept)
        except (OSError, ValueError, TypeError):
            continue  # damaged; the log itself says it too
    try:
        entry = Segments(folder).first()
    except Damaged as problem:
        raise UnusableFolder(f"{problem}; {remedy(__version__)}") from problem
    return entry.event if entry is not None and isinstance(entry.event, Configured) else None


def _listed(problems: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(text.partition("; trying")[0] for text in problems[:3]))


def remedy(writer: str | None) -> str:
    """What to do about a log that this version cannot continue. (0.1.0 did not record itself.)"""
    writer = writer or "0.1.0"
    same = writer == __version__
    first = "restore the folder from a backup" if same else f"serve it with fedast {writer}"
    return f"{first}, or serve to a new folder with --out"


@final
class WriteAheadLog:
    def __init__(self, folder: Path, *, snapshot_every: float = 10.0) -> None:
        """``snapshot_every``: seconds between snapshots; more if they take long to make."""
        self._folder = folder
        self._segments = Segments(folder)
        self._snapshots = Snapshots(folder / STATE, self.secret)
        self._snapshot_every = snapshot_every
        self._snapshot_at = 0
        self._next_snapshot = self._rest_until = 0.0
        self._uncommitted: list[Entry] = []
        self._answers: tuple[float, ...] = ()
        self._configured: Configured | None = None
        self.count = 0

    @property
    def dirty(self) -> bool:
        return bool(self._uncommitted)

    @property
    def size(self) -> int:
        """Bytes of entries on disk."""
        return self._segments.size

    def secret(self) -> bytes:
        """The key of this federation's tokens; made once."""
        path = self._folder / "secret"
        if not path.exists():
            write_atomically(path, os.urandom(32), durable=True, mode=0o600)
        return path.read_bytes()

    # --- reading --------------------------------------------------------------------------------

    def open(self, say: Callable[[str], None]) -> Past | None:
        """What is there to continue; ``continue_after`` or, if there is nothing, ``append`` has to
        follow."""
        self._folder.mkdir(parents=True, exist_ok=True)
        committed = numbers(self._folder / STATE)
        if not committed:
            self._segments.begin()  # killed before its first commit: nobody depends on it
            return None
        self._segments.tidy()
        problems: list[str] = []
        for found in intact(self._folder / STATE, problems.append):
            starts = self._starts(found.steps, problems)
            first = next(starts, None)
            if first is None:
                continue
            went_back = found.steps < committed[-1]
            if went_back:
                say(
                    f"the write-ahead log is damaged ({_listed(problems)}); going back to the last "
                    f"whole point, entry {found.steps} at {found.time:.1f} s. What was committed "
                    f"after that (up to entry {committed[-1]}) is lost and is done again"
                )
            self._answers = found.answers
            self._configured = configuration(self._folder)
            return Past(
                steps=found.steps,
                time=found.time,
                tensors=found.tensors,
                answers=found.answers,
                schedule=found.schedule,
                chain=found.chain,
                fedast=found.fedast,
                went_back=went_back,
                starts=chain([first], starts),
                whole=partial(self._from_the_first, found.steps, problems),
            )
        raise UnusableFolder(
            f"{self._folder}: no state in it can be read ({_listed(problems)}); "
            f"{remedy(__version__)}"
        )

    def _starts(self, steps: int, problems: list[str]) -> Iterator[Start]:
        for number in self._snapshots.numbers():
            try:
                if number <= steps:
                    yield self._start(steps, self._snapshots.load(number))
            except (Unusable, Damaged) as problem:
                problems.append(f"snapshot {number}: {problem}")
        yield from self._from_the_first(steps, problems)

    def _from_the_first(self, steps: int, problems: list[str]) -> Iterator[Start]:
        try:
            yield self._start(steps, None)
        except Damaged as problem:
            problems.append(str(problem))

    def _start(self, steps: int, snapshot: Snapshot | None) -> Start:
        after = 0 if snapshot is None else snapshot.steps
        begin = None if snapshot is None else snapshot.position
        found = list(self._segments.read(after, steps, begin))
        return Start(snapshot, [entry for entry, _ in found], found[-1][1] if found else begin)

    def continue_after(self, past: Past, start: Start, say: Callable[[str], None]) -> None:
        """Append after what was replayed; later entries are cut off."""
        self._segments.continue_at(past.steps, start.end)
        damage = self._segments.damage()
        if damage is not None:
            say(
                f"the write-ahead log is damaged ({damage}); a snapshot has what happened until "
                "then, so nothing more is lost. Restore that file from a backup if you can: "
                "another version of fedast would need it"
            )
        self._snapshots.discard_after(past.steps)
        set_aside_after(self._folder / STATE, past.steps)
        self.count = past.steps

    # --- writing --------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        if isinstance(entry.event, Configured):
            self._configured = entry.event
        self._uncommitted.append(entry)
        self.count += 1

    def commit(
        self,
        now: float,
        tensors: Mapping[str, torch.Tensor],
        decisions: str | None = None,
        freeze: Callable[[], tuple[bytes, Mark] | None] = lambda: None,
    ) -> None:
        """Make everything durable; an exception (a full disk, for example) leaves everything as it
        was.

        ``decisions``: a hash of them. ``freeze``: makes a snapshot, if that is possible; called
        when one is due."""
        before = self._segments.end
        self._segments.append(self._uncommitted, self.count - len(self._uncommitted))
        try:
            self._snapshot(freeze)
            save(
                self._folder / STATE,
                Checkpoint(
                    steps=self.count,
                    time=now,
                    wall_seconds=now,
                    tensors=tensors,
                    answers=self._answers,
                    chain=decisions,
                    config=None if self._configured is None else asdict(self._configured),
                    fedast=__version__,
                ),
                keep=self._snapshots.prune(),
            )
        except BaseException:
            self._snapshots.discard_after(self.count - 1)
            self._segments.undo(before)
            raise
        self._uncommitted.clear()
        with suppress(OSError):  # a full disk; it is tried again
            self._segments.compact(self.count)

    def _snapshot(self, freeze: Callable[[], tuple[bytes, Mark] | None]) -> None:
        began = time.monotonic()
        late = began >= self._next_snapshot or self.count - self._snapshot_at >= _SNAPSHOT_ENTRIES
        if not late or began < self._rest_until:
            return
        made = freeze()
        if made is not None:
            payload, events = made
            self._snapshots.save(Snapshot(self.count, self._segments.end, events, payload))
        took = time.monotonic() - began
        self._snapshot_at = self.count
        self._next_snapshot = began + self._snapshot_every
        self._rest_until = began + took / _SNAPSHOT_SHARE

    def close(self) -> None:
        self._segments.close()
