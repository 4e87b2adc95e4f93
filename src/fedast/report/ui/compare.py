"""Runs side by side: grouped by what their configurations say, with means and bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedast.report.compare import Summary
from fedast.report.ui.columns import Floats, floats, listed, short
from fedast.report.ui.detail import differences
from fedast.report.ui.library import Library

_SAMPLES = 240
_AXES = {"t": "t", "w": "w", "round": "round"}
_LISTED = 60
"""Differing keys that are listed at most."""


@dataclass(frozen=True)
class _Line:
    """A task's curve in one run."""

    x: Floats
    value: Floats
    over: bool
    """The run has ended, so its last value stays."""


@dataclass
class _Run:
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    lines: dict[str, _Line]


def compared(
    library: Library, ids: Sequence[str], by: Sequence[str], axis: str, value: str, band: str
) -> dict[str, Any]:
    """``by``: keys of configurations; none: every run by itself. ``axis``: ``t``, ``w`` (real time)
    or ``round``; ``value``: ``value`` or ``loss``; ``band``: ``range`` or ``deviation``."""
    axis, value = _AXES.get(axis, "t"), "loss" if value == "loss" else "value"
    runs: list[_Run] = []
    for number in ids:
        try:
            with library.curves(number, axis) as (record, curves):
                if record.summary["status"] == "broken":
                    continue
                over = record.summary["status"] != "running"
                lines = {
                    name: _line(getattr(curve, axis), getattr(curve, value), over)
                    for name, curve in curves.items()
                }
                runs.append(_Run(record.summary, library.config(number), lines))
        except KeyError:
            continue  # it has gone
    groups = _grouped(runs, by)
    tasks = dict.fromkeys(task["name"] for run in runs for task in run.summary["tasks"])
    return {
        "groups": [
            {"label": label, "runs": [run.summary["id"] for run in found],
             "algorithm": _common([run.summary.get("algorithm") for run in found])}
            for label, found in groups.items()
        ],
        "tasks": [_task(name, list(groups.values()), band) for name in tasks],
        "all": [_times([_last_reached(run) for run in found]) for found in groups.values()],
        "differences": _differing(list(groups.values())),
    }  # fmt: skip


def _line(x: Any, values: Any, over: bool) -> _Line:
    times, numbers = floats(x), floats(values)
    good = np.isfinite(times) & np.isfinite(numbers)
    return _Line(times[good], numbers[good], over)


def _grouped(runs: Sequence[_Run], by: Sequence[str]) -> dict[str, list[_Run]]:
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        if by:
            values = [_said(run, key) for key in by]
            label = " · ".join(
                value if key == "algorithm" else f"{key} = {value}"
                for key, value in zip(by, values, strict=True)
            )
        else:
            label = str(run.summary["name"])
        groups.setdefault(label, []).append(run)
    return groups


def _said(run: _Run, key: str) -> str:
    value = run.summary.get("algorithm") if key == "algorithm" else run.config.get(key)
    return "–" if value is None else str(value)


def _common(values: Sequence[Any]) -> Any:
    return values[0] if values and all(value == values[0] for value in values) else None


def _task(name: str, groups: Sequence[Sequence[_Run]], band: str) -> dict[str, Any]:
    found = [
        [run.lines[name] for run in group if name in run.lines and len(run.lines[name].x)]
        for group in groups
    ]
    told = [task for group in groups for run in group for task in run.summary["tasks"]
            if task["name"] == name]  # fmt: skip
    ends = [line.x[-1] for lines in found for line in lines]
    starts = [line.x[0] for lines in found for line in lines]
    grid = np.linspace(min(starts), max(ends), _SAMPLES) if ends else np.zeros(0)
    return {
        "name": name,
        "metric": _common([task["metric"] for task in told]) or "metric",
        "higher": told[0]["higher"],
        "target": _common([task["target"] for task in told]),
        "x": listed(grid),
        "groups": [_band(lines, grid, band) if lines else None for lines in found],
        "times": [
            _times([_of_task(run, name, "reached") for run in group if _has(run, name)])
            for group in groups
        ],
        "finals": [
            _finals([_of_task(run, name, "value") for run in group if _has(run, name)])
            for group in groups
        ],
    }


def _band(lines: Sequence[_Line], grid: Floats, band: str) -> dict[str, Any]:
    """A run that goes on counts as far as it has come."""
    rows = np.array(
        [
            np.interp(grid, line.x, line.value, left=np.nan, right=None if line.over else np.nan)
            for line in lines
        ]
    )
    some = np.isfinite(rows).any(axis=0)
    mean, low, high = (np.full(len(grid), np.nan) for _ in range(3))
    mean[some] = np.nanmean(rows[:, some], axis=0)
    if band == "deviation":
        deviation = np.nanstd(rows[:, some], axis=0)
        low[some], high[some] = mean[some] - deviation, mean[some] + deviation
    else:
        low[some] = np.nanmin(rows[:, some], axis=0)
        high[some] = np.nanmax(rows[:, some], axis=0)
    ends = max(line.x[-1] for line in lines)
    past = grid > ends  # every run has ended: a flat line would look like a measurement
    mean[past], low[past], high[past] = np.nan, np.nan, np.nan
    one = len(lines) == 1
    return {
        "mean": listed(mean),
        "low": None if one else listed(low),
        "high": None if one else listed(high),
        "runs": len(lines),
    }


def _has(run: _Run, task: str) -> bool:
    return any(row["name"] == task for row in run.summary["tasks"])


def _of_task(run: _Run, task: str, key: str) -> float | None:
    return next((row.get(key) for row in run.summary["tasks"] if row["name"] == task), None)


def _last_reached(run: _Run) -> float | None:
    times = [row.get("reached") for row in run.summary["tasks"] if row["target"] is not None]
    found = [time for time in times if time is not None]
    return max(found) if found and len(found) == len(times) else None


def _times(times: Sequence[float | None]) -> dict[str, Any]:
    summary = Summary.of(times)
    return {
        "reached": summary.reached,
        "runs": summary.runs,
        "mean": None if summary.mean is None else short(summary.mean),
        "deviation": None if summary.deviation is None else short(summary.deviation),
        "values": [None if time is None else short(time) for time in times],
    }


def _finals(values: Sequence[float | None]) -> dict[str, Any]:
    summary = Summary.of(values)
    return {
        "mean": None if summary.mean is None else short(summary.mean),
        "deviation": None if summary.deviation is None else short(summary.deviation),
    }


def _differing(groups: Sequence[Sequence[_Run]]) -> dict[str, list[Any]]:
    """Keys by which groups differ; a group whose runs differ among themselves has a list."""
    tables = []
    for group in groups:
        names = dict.fromkeys(name for run in group for name in run.config)
        tables.append(
            {
                name: found[0] if len(found) == 1 else [str(value) for value in found]
                for name in names
                if (found := list(dict.fromkeys(run.config.get(name) for run in group)))
            }
        )
    return dict(list(differences(tables).items())[:_LISTED])
