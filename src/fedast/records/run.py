"""The record of a run, in memory and on disk (the public contract of docs/records.md).

Schema 2 is written, schema 1 is still read: its ``curves.csv`` has the metric in a column
``accuracy``, whatever it is, and no columns ``model`` and ``metric``.
"""

from __future__ import annotations

import csv
import heapq
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedast.core.protocol import FinishReason, TaskName
from fedast.records.events import finite
from fedast.records.files import write_atomically
from fedast.records.metrics import Point, RunMetrics
from fedast.version import __version__

SCHEMA = 2
READABLE = (1, 2)
_COLUMNS = ("task", "time", "round", "model", "metric", "value", "loss")
CONFIG, RESULT, CURVES, EVENTS = "config.toml", "result.json", "curves.csv", "events.jsonl"
SERIES = "series.jsonl"
_FILES = (CONFIG, RESULT, CURVES, EVENTS, SERIES)
MODELS = "models"
"""The folder of the trained models."""
TRACK = "track"
"""The folder of what trackers keep about a run."""
ALL_TASKS = "all tasks"
"""Stands for all tasks together in tables by task; no task may have this name."""
INPUTS = ("delay.csv", "availability.csv")
"""Copies of the files that a configuration names."""


class UnusableFolder(Exception):
    """A folder that cannot be written to, already holds a run, or holds none to read."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What came of one task: its numbers, its learning curve and its share of the requests."""

    metric: str
    time_to_target: float | None
    final: float | None
    final_loss: float | None
    rounds: int
    updates: int
    staleness_mean: float
    staleness_max: int
    finish_reason: str
    saturated: int | None = None
    """Aggregated updates with a value that was clipped because it was too large for fp16; None if
    the task was not trained in fp16."""
    time_held: float | None = None
    """When the mean of the last five evaluations was first at the target; None: it never was."""
    curve: tuple[Point, ...] = field(default=(), repr=False)
    """All evaluations of the model that decides: the newest, or the average of a task with
    averaging; in a compact run about a hundred of them."""
    raw_curve: tuple[Point, ...] = field(default=(), repr=False)
    """Evaluations of the newest model, if ``curve`` is that of an average; not in compact runs."""
    requests: tuple[tuple[float, int], ...] = field(default=(), repr=False, compare=False)
    """Reallocations as (time, active requests from then on), in a compact run with the initial
    allocation; ``result.json`` has none."""
    more: Mapping[str, tuple[Point, ...]] = field(default_factory=dict, repr=False)
    """The curves of the task's further metrics, by their names."""
    # Only compact runs have these, computed before their curves were thinned:
    final_mean: float | None = None
    """Mean metric of the last few evaluations up to the time that counts as final."""
    final_loss_mean: float | None = None
    rounds_to_target: int | None = None
    swing: float | None = None
    """Mean change of the metric from one evaluation to the next over the second half of the run."""

    @property
    def diverged(self) -> bool:
        return self.finish_reason == "diverged"

    def to_json(self) -> dict[str, Any]:
        """Its part of ``result.json``: the numbers that every run has."""
        table = asdict(replace(self, curve=(), raw_curve=(), requests=(), more={}))
        for key in _ELSEWHERE:
            del table[key]
        for key in ("saturated", "time_held"):
            if table[key] is None:
                del table[key]
        return table


