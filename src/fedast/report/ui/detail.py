"""What the page of one run draws, thinned to what a screen can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedast.report.ui.columns import POINTS, extremes, floats, listed, short, spread
from fedast.report.ui.history import SAMPLE, Curve, History, Samples
from fedast.report.ui.record import Record

_MARKS = 400
"""The most reallocations that are shown as marks; requests over time have all of them."""
_BARS = 60
"""Bars of a histogram, and of the load by client."""
_CLIENTS = 400
"""Clients whose load is drawn one by one; of more, every n-th of the ordered ones."""


def detail(record: Record, history: History) -> dict[str, Any]:
    samples = history.samples
    return {
        **record.summary,
        "note": record.note,
        "clock": history.header.get("time", "simulated"),
        "began": history.header.get("began"),
        "curves": {name: _curve(curve) for name, curve in history.curves.items()},
        "samples": _samples(samples),
        "throughput": _throughput(samples),
        "requests": _requests(history, record.config),
        "marks": {
            "reallocations": [
                [short(r.t), short(r.w), r.cause] for r in history.reallocations[-_MARKS:]
            ],
            "reallocation_count": len(history.reallocations),
            "finished": [[short(m.t), short(m.w), m.task, m.what] for m in history.finished],
            "others": [[short(m.t), short(m.w), m.what] for m in history.marks],
        },
        "staleness": {name: _histogram(found) for name, found in history.staleness.items()},
        "load": _load(history, record.summary.get("clients")),
        "spent": {name: short(seconds) for name, seconds in history.spent.items()},
        "config": dict(record.config),
    }


def _curve(curve: Curve) -> dict[str, Any]:
    kept = extremes(floats(curve.value))
    return {
        "model": curve.model,
        **{
            name: listed(floats(column)[kept])
            for name, column in (
                ("t", curve.t), ("w", curve.w), ("round", curve.round),
                ("value", curve.value), ("loss", curve.loss),
            )
        },
    }  # fmt: skip


def _samples(samples: Samples) -> dict[str, Any]:
    kept = spread(len(samples.t))
    tasks = {}
    for name, columns in samples.tasks.items():
        rows = {key: floats(columns[key])[kept] for key in SAMPLE}
        counted = np.diff(rows["updates"], prepend=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            rows["staleness"] = np.diff(rows["staleness"], prepend=0.0) / counted
        tasks[name] = {key: listed(values) for key, values in rows.items()}
    return {
        "t": listed(floats(samples.t)[kept]),
        "w": listed(floats(samples.w)[kept]),
        "updates": listed(floats(samples.updates)[kept]),
        "tasks": tasks,
    }


def _throughput(samples: Samples, parts: int = 120) -> dict[str, Any]:
    """Updates per second of real time and per unit of the run's clock, over equal stretches."""
    found: dict[str, Any] = {}
    updates = floats(samples.updates)
    for name, column in (("w", samples.w), ("t", samples.t)):
        times = floats(column)
        good = np.isfinite(times) & np.isfinite(updates)
        if good.sum() < 3 or not times[good][-1] > times[good][0]:
            continue
        grid = np.linspace(times[good][0], times[good][-1], min(parts, int(good.sum())))
        counted = np.interp(grid, times[good], updates[good])
        rate = np.diff(counted) / np.diff(grid)
        found[name] = {"x": listed((grid[:-1] + grid[1:]) / 2), "rate": listed(rate)}
    return found


def _requests(history: History, config: Mapping[str, Any]) -> dict[str, Any]:
    """Active requests of each task, from each reallocation on: steps. Empty for an algorithm that
    does not allocate requests to tasks."""
    steps: dict[str, dict[str, list[float]]] = {}
    told = history.header.get("tasks")
    if isinstance(told, Mapping):
        first = {name: _get(task, "requests") for name, task in told.items()}
    elif history.reallocations and history.reallocations[0].t > 0:
        first = {name: config.get(f"tasks.{name}.requests") for name in history.curves}
    else:
        first = {}
    for name, count in first.items():
        if isinstance(count, int | float):
            steps[name] = {"t": [0.0], "w": [0.0], "requests": [float(count)]}
    for change in history.reallocations:
        for name, requests in change.requests.items():
            row = steps.setdefault(name, {"t": [], "w": [], "requests": []})
            row["t"].append(change.t)
            row["w"].append(change.w)
            row["requests"].append(requests)
    for mark in history.finished:
        if mark.task in steps:
            row = steps[mark.task]
            row["t"].append(mark.t)
            row["w"].append(mark.w)
            row["requests"].append(0.0)
    thin = {}
    for name, row in steps.items():
        kept = extremes(floats(row["requests"]), POINTS)
        thin[name] = {key: listed(floats(values)[kept]) for key, values in row.items()}
    return thin


