"""The record of a run, in memory and on disk (the public contract of docs/records.md)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedast.core.protocol import FinishReason, TaskName
from fedast.records.events import finite
from fedast.records.files import write_atomically as write_atomically
from fedast.records.metrics import Point, RunMetrics
from fedast.version import __version__

SCHEMA = 1
CONFIG, RESULT, CURVES, EVENTS = "config.toml", "result.json", "curves.csv", "events.jsonl"
ALL_TASKS = "all tasks"
"""Stands for all tasks together where tasks are named; no task may have this name."""
INPUTS = ("delay.csv", "availability.csv")
"""Copies of the files that a configuration names."""


class UnusableFolder(Exception):
    """A folder that cannot be written to, holds another run, or holds no run."""


@dataclass(frozen=True, slots=True)
class TaskResult:
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
    """Aggregated updates in which a value was cut off that was too large for fp16; None if it was
    not trained in fp16."""

    def to_json(self) -> dict[str, Any]:
        table = asdict(self)
        if self.saturated is None:
            del table["saturated"]
        return table


@dataclass(frozen=True, slots=True)
class RunResult:
    """``result.json``, and the learning curves."""

    algorithm: str
    seed: int
    tasks: Mapping[TaskName, TaskResult]
    finish_time: float
    wall_seconds: float
    updates_per_second: float
    curves: Mapping[TaskName, tuple[Point, ...]] = field(repr=False)
    requests: Mapping[TaskName, tuple[tuple[float, int], ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Reallocations by task, times and new numbers; of a run in this process only."""
    fedast: str | None = field(default=None, compare=False)
    """The version that made it; 0.1.0 did not say."""

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
    ) -> RunResult:
        """``finals`` are metric and loss on a larger test set, for tasks that have one;
        ``saturated`` counts updates with values cut off, for tasks that were trained in fp16."""
        tasks, curves, requests = {}, {}, {}
        for name, task in run_metrics.tasks.items():
            last = (task.curve[-1].accuracy, task.curve[-1].loss) if task.curve else None
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
                # A task that was to join later never finished: it never began.
                finish_reason=str(task.finish_reason or FinishReason.INTERRUPTED),
                saturated=(saturated or {}).get(name),
            )
            curves[name] = tuple(task.curve)
            requests[name] = tuple(task.requests)
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
            curves=curves,
            requests=requests,
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
    held = [name for name in (CONFIG, RESULT, CURVES, EVENTS, *INPUTS) if (folder / name).exists()]
    if held:
        raise UnusableFolder(
            f"{folder}: holds another run ({held[0]}); choose another folder or --overwrite"
        )


def claim_folder(folder: Path, *, overwrite: bool = False) -> None:
    """Make sure that a run can be written to ``folder``: it is writable and holds no other."""
    if not overwrite:
        check_unheld(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (CONFIG, RESULT, CURVES, EVENTS):
            (folder / name).unlink(missing_ok=True)
        probe = folder / ".fedast-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UnusableFolder(
            f"{folder}: cannot be written ({error.strerror}); choose another folder with --out"
        ) from error


def write_result(folder: Path, result: RunResult) -> None:
    """The curves, then the result: a folder that has the result is complete."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("task", "time", "round", "accuracy", "loss"))
    for name, curve in result.curves.items():
        writer.writerows((name, p.time, p.round, p.accuracy, p.loss) for p in curve)
    write_atomically(folder / CURVES, table.getvalue())
    text = json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n"
    write_atomically(folder / RESULT, text)


def read_run(folder: Path) -> RunResult:
    """What ``write_result`` wrote."""
    try:
        data = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        with (folder / CURVES).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UnusableFolder(f"{folder}: holds no finished run ({error.strerror})") from error
    if data.get("schema") != SCHEMA:
        raise UnusableFolder(
            f"{folder}: has records of schema {data.get('schema')}, this reads {SCHEMA}"
        )
    curves: dict[TaskName, list[Point]] = {name: [] for name in data["tasks"]}
    for row in rows:
        curves[row["task"]].append(
            Point(float(row["time"]), int(row["round"]), float(row["accuracy"]), float(row["loss"]))
        )
    return RunResult(
        algorithm=data["algorithm"],
        seed=data["seed"],
        tasks={name: TaskResult(**task) for name, task in data["tasks"].items()},
        finish_time=data["finish_time"],
        wall_seconds=data["wall_seconds"],
        updates_per_second=data["updates_per_second"],
        fedast=data.get("fedast"),
        curves={name: tuple(points) for name, points in curves.items()},
    )
