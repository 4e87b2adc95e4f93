"""A run in one small file: its result, thinned curves, reallocations, and what it ran on.

Beside ``NAME.json`` is ``NAME.toml``, the run's resolved configuration: ``fedast run NAME.toml``
repeats the run. These files are small enough to be published by the hundred; the full record of a
run (``records.run``) is a folder. They have a schema of their own, which is still 1.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedast.records.events import finite
from fedast.records.files import write_atomically
from fedast.records.metrics import Point
from fedast.records.run import RunResult, TaskResult, UnusableFolder

SCHEMA = 1
POINTS = 100
"""About how many evaluations a thinned curve keeps, evenly spread."""
FINAL = 5
"""How many evaluations a final value is the mean of."""


@dataclass(frozen=True)
class CompactRun:
    algorithm: str
    seed: int
    scale: str
    tasks: Mapping[str, TaskResult]
    finish_time: float
    wall_seconds: float
    updates_per_second: float
    machine: Mapping[str, str]

    @classmethod
    def of(
        cls,
        result: RunResult,
        *,
        scale: str,
        machine: Mapping[str, str],
        requests: Mapping[str, int],
        final_at: Mapping[str, float],
    ) -> CompactRun:
        """``requests``: initial active requests by task; empty for synchronous algorithms."""
        tasks = {}
        for name, task in result.tasks.items():
            curve = task.curve
            counted = [p for p in curve if p.time <= final_at.get(name, float("inf"))][-FINAL:]
            if task.diverged:
                counted = []
            reached = [p for p in curve if p.time == task.time_to_target]
            late = [p for p in curve if p.time >= result.finish_time / 2]
            steps = [abs(b.value - a.value) for a, b in itertools.pairwise(late)]
            first = ((0.0, requests[name]),) if name in requests else ()
            tasks[name] = replace(
                task,
                final_mean=_mean([p.value for p in counted]),
                final_loss_mean=_mean([p.loss for p in counted]),
                rounds_to_target=reached[0].round if reached else None,
                swing=_mean(steps),
                curve=thinned(curve, task.time_to_target),
                requests=(*first, *task.requests) if first else (),
            )
        return cls(
            algorithm=result.algorithm,
            seed=result.seed,
            scale=scale,
            tasks=tasks,
            finish_time=result.finish_time,
            wall_seconds=result.wall_seconds,
            updates_per_second=result.updates_per_second,
            machine=machine,
        )


def _mean(values: Sequence[float]) -> float | None:
    return finite(statistics.fmean(values)) if values else None


def thinned(curve: Sequence[Point], keep: float | None) -> tuple[Point, ...]:
    """About ``POINTS`` evaluations, with the first, the last and the one at time ``keep``."""
    stride = max(1, round(len(curve) / POINTS))
    return tuple(
        point
        for number, point in enumerate(curve)
        if number % stride == 0 or number == len(curve) - 1 or point.time == keep
    )


def write(path: Path, run: CompactRun) -> None:
    table = {
        "schema": SCHEMA,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "scale": run.scale,
        "finish_time": _short(run.finish_time, 8),
        "wall_seconds": _short(run.wall_seconds),
        "updates_per_second": _short(run.updates_per_second),
        "machine": dict(run.machine),
        "tasks": {name: _task_json(task) for name, task in run.tasks.items()},
    }
    write_atomically(path, json.dumps(table, indent=1, allow_nan=False) + "\n")


def _task_json(task: TaskResult) -> dict[str, Any]:
    # A column as one line of text: as a JSON list it would take hundreds of lines.
    columns = list(zip(*((p.time, p.round, p.value, p.loss) for p in task.curve), strict=True))
    names = ("time", "round", "metric", "loss")
    lines = {
        name: " ".join(_text(value) for value in column)
        for name, column in zip(names, columns or [()] * 4, strict=True)
    }
    return {
        "result": task.to_json(),
        "final_mean": task.final_mean,
        "final_loss_mean": task.final_loss_mean,
        "rounds_to_target": task.rounds_to_target,
        "swing": task.swing,
        "curve": lines,
        "requests": " ".join(f"{_text(time)}:{count}" for time, count in task.requests),
    }


def _text(value: float) -> str:
    return f"{value:.6g}"


def _short(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")


def read(path: Path) -> CompactRun:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["schema"] != SCHEMA:
            raise UnusableFolder(f"{path}: has schema {table['schema']}; this reads {SCHEMA}")
        return CompactRun(
            algorithm=table["algorithm"],
            seed=table["seed"],
            scale=table["scale"],
            tasks={name: _task_of(task) for name, task in table["tasks"].items()},
            finish_time=table["finish_time"],
            wall_seconds=table["wall_seconds"],
            updates_per_second=table["updates_per_second"],
            machine=table["machine"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnusableFolder(f"{path}: holds no compact run ({error})") from error


def _task_of(task: Mapping[str, Any]) -> TaskResult:
    curve = {name: [float(text) for text in line.split()] for name, line in task["curve"].items()}
    return TaskResult(
        **task["result"],
        final_mean=task["final_mean"],
        final_loss_mean=task["final_loss_mean"],
        rounds_to_target=task["rounds_to_target"],
        swing=task["swing"],
        curve=tuple(
            Point(time, int(number), metric, loss)
            for time, number, metric, loss in zip(
                curve["time"], curve["round"], curve["metric"], curve["loss"], strict=True
            )
        ),
        requests=tuple(
            (float(time), int(count))
            for time, count in (entry.split(":") for entry in task["requests"].split())
        ),
    )