def _get(table: Any, key: str) -> Any:
    return table.get(key) if isinstance(table, Mapping) else None


def _histogram(counts: Mapping[int, int]) -> dict[str, Any]:
    """Bars of equal width; few values have a bar each."""
    if not counts:
        return {"from": [], "count": [], "width": 1, "mean": None, "p90": None, "max": None}
    highest = max(counts)
    width = max(1, math.ceil((highest + 1) / _BARS))
    bars = [0] * (highest // width + 1)
    for value, count in counts.items():
        bars[value // width] += count
    total = sum(counts.values())
    values = sorted(counts)
    below, ninety = 0, values[-1]
    for value in values:
        below += counts[value]
        if below >= 0.9 * total:
            ninety = value
            break
    return {
        "from": [number * width for number in range(len(bars))],
        "count": bars,
        "width": width,
        "total": total,
        "mean": short(sum(v * c for v, c in counts.items()) / total),
        "p90": ninety,
        "max": highest,
    }


def _load(history: History, clients: int | None) -> dict[str, Any] | None:
    """Updates by client, speed group and all together; None while nothing is known."""
    if not history.sent and not history.counted:
        return None
    known = max([*history.sent, *history.counted], default=-1) + 1
    count = max(known, clients if isinstance(clients, int) else 0)
    counted = np.array(
        [history.counted.get(number, 0) for number in range(count)], dtype=np.float64
    )
    sent = np.array([history.sent.get(number, 0) for number in range(count)], dtype=np.float64)
    names, of = _groups(history.header, count)
    order = np.lexsort((-counted, of)) if names else np.argsort(-counted, kind="stable")
    kept = order[spread(count, _CLIENTS)]
    return {
        "clients": count,
        "shown": {
            "client": [int(number) for number in kept],
            "group": [int(of[number]) for number in kept] if names else None,
            "counted": listed(counted[kept]),
            "sent": listed(sent[kept]),
        },
        "groups": [
            _group(name, counted[of == number], sent[of == number], counted.sum())
            for number, name in enumerate(names)
        ],
        "all": _group("all", counted, sent, counted.sum()),
        "lorenz": _lorenz(counted),
    }


def _groups(header: Mapping[str, Any], count: int) -> tuple[list[str], Any]:
    told = header.get("groups")
    if isinstance(told, Mapping):
        names, of = told.get("names"), told.get("of")
        if isinstance(names, list) and isinstance(of, list) and len(of) >= count and names:
            numbers = np.array([int(n) for n in of[:count]])
            if numbers.size and numbers.min() >= 0 and numbers.max() < len(names):
                return [str(name) for name in names], numbers
    return [], np.zeros(count, dtype=np.intp)


def _group(name: str, counted: Any, sent: Any, total: float) -> dict[str, Any]:
    if not len(counted):
        return {"name": name, "clients": 0}
    squares = float((counted**2).sum())
    return {
        "name": name,
        "clients": len(counted),
        "share": short(float(counted.sum()) / total) if total else None,
        "mean": short(float(counted.mean())),
        "least": short(float(counted.min())),
        "most": short(float(counted.max())),
        "never": int((counted == 0).sum()),
        "sent": short(float(sent.sum())),
        "counted": short(float(counted.sum())),
        "jain": short(float(counted.sum()) ** 2 / (len(counted) * squares)) if squares else None,
    }


def _lorenz(counted: Any) -> dict[str, Any] | None:
    """The share of updates of the least active clients, and the Gini coefficient."""
    total = float(counted.sum())
    if not total:
        return None
    rising = np.concatenate([[0.0], np.cumsum(np.sort(counted)) / total])
    shares = np.linspace(0.0, 1.0, len(rising))
    kept = spread(len(rising), 100)
    area = float(np.sum((rising[1:] + rising[:-1]) / 2 * np.diff(shares)))
    return {
        "x": listed(shares[kept]),
        "y": listed(rising[kept]),
        "gini": short(1.0 - 2.0 * area),
    }


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The keys in which configurations differ, with the value of each (null: it has none)."""
    names = dict.fromkeys(name for config in configs for name in config)
    rows = {name: [config.get(name) for config in configs] for name in names}
    return {name: values for name, values in rows.items() if any(v != values[0] for v in values)}
