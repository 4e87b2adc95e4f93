"""``fedast.load``: the runs under a folder, as tables and models.

It reads every kind of record: a run's folder (finished or not), the folder of a comparison or of
any number of runs, and the compact records of a study. A record that cannot be read is named in
``Runs.broken`` and in a warning; the others are there all the same.
"""

from __future__ import annotations

import json
import os
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final, overload

from fedast.analysis.frames import Frame, Row, frame
from fedast.core.protocol import TaskName
from fedast.records import compact
from fedast.records.events import from_schema_1
from fedast.records.run import CONFIG, EVENTS, RESULT, SERIES, RunResult, TaskResult, UnusableFolder
from fedast.records.run import read_run as read_result
from fedast.records.series import read as read_series
from fedast.records.toml import flat

if TYPE_CHECKING:
    import torch

_CURVES = ("run", "algorithm", "seed", "task", "time", "round", "model", "metric", "value", "loss")
_RESULTS = (
    "run",
    "algorithm",
    "seed",
    "task",
    "metric",
    "time_to_target",
    "time_held",
    "final",
    "final_loss",
)
_EVENTS = ("run", "t", "event")
_REQUESTS = (
    "run", "task", "request", "client", "version", "dispatched", "started", "ended", "outcome",
    "staleness", "round",
)  # fmt: skip
_SERIES = (
    "run", "task", "real_time", "time", "round", "in_flight", "requests", "buffered", "buffer",
    "updates", "staleness_mean",
)  # fmt: skip
_ENDS = {"arrive": "counted", "drop": "dropped"}


class RecordWarning(UserWarning):
    """A record that cannot be read, or only in part."""


