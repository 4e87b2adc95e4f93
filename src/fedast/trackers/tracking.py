"""What all trackers have in common: what is sent, when, and from where.

Theory of operation. The observer turns a run into rows of named numbers and puts them in a queue; a
thread of its own hands them to the tracker, so a server that is slow or cannot be reached never
holds up training. The first error ends the tracking with one warning; the run goes on.

A resumed run replays its past, which the tracker has seen: nothing is sent until it is over, and
then nothing that is not later than the last row of before. That, and the tracker's own id of the
run, are in a small file in the run's folder.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

from fedast.core.protocol import (
    Accept,
    ClientId,
    Command,
    Evaluated,
    FinishReason,
    Observer,
    RequestId,
    TaskName,
    TaskStatus,
)
from fedast.parts.errors import ConfigError
from fedast.records.files import write_atomically
from fedast.records.observers import ObserverOptions, Watched
from fedast.records.run import TRACK

log = logging.getLogger("fedast.run")
_EVERY = 1.0
"""Seconds between samples of all tasks, and between notes of how far it is."""
_PATIENCE = 30.0
"""Seconds that the end of a run waits for its tracker."""
STEPS = 1000
"""Trackers count steps in whole numbers: thousandths of the simulated time."""


@dataclass(frozen=True)
class Row:
    """Numbers at a moment of a run, by name: ``TASK/loss``, ``simulated_time``, ..."""

    values: Mapping[str, float]
    time: float
    """Simulated, or of a federation's clock."""
    moment: float
    """In seconds since 1970."""

    @property
    def step(self) -> int:
        return round(self.time * STEPS)


@dataclass(frozen=True)
class Tracked:
    """The run, as a tracker presents it."""

    name: str
    parameters: Mapping[str, Any]
    folder: Path | None
    """For files of the tracker's own; None: the run leaves no records."""
    known_as: str | None
    """What ``Tracker.begin`` returned when the run began; None: it begins now."""


class Tracker(Protocol):
    """One experiment tracker. All calls come from one thread; whatever it raises ends tracking."""

    def begin(self, run: Tracked) -> str:
        """Begin or take up a run; what it is known as."""
        ...

    def send(self, row: Row) -> None: ...

    def end(self, *, interrupted: bool) -> None: ...


class TrackerOptions(ObserverOptions, ABC):
    """Options of a tracker."""

    package: ClassVar[str]
    """The module that it needs."""
    sees_past: ClassVar[bool] = False

    @abstractmethod
    def tracker(self) -> Tracker: ...

    def check(self) -> None:
        if find_spec(self.package) is None:
            raise ConfigError(
                "track",
                f"{self.name} is not installed; pip install 'fedast[track-{self.name}]'",
            )

    def build(self, run: Watched) -> Observer:
        tracking = Tracking(self.name, self.tracker(), run)
        run.cleanup.callback(tracking.close)
        return tracking


