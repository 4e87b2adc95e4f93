"""Writes ``series.jsonl`` (``series`` reads it).

Theory of operation. Decisions and evaluations are written as they happen, samples of the state more
and more seldom as the run gets longer, so the file grows with the logarithm of the run's length.

A run that is taken up again replays its past. The writer is silent until then; afterwards it finds
in the numbers of the run which rows of the file still hold, cuts off the rest, and goes on.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from fedast.core.protocol import (
    Accept,
    Algorithm,
    ClientId,
    Command,
    Dispatch,
    Evaluated,
    Finish,
    Reallocate,
    RequestId,
    TaskName,
)
from fedast.records.events import finite
from fedast.records.metrics import RunMetrics
from fedast.records.run import SERIES
from fedast.records.series import VERSION, Row, parsed
from fedast.version import __version__

_DECIDED = frozenset("erf")
"""Kinds of rows that follow from the run's decisions and evaluations alone."""

Profile: TypeAlias = Callable[[], Mapping[str, float]]
"""Where the real time went so far: seconds by "train", "evaluate" and "aggregate"."""

_UPDATES, _SHARE = 20, 0.005
"""Between samples: updates, and a part of the simulated time."""
_SECONDS, _REAL_SHARE, _LONGEST = 2.0, 0.002, 300.0
"""Between samples, in real time: at least, as a part of the time so far, at most."""
_TOTALS_SHARE, _TOTALS_LONGEST = 0.05, 3 * 3600.0
_FLUSH = 0.2

log = logging.getLogger("fedast.run")
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def header(
    run_metrics: RunMetrics,
    *,
    algorithm: str,
    synchronous: bool,
    seed: int,
    clients: int,
    metrics: Mapping[TaskName, str],
    simulated: bool,
    groups: tuple[Sequence[float], Sequence[int]] | None = None,
) -> dict[str, Any]:
    """The first line. ``groups``: speed factors, and the group of each client."""
    tasks = {}
    for name, task in run_metrics.tasks.items():
        spec = task.spec
        tasks[name] = {
            "metric": metrics[name],
            "target": spec.target,
            "higher": spec.higher_is_better,
            "requests": None if synchronous else spec.active_requests,
            "buffer": None if synchronous else spec.buffer_size,
        }
    line = {
        "series": VERSION,
        "fedast": __version__,
        "algorithm": algorithm,
        "seed": seed,
        "clients": clients,
        "began": round(time.time(), 3),
        "time": "simulated" if simulated else "seconds",
        "tasks": tasks,
    }
    if groups is not None and len(groups[0]) > 1:
        line["groups"] = {"names": [f"×{factor:g}" for factor in groups[0]], "of": list(groups[1])}
    return line


