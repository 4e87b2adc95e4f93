"""The figures that need every request: runs made with ``--events``."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedast.analysis.runs import Run
from fedast.plot.study import By, Given, given, labelled, ordered, variants
from fedast.records.run import EVENTS
from fedast.report.looks import Look, looks
from fedast.reproduce.figures.bars import Bar, BarPanel, draw_bars
from fedast.reproduce.figures.drawing import (
    LINE,
    Columns,
    entitle,
    few_ticks,
    frame,
    head,
    name_axes,
    task_title,
)
from fedast.sim.delays import Speeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Shares:
    """How updates are spread over values of staleness."""

    series: str
    staleness: tuple[int, ...]
    shares: tuple[float, ...]
    """Of the task's updates, in per cent."""
    mean: float


def participation(
    runs: Given, *, series: By = None, columns: Columns = 2, title: str = ""
) -> Figure:
    """How often clients of each speed take part: counted updates per client over the mean of all.

    1 is an equal part. Seeds are dots.
    """
    found = _logged(runs)
    labels = variants(found) if series is None else labelled(found, series)
    by_series = {
        label: [participation_of(run) for run in mine]
        for label, mine in _by_label(found, labels).items()
    }
    groups = sorted({factor for each in by_series.values() for one in each for factor in one})
    panel = BarPanel(
        "",
        {
            f"{factor:g}": [
                _bar(label, [one[factor] for one in each if factor in one])
                for label, each in by_series.items()
            ]
            for factor in groups
        },
    )
    figure = draw_bars(
        [panel],
        _looks(found, labels),
        "updates per client, 1: the mean of all clients",
        columns,
        "speed factor (larger is slower)",
    )
    if title:
        head(figure, title)
    return figure


def participation_of(run: Run) -> dict[float, float]:
    """By speed factor: counted updates per client, over the mean of all clients."""
    clients = int(run.keys.get("simulation.clients", 0))
    factors: Sequence[float] = run.keys.get("simulation.speeds.factors", (1.0,))
    shares: Sequence[float] = run.keys.get("simulation.speeds.shares", (1.0,))
    if not clients:
        raise ValueError(f"{run.name}: its configuration has no simulated clients")
    speeds = Speeds(clients, factors, shares, run.seed)
    counted = Counter(row["client"] for row in run.request_rows() if row["outcome"] == "counted")
    members = Counter(speeds.of(client) for client in range(clients))
    updates: Counter[float] = Counter()
    for client, count in counted.items():
        updates[speeds.of(client)] += count
    mean = counted.total() / clients
    return {
        factor: updates[factor] / members[factor] / mean if mean else 0.0
        for factor in sorted(members)
    }


def _bar(label: str, values: Sequence[float]) -> Bar:
    if not values:
        return Bar(label, None, "no such clients")
    mean = statistics.fmean(values)
    dots = tuple(values) if len(values) > 1 else ()
    return Bar(label, mean, f"{mean:.2f}", dots=dots)


def staleness(runs: Given, *, series: By = None, columns: Columns = 2, title: str = "") -> Figure:
    """How stale updates are, by task: the share of the counted updates with each staleness."""
    found = _logged(runs)
    labels = variants(found) if series is None else labelled(found, series)
    panels: dict[str, list[Shares]] = {}
    for label, mine in _by_label(found, labels).items():
        for task, shares in staleness_of(label, mine).items():
            panels.setdefault(task, []).append(shares)
    figure = _draw_staleness(panels, _looks(found, labels), columns)
    if title:
        head(figure, title)
    return figure


def staleness_of(label: str, runs: Sequence[Run]) -> dict[str, Shares]:
    """By task, over all these runs."""
    counts: dict[str, Counter[int]] = {}
    for run in runs:
        for row in run.request_rows():
            if row["outcome"] == "counted":
                counts.setdefault(row["task"], Counter())[row["staleness"] or 0] += 1
    found = {}
    for task, each in counts.items():
        total = each.total()
        values = tuple(range(max(each) + 1))
        shares = tuple(100 * each[value] / total for value in values)
        mean = sum(value * count for value, count in each.items()) / total
        found[task] = Shares(label, values, shares, mean)
    return found


def _draw_staleness(
    panels: Mapping[str, Sequence[Shares]], looks_of: Mapping[str, Look], columns: Columns
) -> Figure:
    if not panels:
        raise ValueError("no update was counted in these runs")
    figure, places = frame(len(panels), columns + 1, columns, 1.4)
    for place, (task, lines) in zip(places, panels.items(), strict=True):
        entitle(place, task_title(task))
        for line in lines:
            look = looks_of[line.series]
            place.step(
                line.staleness, line.shares, where="mid", color=look.colour, linestyle=look.dash,
                linewidth=LINE, label=line.series,
            )  # fmt: skip
            place.axvline(line.mean, color=look.colour, linewidth=0.6, linestyle=":")
        # Updates of synchronous rounds are never stale: one high bar would hide the others.
        spread = [max(line.shares) for line in lines if len(line.shares) > 1]
        place.set_ylim(0, 1.1 * max(spread) if spread else None)
        place.set_xlim(left=-0.5)
    few_ticks(places)
    name_axes(figure, places, "staleness in rounds (dotted: mean)", ["updates, %"] * len(places))
    return figure


def _logged(runs: Given) -> list[Run]:
    found = [run for run in given(runs) if run.has_events]
    if not found:
        raise ValueError(f"no run has {EVENTS}: make them with --events")
    return found


def _by_label(runs: Sequence[Run], labels: Sequence[str]) -> dict[str, list[Run]]:
    pairs = list(zip(runs, labels, strict=True))
    return {label: [run for run, mine in pairs if mine == label] for label in ordered(labels)}


def _looks(runs: Sequence[Run], labels: Sequence[str]) -> dict[str, Look]:
    algorithms = {label: run.algorithm for run, label in zip(runs, labels, strict=True)}
    return looks({label: algorithms[label] for label in ordered(labels)})