@final
@dataclass(frozen=True, eq=False)
class Run:
    """One run, as it was recorded."""

    name: str
    """Its path below the folder that was loaded."""
    path: Path
    """Its folder, or the file of a compact record."""
    algorithm: str
    seed: int
    tasks: Mapping[TaskName, TaskResult]
    """Empty while the run has no result."""
    finish_time: float | None = None
    """When its last task ended; None while it has no result."""
    record: compact.CompactRun | None = None
    """The compact record, if it is one."""

    @classmethod
    def of(cls, name: str, path: Path, result: RunResult) -> Run:
        """A run whose result is in memory."""
        return cls(name, path, result.algorithm, result.seed, result.tasks, result.finish_time)

    @property
    def has_events(self) -> bool:
        """Whether it was made with ``--events``."""
        return (self.path / EVENTS).is_file()

    @property
    def finished(self) -> bool:
        """Whether it ended by itself: it has a result and was not interrupted."""
        return bool(self.tasks) and all(
            task.finish_reason != "interrupted" for task in self.tasks.values()
        )

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The resolved configuration, as nested tables; empty if there is none."""
        file = self.path / CONFIG if self.path.is_dir() else self.path.with_suffix(".toml")
        return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    @cached_property
    def keys(self) -> Mapping[str, Any]:
        """The configuration by dotted key: ``algorithm.name``, ``tasks.mnist.client_lr``."""
        return dict(flat(self.settings))

    @property
    def curves(self) -> Frame:
        """A row for every evaluation of the model that decides: the newest, or an average."""
        return frame(self._curve_rows("curve"), _CURVES)

    @property
    def raw_curves(self) -> Frame:
        """A row for every evaluation of the newest model, for tasks where an average decides."""
        return frame(self._curve_rows("raw_curve"), _CURVES)

    @property
    def results(self) -> Frame:
        """A row for every task."""
        return frame(self._result_rows(), _RESULTS)

    @property
    def config(self) -> Frame:
        """One row, with a column for every key: ``algorithm.name``, ``tasks.mnist.client_lr``."""
        return frame([self._config_row()], ("run",))

    @property
    def events(self) -> Frame:
        """A row for every event; the run must have been made with ``--events``."""
        return frame(self._event_rows(), _EVENTS)

    @property
    def requests(self) -> Frame:
        """A row for every request: when it was sent and begun, when and how it ended."""
        return frame(self.request_rows(), _REQUESTS)

    @property
    def series(self) -> Frame:
        """A row for every sample of every task, in simulated and real time: its round, requests
        and buffer, the updates so far, and the mean staleness of those since the last sample."""
        return frame(self._series_rows(), _SERIES)

    def model(self, task: TaskName) -> torch.nn.Module:
        """The trained module of a task, in evaluation mode."""
        from fedast.run.models import load_model

        if not self.path.is_dir():
            raise UnusableFolder(f"{self.path}: is a compact record, which keeps no models")
        return load_model(self.path, task)

    def _named(self) -> dict[str, Any]:
        return {"run": self.name, "algorithm": self.algorithm, "seed": self.seed}

    def _curve_rows(self, which: Literal["curve", "raw_curve"]) -> Iterator[Row]:
        for name, task in self.tasks.items():
            for point in task.curve if which == "curve" else task.raw_curve:
                yield {
                    **self._named(),
                    "task": name,
                    "time": point.time,
                    "round": point.round,
                    "model": point.model,
                    "metric": task.metric,
                    "value": point.value,
                    "loss": point.loss,
                }

    def _result_rows(self) -> Iterator[Row]:
        for name, task in self.tasks.items():
            yield {**self._named(), "task": name, **task.to_json()}

    def _config_row(self) -> Row:
        return {**self._named(), **self.keys}

    def _event_rows(self) -> Iterator[Row]:
        for event in self.raw_events():
            yield {"run": self.name, **event}

    def raw_events(self) -> Iterator[Mapping[str, Any]]:
        """The events one after another, as they are in the file."""
        file = self.path / EVENTS
        if not file.is_file():
            raise UnusableFolder(
                f"{self.path}: has no {EVENTS}; run its configuration again with --events"
            )
        metrics = {name: task.metric for name, task in self.tasks.items()}
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    event = json.loads(line)
                except ValueError:
                    # A run that is going on, or was killed, may end in the middle of a line.
                    if line.endswith("\n"):
                        _warn(f"{file}, line {number}: is not an event and was left out")
                    continue
                yield from_schema_1(event, metrics) if "accuracy" in event else event

    def request_rows(self) -> Iterator[Row]:
        """The rows of ``requests`` one after another."""
        rows: dict[int, dict[str, Any]] = {}
        for event in self.raw_events():
            kind = event["event"]
            if kind == "aggregate":
                for request in event["requests"]:
                    rows[request]["round"] = event["round"]
            elif kind == "dispatch":
                rows[event["request"]] = {
                    "run": self.name,
                    "task": event["task"],
                    "request": event["request"],
                    "client": event["client"],
                    "version": event["version"],
                    "dispatched": event["t"],
                    "outcome": "open",
                }
            elif event.get("request") in rows:
                row = rows[event["request"]]
                if kind == "start":
                    row["started"] = event["t"]
                elif kind in _ENDS:
                    row["ended"] = event["t"]
                    row["outcome"] = event.get("reason", _ENDS[kind])
                    row["staleness"] = event.get("staleness")
        yield from rows.values()

    def _series_rows(self) -> Iterator[Row]:
        file = self.path / SERIES
        if not file.is_file():
            raise UnusableFolder(
                f"{self.path}: has no {SERIES}, which older versions did not write"
            )
        before: dict[TaskName, tuple[int, int]] = {}
        for row in read_series(file)[0]:
            if isinstance(row, dict) or row[0] != "s":
                continue
            for task, (round_, in_flight, requests, held, size, updates, sum_) in row[4].items():
                since, sum_since = before.get(task, (0, 0))
                before[task] = updates, sum_
                values = (
                    self.name, task, row[1], row[2], round_, in_flight, requests, held, size,
                    updates, (sum_ - sum_since) / (updates - since) if updates > since else None,
                )  # fmt: skip
                yield dict(zip(_SERIES, values, strict=True))


@final
class Runs(Sequence[Run]):
    """The runs under a folder. The tables have the rows of all of them, named by ``run``."""

    def __init__(self, folder: Path, runs: Sequence[Run], broken: Mapping[str, str]) -> None:
        self.folder = folder
        self.broken = broken
        """Records that cannot be read, and why."""
        self._runs = tuple(runs)

    @overload
    def __getitem__(self, index: int | str) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Run]: ...
    def __getitem__(self, index: int | str | slice) -> Run | Sequence[Run]:
        """By number, or by name."""
        if not isinstance(index, str):
            return self._runs[index]
        for run in self._runs:
            if run.name == index:
                return run
        raise KeyError(f"no run {index!r} under {self.folder}")

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<{len(self)} runs under {self.folder}>"

    @property
    def curves(self) -> Frame:
        """A row for every evaluation of the model that decides, of every run."""
        return frame((row for run in self for row in run._curve_rows("curve")), _CURVES)

    @property
    def raw_curves(self) -> Frame:
        """A row for every evaluation of the newest model beside an average, of every run."""
        return frame((row for run in self for row in run._curve_rows("raw_curve")), _CURVES)

    @property
    def results(self) -> Frame:
        """A row for every task of every run."""
        return frame((row for run in self for row in run._result_rows()), _RESULTS)

    @property
    def config(self) -> Frame:
        """A row for every run, with a column for every key of the configurations."""
        return frame((run._config_row() for run in self), ("run", "algorithm", "seed"))

    @property
    def events(self) -> Frame:
        """A row for every event of the runs that were made with ``--events``."""
        return frame((row for run in self._logged() for row in run._event_rows()), _EVENTS)

    @property
    def requests(self) -> Frame:
        """A row for every request of the runs that were made with ``--events``."""
        return frame((row for run in self._logged() for row in run.request_rows()), _REQUESTS)

    @property
    def series(self) -> Frame:
        """A row for every sample of every task of the runs that have a time series."""
        kept = [run for run in self if (run.path / SERIES).is_file()]
        return frame((row for run in kept for row in run._series_rows()), _SERIES)

    def model(self, task: TaskName) -> torch.nn.Module:
        """The trained module of a task, where there is one run."""
        if len(self) != 1:
            names = ", ".join(repr(run.name) for run in self[:3])
            raise UnusableFolder(
                f"{self.folder}: has {len(self)} runs; choose one, for instance "
                f"fedast.load(...)[NAME].model({task!r}) with a name such as {names}"
            )
        return self[0].model(task)

    def _logged(self) -> list[Run]:
        found = [run for run in self if run.has_events]
        if self and not found:
            raise UnusableFolder(f"{self.folder}: no run has {EVENTS}; make them with --events")
        return found


def load(folder: Path | str) -> Runs:
    """The runs in a folder and below: of ``run``, ``compare``, ``reproduce`` or a federation.

    >>> import fedast
    >>> runs = fedast.load("results/heterogeneous")  # in fedast's repository
    >>> runs["fedast-d/seed-1"].tasks["mnist"].finish_reason
    'target'
    >>> runs["fedast-d/seed-1"].tasks["mnist"].time_to_target < 150
    True
    """
    folder = Path(folder)
    if not folder.exists():
        raise UnusableFolder(f"{folder}: there is no such folder")
    runs, broken = [], {}
    for name, path in _records(folder):
        try:
            runs.append(_read(name, path))
        except UnusableFolder as error:
            broken[name] = str(error)
            _warn(str(error))
    if not runs and not broken:
        raise UnusableFolder(f"{folder}: holds no run (no {RESULT}, {CONFIG} or compact record)")
    return Runs(folder, runs, broken)


def _records(folder: Path) -> Iterator[tuple[str, Path]]:
    """Names and paths of what looks like a record, in order."""
    if folder.is_file():
        yield folder.stem, folder
        return
    for place, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        here = Path(place)
        relative = here.relative_to(folder).as_posix()
        if RESULT in files or CONFIG in files:
            yield (folder.resolve().name if relative == "." else relative), here
        for file in sorted(files):
            if file.endswith(".json") and f"{file.removesuffix('.json')}.toml" in files:
                path = here / file
                yield path.relative_to(folder).with_suffix("").as_posix(), path


def _read(name: str, path: Path) -> Run:
    try:
        if path.is_file():
            record = compact.read(path)
            return Run(
                name, path, record.algorithm, record.seed, record.tasks, record.finish_time, record
            )
        if (path / RESULT).is_file():
            return Run.of(name, path, read_result(path))
        settings = tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
        algorithm = settings["algorithm"]["name"]
        return Run(name, path, algorithm, settings.get("seed", 0), {})
    except UnusableFolder:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableFolder(
            f"{path}: its record cannot be read ({type(error).__name__}: {error})"
        ) from error


def _warn(text: str) -> None:
    warnings.warn(text, RecordWarning, stacklevel=4)