_ELSEWHERE = (
    "curve", "raw_curve", "requests", "more",
    "final_mean", "final_loss_mean", "rounds_to_target", "swing",
)  # fmt: skip
"""What of a ``TaskResult`` is in ``curves.csv`` or in compact runs, not in ``result.json``."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """``result.json``, and the learning curves."""

    algorithm: str
    seed: int
    tasks: Mapping[TaskName, TaskResult]
    finish_time: float
    wall_seconds: float
    updates_per_second: float
    fedast: str | None = field(default=None, compare=False)
    """The version that made it; None for 0.1.0, which did not write it."""

    @property
    def curves(self) -> dict[TaskName, tuple[Point, ...]]:
        return {name: task.curve for name, task in self.tasks.items()}

    @property
    def raw_curves(self) -> dict[TaskName, tuple[Point, ...]]:
        """Of tasks whose curve is that of an average."""
        return {name: task.raw_curve for name, task in self.tasks.items() if task.raw_curve}

    @property
    def requests(self) -> dict[TaskName, tuple[tuple[float, int], ...]]:
        return {name: task.requests for name, task in self.tasks.items()}

    @property
    def reached_all(self) -> bool:
        return all(task.time_to_target is not None for task in self.tasks.values())

    @property
    def interrupted(self) -> bool:
        return any(task.finish_reason == "interrupted" for task in self.tasks.values())

    @classmethod
    def of(
        cls,
        run_metrics: RunMetrics,
        *,
        algorithm: str,
        seed: int,
        metrics: Mapping[TaskName, str],
        wall_seconds: float,
        finals: Mapping[TaskName, tuple[float, float]],
        saturated: Mapping[TaskName, int] | None = None,
        more: Mapping[TaskName, Sequence[str]] | None = None,
    ) -> RunResult:
        """``finals`` are metric and loss on a larger test set, for tasks that have one;
        ``saturated`` counts updates with clipped values, for tasks trained in fp16; ``more`` are
        the names of further metrics."""
        tasks = {}
        for name, task in run_metrics.tasks.items():
            last = (task.curve[-1].value, task.curve[-1].loss) if task.curve else None
            last = finals.get(name, last)
            tasks[name] = TaskResult(
                metric=metrics[name],
                time_to_target=task.time_to_target,
                final=None if last is None else finite(last[0]),
                final_loss=None if last is None else finite(last[1]),
                rounds=task.rounds,
                updates=task.updates,
                staleness_mean=task.staleness_mean,
                staleness_max=task.staleness_max,
                # A task without a reason was to join later and never did.
                finish_reason=str(task.finish_reason or FinishReason.INTERRUPTED),
                saturated=(saturated or {}).get(name),
                time_held=task.time_held,
                curve=tuple(task.curve),
                raw_curve=tuple(task.raw_curve),
                requests=tuple(task.requests),
                more={
                    metric: tuple(
                        replace(point, value=values[number])
                        for point, values in zip(task.curve, task.more, strict=True)
                    )
                    for number, metric in enumerate((more or {}).get(name, ()))
                },
            )
        ends = [
            task.finish_time for task in run_metrics.tasks.values() if task.finish_time is not None
        ]
        return cls(
            algorithm=algorithm,
            seed=seed,
            tasks=tasks,
            finish_time=max(ends, default=0.0),
            wall_seconds=wall_seconds,
            updates_per_second=run_metrics.updates / wall_seconds if wall_seconds > 0 else 0.0,
            fedast=__version__,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "tasks": {name: task.to_json() for name, task in self.tasks.items()},
            "finish_time": self.finish_time,
            "wall_seconds": self.wall_seconds,
            "updates_per_second": self.updates_per_second,
            **({} if self.fedast is None else {"fedast": self.fedast}),
        }


def check_unheld(folder: Path) -> None:
    """Refuse a folder that holds another run."""
    held = [name for name in (*_FILES, *INPUTS) if (folder / name).exists()]
    if held:
        raise UnusableFolder(
            f"{folder}: holds another run ({held[0]}); choose another folder or --overwrite"
        )


def claim_folder(folder: Path, *, overwrite: bool = False) -> None:
    """Make ``folder`` ready for a run; refuse one that is not writable or holds another run."""
    if not overwrite:
        check_unheld(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
        for name in (MODELS, TRACK):
            shutil.rmtree(folder / name, ignore_errors=True)
        probe = folder / ".fedast-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UnusableFolder(
            f"{folder}: cannot be written ({error.strerror}); choose another folder with --out"
        ) from error


def write_result(folder: Path, result: RunResult) -> None:
    """Write the curves, then the result: a folder with a result is complete."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for name, task in result.tasks.items():
        points = heapq.merge(task.curve, task.raw_curve, key=lambda p: (p.time, p.round))
        writer.writerows(
            (name, p.time, p.round, p.model, task.metric, p.value, p.loss) for p in points
        )
        for metric, curve in task.more.items():
            writer.writerows(
                (name, p.time, p.round, p.model, metric, p.value, p.loss) for p in curve
            )
    write_atomically(folder / CURVES, table.getvalue())
    text = json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n"
    write_atomically(folder / RESULT, text)


def read_run(folder: Path) -> RunResult:
    """Read what ``write_result`` wrote, in this version or an earlier one."""
    try:
        data = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        with (folder / CURVES).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UnusableFolder(f"{folder}: holds no finished run ({error.strerror})") from error
    schema = data.get("schema")
    if schema not in READABLE:
        raise UnusableFolder(
            f"{folder}: {RESULT} has schema {schema}; this version of fedast reads "
            f"{' and '.join(map(str, READABLE))}"
        )
    value = "accuracy" if schema == 1 else "value"
    points: dict[TaskName, list[Point]] = {name: [] for name in data["tasks"]}
    more: dict[TaskName, dict[str, list[Point]]] = {name: {} for name in data["tasks"]}
    for row in rows:
        point = Point(
            float(row["time"]),
            int(row["round"]),
            float(row[value]),
            float(row["loss"]),
            "average" if row.get("model") == "average" else "raw",
        )
        task, metric = row["task"], row.get("metric")
        if metric in (None, data["tasks"][task]["metric"]):
            points[task].append(point)
        else:
            more[task].setdefault(metric, []).append(point)
    return RunResult(
        algorithm=data["algorithm"],
        seed=data["seed"],
        tasks={
            name: replace(
                _task_result(task, points[name]),
                more={metric: tuple(curve) for metric, curve in more[name].items()},
            )
            for name, task in data["tasks"].items()
        },
        finish_time=data["finish_time"],
        wall_seconds=data["wall_seconds"],
        updates_per_second=data["updates_per_second"],
        fedast=data.get("fedast"),
    )


def _task_result(table: Mapping[str, Any], points: Sequence[Point]) -> TaskResult:
    """Where an average was evaluated, it is the curve."""
    averages = tuple(point for point in points if point.model == "average")
    if not averages:
        return TaskResult(**table, curve=tuple(points))
    raw = tuple(point for point in points if point.model == "raw")
    return TaskResult(**table, curve=averages, raw_curve=raw)