@final
class SeriesWriter:
    """An observer that writes the series of a run to its folder, after ``begin`` or ``go_on``."""

    def __init__(
        self,
        folder: Path,
        head: Mapping[str, Any],
        algorithm: Algorithm,
        run_metrics: RunMetrics,
        averaged: Collection[TaskName] = (),
        profile: Profile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``run_metrics`` must observe the run before this does. ``averaged``: tasks of which an
        average of the models is evaluated."""
        self._path = folder / SERIES
        self._head = head
        self._algorithm = algorithm
        self._run_metrics = run_metrics
        self._averaged = frozenset(averaged)
        self._profile = profile
        self._clock = clock
        self._file: _Appended | None = None
        self._began = self._offset = 0.0
        self._sampled: tuple[float, int] = (0.0, 0)
        """The time and the updates of the last sample."""
        self._sample_at = self._totals_at = self._look_at = 0.0
        self._names = _Encoded()
        self._spent: Mapping[str, float] = {}
        """Where the real time went before this process began."""

    # --- beginning and ending ---------------------------------------------------------------------

    def begin(self) -> None:
        """A new file."""
        self._file = _Appended(self._path, 0)
        self._start(self._head)
        self._file.append(_encode(self._head))
        self._file.flush(self._began)

    def go_on(self) -> None:
        """Go on with the file of a run that has been taken up again, if there is one."""
        size, rows = _still_true(self._path, self._run_metrics)
        head: Mapping[str, Any] = rows.pop(0) if rows else self._head
        self._file = _Appended(self._path, size)
        self._start(head)
        if not size:
            self._file.append(_encode(head))
        for row in _missing(rows, self._run_metrics):
            self._row(row[0], *row[1:])
        for row in rows:
            if row[0] == "s":
                self._sampled = row[2], row[3]
            elif row[0] == "p":
                self._spent = row[3]
        now = self._run_metrics.now
        if now or rows:
            self._row("x", now, "resumed")
            self._totals(now, self._began)
        self._file.flush(self._began)

    def _start(self, head: Mapping[str, Any]) -> None:
        self._began = self._clock()
        self._offset = max(0.0, time.time() - head["began"]) - self._began
        self._sample_at = self._totals_at = self._began + _SECONDS

    def end(self, how: Literal["ended", "interrupted"]) -> None:
        """The last rows."""
        if self._file is not None:
            now, moment = self._run_metrics.now, self._clock()
            self._sample(now, moment)
            self._totals(now, moment)
            self._row("x", now, how)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- what it sees -----------------------------------------------------------------------------

    def commanded(self, now: float, command: Command) -> None:
        if self._file is None or type(command) is Dispatch:
            return  # (every other command is of its time just as well, and there are half as many)
        due = False
        if type(command) is Accept:
            time_, updates = self._sampled
            due = self._run_metrics.updates - updates >= _UPDATES and now - time_ >= _SHARE * now
        elif isinstance(command, Reallocate):
            self._row("r", now, command.cause.value, dict(command.targets), dict(command.buffers))
        elif isinstance(command, Finish):
            self._row("f", now, command.task, command.reason.value)
        moment = self._clock()
        if due or moment >= self._look_at:
            if due or moment >= self._sample_at:
                self._sample(now, moment)
            if moment >= self._totals_at:
                self._totals(now, moment)
            self._file.flush(moment, _FLUSH)
            self._look_at = min(self._sample_at, self._totals_at, moment + _FLUSH)

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        if self._file is not None:
            model = "average" if event.task in self._averaged else "raw"
            value, loss = _number(event.metric), _number(event.loss)
            moment = self._clock()
            # As _row would write it, in a fraction of the time: most rows are evaluations.
            self._file.append(
                f'["e",{self._seconds(moment)},{now!r},{self._names[event.task]},'
                f'{event.round},"{model}",{value},{loss}]'
            )
            self._file.flush(moment, _FLUSH)

    # --- what it writes ---------------------------------------------------------------------------

    def _sample(self, now: float, moment: float) -> None:
        tasks = {}
        for status in self._algorithm.status():
            task = self._run_metrics.tasks[status.name]
            tasks[status.name] = [
                status.round,
                status.in_flight,
                status.active_requests,
                status.buffered,
                status.buffer_size or None,
                task.updates,
                task.staleness_sum,
            ]
        self._row("s", now, self._run_metrics.updates, tasks)
        self._sampled = now, self._run_metrics.updates
        self._sample_at = moment + _interval(moment - self._began, _REAL_SHARE, _LONGEST)

    def _totals(self, now: float, moment: float) -> None:
        metrics = self._run_metrics
        staleness = {name: task.staleness for name, task in metrics.tasks.items()}
        self._row("h", now, staleness, {"sent": metrics.sent, "counted": metrics.counted})
        if self._profile is not None:
            spent = dict(self._profile())
            spent["other"] = max(0.0, moment - self._began - sum(spent.values()))
            whole = {k: round(v + self._spent.get(k, 0.0), 3) for k, v in spent.items()}
            self._row("p", now, whole)
        self._totals_at = moment + _interval(moment - self._began, _TOTALS_SHARE, _TOTALS_LONGEST)

    def _row(self, kind: str, now: float, *items: object) -> None:
        assert self._file is not None
        self._file.append(_encode((kind, self._seconds(self._clock()), now, *items)))

    def _seconds(self, moment: float) -> float:
        """Of real time since the run began."""
        return round(moment + self._offset, 3)


def _number(value: float) -> str:
    """As JSON."""
    return repr(float(value)) if math.isfinite(value) else "null"


@final
class _Encoded(dict[str, str]):
    """Strings as JSON."""

    def __missing__(self, text: str) -> str:
        self[text] = _encode(text)
        return self[text]


def _interval(elapsed: float, share: float, longest: float) -> float:
    return min(longest, max(_SECONDS, share * elapsed))


@final
class _Appended:
    """A file that lines are appended to. While the disk does not take them, they wait: a record
    for people who watch must not end a run."""

    def __init__(self, path: Path, size: int) -> None:
        """``size``: how much of the file is kept."""
        self._file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")
        self._file.truncate(size)
        self._file.seek(size)
        self._size = size
        self.waiting: list[str] = []
        self._flushed = 0.0
        self._troubled = False

    def append(self, line: str) -> None:
        self.waiting.append(line)

    def flush(self, moment: float, every: float = 0.0) -> None:
        """Write what is waiting, if the last time was so many seconds ago."""
        if not self.waiting or moment - self._flushed < every:
            return
        self._flushed = moment
        data = "".join(f"{line}\n" for line in self.waiting).encode()
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError as error:
            if not self._troubled:
                log.warning("%s cannot be written: %s; it is tried again", SERIES, error)
            self._troubled = True
            self._file.truncate(self._size)
            self._file.seek(self._size)
            return
        self._troubled = False
        self.waiting.clear()
        self._size += len(data)

    def close(self) -> None:
        self.flush(self._flushed)
        self._file.close()


# --- going on -------------------------------------------------------------------------------


def _still_true(path: Path, run_metrics: RunMetrics) -> tuple[int, list[Row]]:
    """How much of a file holds for a run that is at this point, in bytes, and its rows."""
    decided = run_metrics.reallocations + sum(
        len(task.curve) + (task.finish_reason is not None) for task in run_metrics.tasks.values()
    )
    size, rows = 0, list[Row]()
    try:
        with path.open("rb") as file:
            for line in file:
                row = parsed(line)
                if not rows and not (isinstance(row, dict) and row["series"] == VERSION):
                    return 0, []
                if isinstance(row, list):
                    if row[0] in _DECIDED:
                        decided -= 1
                    if decided < 0 or (decided == 0 and _undone(row, run_metrics)):
                        break
                if not line.endswith(b"\n"):
                    break
                size += len(line)
                if row is not None:
                    rows.append(row)
    except FileNotFoundError:
        pass
    return size, rows


def _undone(row: Row, run_metrics: RunMetrics) -> bool:
    """Whether a row, after the last decision, is of a time that the run has gone back from."""
    match row:
        case ["s", _, now, updates, *_]:
            return bool(now > run_metrics.now or updates > run_metrics.updates)
        case ["x", _, now, "resumed"]:
            return bool(now > run_metrics.now)
        case ["h" | "p", _, now, *_]:
            return bool(now >= run_metrics.now)
        case ["x", *_]:
            return True
        case _:
            return False


def _missing(rows: Sequence[Row], run_metrics: RunMetrics) -> Iterator[Row]:
    """Decisions that a file does not have: an earlier version did not write it, or power failed."""
    there = Counter(_key(row) for row in rows if row[0] in _DECIDED)
    for row in _decisions(run_metrics):
        if there[_key(row)]:
            there[_key(row)] -= 1
        else:
            yield row[0], *row[2:]


def _key(row: Row) -> tuple[object, ...]:
    """A reallocation is known by its time, other rows by their time and task."""
    return (row[0], row[2]) if row[0] == "r" else (row[0], row[2], row[3])


def _decisions(run_metrics: RunMetrics) -> list[Row]:
    """Rows of evaluations, reallocations and finished tasks, as far as they are remembered."""
    found: list[Row] = []
    targets: dict[tuple[float, int], dict[TaskName, int]] = {}
    for name, task in run_metrics.tasks.items():
        for p in task.curve:
            value, loss = finite(p.value), finite(p.loss)
            found.append(["e", 0.0, p.time, name, p.round, p.model, value, loss])
        at: Counter[float] = Counter()
        for now, target in task.requests:
            targets.setdefault((now, at[now]), {})[name] = target
            at[now] += 1
        if task.finish_reason is not None:
            found.append(["f", 0.0, task.finish_time, name, str(task.finish_reason)])
    found += [["r", 0.0, now, None, new, {}] for (now, _), new in targets.items()]
    return sorted(found, key=lambda row: float(row[2]))