@final
class Tracking:
    """The observer in front of a tracker."""

    def __init__(self, name: str, tracker: Tracker, run: Watched) -> None:
        self._run = run
        self._sender = _Sender(name, tracker, run)
        self._sender.start()
        self._began = self._sampled = time.monotonic()
        self._updates = 0
        self._rate = 0.0

    def commanded(self, now: float, command: Command) -> None:
        if type(command) is Accept and self._run.live():
            moment = time.monotonic()
            if moment - self._sampled >= _EVERY:
                self._measure_rate(moment)
                self._send(now, self._states())

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        if not self._run.live():
            return
        values = {
            f"{event.task}/{self._run.metrics[event.task]}": event.metric,
            f"{event.task}/loss": event.loss,
        }
        self._send(now, values | self._states(event.task))

    def close(self) -> None:
        tasks = self._run.run_metrics.tasks.values()
        over = (None, FinishReason.INTERRUPTED)
        interrupted = any(task.finish_reason in over for task in tasks)
        if self._run.live():
            self._measure_rate(time.monotonic())
            self._send(self._run.run_metrics.now, self._states())
        self._sender.close(interrupted=interrupted)

    def _measure_rate(self, moment: float) -> None:
        metrics = self._run.run_metrics
        before = max(self._updates, metrics.replayed)
        self._rate = (metrics.updates - before) / max(moment - self._sampled, 1e-3)
        self._updates, self._sampled = metrics.updates, moment

    def _states(self, only: TaskName | None = None) -> dict[str, float]:
        values: dict[str, float] = {"updates": self._run.run_metrics.updates}
        if self._sampled > self._began:
            values["updates_per_second"] = self._rate
        for status in self._run.algorithm.status():
            if only is None or status.name == only:
                values |= self._state(status)
        return values

    def _state(self, status: TaskStatus) -> dict[str, float]:
        task = self._run.run_metrics.tasks[status.name]
        found = {
            "round": status.round,
            "requests": status.active_requests,
            "in_flight": status.in_flight,
            "buffered": status.buffered,
            "buffer": status.buffer_size,
            "updates": task.updates,
            "staleness": task.staleness_mean,
        }
        return {f"{status.name}/{key}": value for key, value in found.items()}

    def _send(self, now: float, values: dict[str, float]) -> None:
        values["simulated_time"] = now
        finite = {key: float(value) for key, value in values.items() if math.isfinite(value)}
        self._sender.rows.put(Row(finite, now, time.time()))


@final
class _Sender(threading.Thread):
    """Hands rows to the tracker, from a thread of its own."""

    def __init__(self, name: str, tracker: Tracker, run: Watched) -> None:
        super().__init__(name=f"fedast-{name}", daemon=True)
        self.rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._tracker = tracker
        self._label = name
        self._run = run
        self._folder = None if run.folder is None else run.folder / TRACK
        self._interrupted = False
        self._began = time.time()

    def run(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # whatever a tracker raises, training goes on
            text = " ".join(str(error).split())[:300]
            log.warning(
                "tracking with %s has ended (%s: %s); training goes on",
                self._label, type(error).__name__, text,
            )  # fmt: skip
            self._tracker = _Nothing()

    def _send_all(self) -> None:
        first = self.rows.get()  # not before a replay has succeeded
        if first is None:
            return
        noted = self._noted()
        self._began = noted.get("began", self._began)
        seen = sent_until = noted.get("time", -math.inf)
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
        known_as = self._tracker.begin(
            Tracked(self._run.name, self._run.parameters, self._folder, noted.get("id"))
        )
        self._note(known_as, sent_until)
        due = time.monotonic() + _EVERY
        row: Row | None = first
        while row is not None:
            if row.time > seen:
                values = {**row.values, "real_time": row.moment - self._began}
                self._tracker.send(replace(row, values=values))
                sent_until = row.time
            if time.monotonic() >= due:
                self._note(known_as, sent_until)
                due = time.monotonic() + _EVERY
            row = self.rows.get()
        self._tracker.end(interrupted=self._interrupted)
        self._note(known_as, sent_until)

    def _noted(self) -> dict[str, Any]:
        """What an earlier process noted about this run."""
        if self._folder is None:
            return {}
        try:
            found = json.loads((self._folder / f"{self._label}.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    def _note(self, known_as: str, sent_until: float) -> None:
        if self._folder is not None:
            about: dict[str, Any] = {"id": known_as, "began": self._began}
            if math.isfinite(sent_until):
                about["time"] = sent_until
            write_atomically(self._folder / f"{self._label}.json", json.dumps(about) + "\n")

    def close(self, *, interrupted: bool) -> None:
        self._interrupted = interrupted
        self.rows.put(None)
        self.join(_PATIENCE)
        if self.is_alive():
            log.warning(
                "%s has not taken everything after %g s; it is left", self._label, _PATIENCE
            )


@final
class _Nothing:
    """A tracker that has failed."""

    def begin(self, run: Tracked) -> str:
        return ""

    def send(self, row: Row) -> None:
        pass

    def end(self, *, interrupted: bool) -> None:
        pass
