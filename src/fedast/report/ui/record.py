"""One record: what the list shows of it, its configuration, and its history when asked for."""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from fedast.records import compact
from fedast.records.lock import LOCK
from fedast.records.metrics import Point
from fedast.records.run import (
    CONFIG,
    CURVES,
    EVENTS,
    RESULT,
    SERIES,
    TaskResult,
    UnusableFolder,
    read_run,
)
from fedast.records.series import Follower
from fedast.records.toml import flat
from fedast.report.ui.columns import short
from fedast.report.ui.find import Found
from fedast.report.ui.history import Curve, FromEvents, History, Reallocation

_SILENT = 60.0
"""Seconds after which a run that writes nothing, and whose lock nobody is seen to hold, is over."""
_EVENT = 110
"""Bytes of an event, roughly."""
_SAMPLES = 2000
"""About as many samples are made of the events of a run without a series."""

_LOWER = ("rmse", "perplexity")
"""Metrics of fedast of which less is better, for runs that have no series to say so."""

Held = Callable[[int], bool]
"""Whether some process is seen to hold a lock on the file with this number."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


@final
class Record:
    def __init__(self, found: Found, held: Held) -> None:
        self.found = found
        self.summary: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        """The resolved configuration by dotted keys."""
        self._targets: dict[str, float | None] = {}
        self._results: dict[str, TaskResult] = {}
        self._curves: dict[str, Curve] = {}
        """Of a run that has a result."""
        self._facts: dict[str, Any] = {}
        self._broken = False
        self._history: History | None = None
        self._series: Follower | None = None
        self._seen: tuple[int, int, int] | None = None
        """The stamp of the series when it was last read."""
        self._unreadable: str | None = None
        """Why the series cannot be read."""
        self._events: FromEvents | None = None
        self._at = (0, 0)
        """Number on the disk of the events, and how far they were read."""
        self.refresh(found, held)

    # --- what the list shows ----------------------------------------------------------------------

    def refresh(self, found: Found, held: Held) -> None:
        """Read the record again; its files have changed."""
        self.found = found
        self._broken = False
        try:
            self._refresh(held)
        except UnusableFolder as error:
            self._break(str(error))
        except _UNREADABLE as error:
            why = f"{type(error).__name__}: {error}"
            self._break(f"{found.path}: its record cannot be read ({why})")

    def _break(self, why: str) -> None:
        self._broken = True
        self.summary = {**self._named(), "status": "broken", "why": why, "tasks": []}

    def _named(self) -> dict[str, Any]:
        found = self.found
        return {
            "id": found.id, "name": found.name, "kind": found.kind,
            "path": str(found.path), "changed": round(found.changed, 1),
            "algorithm": self.config.get("algorithm.name"), "seed": self.config.get("seed"),
        }  # fmt: skip

    def _refresh(self, held: Held) -> None:
        found = self.found
        file = found.path / CONFIG if found.kind == "run" else found.path.with_suffix(".toml")
        if file.name in found.stamp:
            settings = _toml(file)
            self.config = dict(flat(settings))
            self._targets = {
                str(task.get("name", task.get("use"))): task.get("target")
                for task in settings.get("tasks", ())
            }
        self._results, self._curves, self._facts = {}, {}, {}
        if found.kind == "compact":
            self._take_compact(compact.read(found.path))
        elif RESULT in found.stamp:
            if CURVES not in found.stamp:  # nor is a link followed that leads elsewhere
                raise UnusableFolder(f"{found.path}: holds no finished run (it has no {CURVES})")
            result = read_run(found.path)
            self._take_results(result.tasks)
            self._facts = {
                "algorithm": result.algorithm, "seed": result.seed, "fedast": result.fedast,
                "t": short(result.finish_time), "seconds": short(result.wall_seconds),
                "rate": short(result.updates_per_second),
            }  # fmt: skip
        elif SERIES not in found.stamp and CONFIG not in found.stamp:
            raise UnusableFolder(f"{found.path}: has neither {RESULT} nor {CONFIG}")
        self.update_status(held)

    def _take_compact(self, run: compact.CompactRun) -> None:
        self._take_results(run.tasks)
        self._facts = {
            "algorithm": run.algorithm, "seed": run.seed, "fedast": run.machine.get("fedast"),
            "t": short(run.finish_time), "seconds": short(run.wall_seconds),
            "rate": short(run.updates_per_second), "scale": run.scale,
        }  # fmt: skip

    def update_status(self, held: Held) -> None:
        """A process that was killed changes no file, so ask for this now and then."""
        if self._broken:
            return
        status = self._status(held)
        if status == "running" or not self._results:
            self._summarize_history(status)
            return
        tasks = [
            {**self._task(name, task.metric), "value": task.final, "loss": task.final_loss,
             "round": task.rounds, "updates": task.updates, "reached": task.time_to_target,
             "staleness": short(task.staleness_mean), "finish": task.finish_reason}
            for name, task in self._results.items()
        ]  # fmt: skip
        self.summary = {
            **self._named(), **self._facts, "status": status,
            "clients": self.config.get("simulation.clients"),
            "updates": sum(task.updates for task in self._results.values()), "tasks": tasks,
        }  # fmt: skip

    def _status(self, held: Held) -> str:
        stamp = self.found.stamp
        lock = stamp.get(LOCK)
        fresh = time.time() - self.found.changed < _SILENT
        if lock is not None and (held(lock[0]) or (fresh and not self._results)):
            return "running"
        if self._results:
            reasons = {task.finish_reason for task in self._results.values()}
            return "interrupted" if "interrupted" in reasons else "finished"
        # The server of a federation has no lock on its folder.
        growing = fresh and SERIES in stamp and not self.history().ended
        return "running" if growing else "stopped"

    def _summarize_history(self, status: str) -> None:
        history = self.history()
        header = history.header
        names = [*self._targets, *(n for n in history.curves if n not in self._targets)]
        self.summary = {
            **self._named(),
            "algorithm": header.get("algorithm", self.config.get("algorithm.name")),
            "seed": header.get("seed", self.config.get("seed")),
            "fedast": header.get("fedast"),
            "status": status,
            "clients": header.get("clients", self.config.get("simulation.clients")),
            "t": short(history.now),
            "seconds": short(history.seconds),
            "updates": short(history.updates),
            "rate": short(history.updates / history.seconds) if history.seconds > 0 else None,
            "tasks": [self._task_so_far(name, history) for name in names],
        }

    def _task(self, name: str, metric: str | None) -> dict[str, Any]:
        return {
            "name": name,
            "metric": metric or "metric",
            "higher": self._higher(name, metric),
            "target": self._target(name),
        }

    def _task_so_far(self, name: str, history: History) -> dict[str, Any]:
        told = _table(_table(history.header, "tasks"), name)
        curve = history.curves.get(name)
        columns = history.samples.tasks.get(name)
        row: dict[str, Any] = self._task(name, told.get("metric"))
        if columns is not None and len(columns["round"]):
            row |= {"round": short(columns["round"][-1]), "updates": short(columns["updates"][-1])}
        if curve is not None and curve.value:
            row |= {"value": short(curve.value[-1]), "loss": short(curve.loss[-1])}
            row["reached"] = _first_at(curve.t, curve.value, row["target"], row["higher"])
        row["finish"] = next((m.what for m in history.finished if m.task == name), None)
        return row

    def _target(self, name: str) -> float | None:
        if name in self._targets:
            return self._targets[name]
        header = {} if self._history is None else self._history.header
        target = _table(_table(header, "tasks"), name).get("target")
        return target if isinstance(target, int | float) else None

    def _higher(self, name: str, metric: str | None) -> bool:
        header = {} if self._history is None else self._history.header
        told = _table(_table(header, "tasks"), name).get("higher")
        if isinstance(told, bool):
            return told
        return metric not in _LOWER

    # --- its history ------------------------------------------------------------------------------

    @property
    def note(self) -> str | None:
        """What the page should say about where its numbers are from."""
        if self._unreadable is not None:
            return f"{self._unreadable}; what is shown here comes from the other files"
        skipped = self.history().skipped
        return f"{skipped} lines of the record are not readable and left out" if skipped else None

    def history(self) -> History:
        """Up to what is on the disk now."""
        stamp = self.found.stamp
        if SERIES in stamp and self._unreadable is None:
            try:
                return self._follow_series()
            except UnusableFolder as error:
                if not self._results:
                    raise
                self._unreadable, self._history = str(error), None
        if EVENTS in stamp:
            return self._follow_events()
        if self._history is None:
            self._history = History()
            self._read_without_series(self._history)
        return self._history

    def forget(self) -> None:
        """Give up the memory that the history takes; it can be read again."""
        if self.summary.get("status") != "running":
            self._history = self._series = self._events = None

    def _follow_series(self) -> History:
        if self._history is None or self._series is None:
            self._history = History()
            self._series = Follower(self.found.path / SERIES)
            self._seen = None
        if self._seen == self.found.stamp[SERIES]:
            return self._history
        try:
            rows, anew = self._series.new()
        except OSError:
            return self._history  # it has just gone; the next look at the folder will say so
        if anew:  # a run that was resumed drops what came after its checkpoint
            self._history = History()
        for row in rows:
            self._history.add(row)
        self._seen = self.found.stamp[SERIES]
        return self._history

    def _follow_events(self) -> History:
        number, size, _ = self.found.stamp[EVENTS]
        if (
            self._history is None
            or self._events is None
            or number != self._at[0]
            or size < self._at[1]
        ):
            self._history = History()
            every = max(1, size // _EVENT // 4 // _SAMPLES)
            self._events = FromEvents(self._history, self._first_buffers(), every)
            self._at = (number, 0)
        if size > self._at[1]:
            self._at = (number, self._at[1] + self._read_events(self._history, self._events))
        return self._history

    def _read_events(self, history: History, events: FromEvents) -> int:
        """How many bytes of new events there were."""
        try:
            with (self.found.path / EVENTS).open("rb") as source:
                source.seek(self._at[1])
                data = source.read()
        except OSError:
            return 0
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                events.add(json.loads(line))
            except ValueError:
                history.skipped += 1
        if history.curves:
            events.sample(history.now)
        return len(whole)

    def curves(self, axis: str) -> Mapping[str, Curve]:
        """Evaluations by task. Only real time needs the whole history of a run that has ended."""
        if self._curves and axis != "w" and self.summary["status"] != "running":
            return self._curves
        return self.history().curves

    def _read_without_series(self, history: History) -> None:
        """The curves that the result came with; for compact records also the reallocations."""
        history.curves = self._curves
        changes: dict[float, dict[str, float]] = {}
        for name, task in self._results.items():
            for t, count in task.requests:
                changes.setdefault(t, {})[name] = count
        for t, requests in sorted(changes.items()):
            history.reallocations.append(Reallocation(t, math.nan, "", requests, {}))

    def _take_results(self, tasks: Mapping[str, TaskResult]) -> None:
        """Evaluations as columns, which take a tenth of the memory."""
        self._curves = {name: _curve(task.curve) for name, task in tasks.items()}
        self._results = {
            name: replace(task, curve=(), raw_curve=()) for name, task in tasks.items()
        }

    def _first_buffers(self) -> dict[str, float]:
        return {
            name: float(size)
            for name in self._targets
            if isinstance(size := self.config.get(f"tasks.{name}.buffer"), int)
        }


def _curve(points: Sequence[Point]) -> Curve:
    curve = Curve()
    for point in points:
        curve.model = point.model
        curve.add(point.time, math.nan, point.round, point.value, point.loss)
    return curve


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableFolder(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UnusableFolder(f"{file}: is not valid TOML ({error})") from error


def _table(of: Any, key: str) -> Mapping[str, Any]:
    found = of.get(key) if isinstance(of, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _first_at(times: Any, values: Any, target: float | None, higher: bool) -> float | None:
    if target is None:
        return None
    for t, value in zip(times, values, strict=True):
        if value >= target if higher else value <= target:
            return short(t)
    return None


def leaves(record: Record) -> Iterator[tuple[str, Any]]:
    """What runs can be filtered and grouped by: their configuration, as text."""
    for key, value in record.config.items():
        yield key, value if isinstance(value, str | int | float | bool) else json.dumps(value)
