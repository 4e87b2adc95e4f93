"""Mean learning curves: the metric or the loss over time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedast.records.metrics import Point
from fedast.report.compare import mean_curve
from fedast.report.figures import DASHES
from fedast.reproduce.figures.drawing import (
    GREY,
    colour_of,
    empty,
    frame,
    legend,
    metric_of,
    runs_if_any,
)
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.results import Key, StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@study_figure("curves")
def curves(results: StudyResults) -> Figure:
    """The metric, with targets and the mean times at which they are reached."""
    return _mean_curves(results, metric_of(results), lambda point: point, targets=True)


@study_figure("losses")
def losses(results: StudyResults) -> Figure:
    """The loss over simulated time."""
    return _mean_curves(
        results, "loss", lambda point: replace(point, value=point.loss), targets=False
    )


def _mean_curves(
    results: StudyResults, what: str, of: Callable[[Point], Point], *, targets: bool
) -> Figure:
    """A panel for each pair of panel and x; for each task if the tasks differ and there is no x."""
    panels, xs, series = (results.labels(role) for role in ("panel", "x", "series"))
    first = next(iter(results.targets.values()))
    apart = results.per_run == "last" and len(first) > 1 and len(xs) == 1
    columns: list[str | None] = list(first) if apart else list(xs)
    figure = frame(len(panels), len(columns), 4.6 if len(columns) < 3 else 3.6, 2.9)
    grid = np.array(figure.axes).reshape(len(panels), len(columns))
    for row, panel_label in enumerate(panels):
        for column, name in enumerate(columns):
            panel: Axes = grid[row, column]
            task = name if apart else None
            x = "" if apart or name is None else name
            axis = results.axis("x")
            title = task or " ".join(
                filter(None, (panel_label, f"{x} {axis.name}" if axis else ""))
            )
            panel.set_title(title, fontsize=10)
            for number, label in enumerate(series):
                key = results.key(panel=panel_label, x=x, series=label)
                _curve(panel, results, key, task, label, number, of, targets)
            if not panel.lines:
                empty(panel)
                continue
            key = results.key(panel=panel_label, x=x, series=series[0])
            target = (
                results.targets[key][task] if task else next(iter(results.targets[key].values()))
            )
            if target is not None and targets:
                panel.axhline(target, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
            panel.set_xlabel("simulated time")
            panel.set_ylabel(f"mean test {what}" if task is None else f"test {what}")
            panel.set_xlim(left=0)
    legend(figure)
    return figure


def _curve(
    panel: Axes,
    results: StudyResults,
    key: Key,
    task: str | None,
    label: str,
    number: int,
    of: Callable[[Point], Point],
    mark_time: bool,
) -> None:
    runs = runs_if_any(results, key)
    curves = [
        [of(point) for point in record.curve]
        for run in runs
        for name, record in run.tasks.items()
        if (task is None or name == task) and record.curve
    ]
    if not curves:
        return
    curve = mean_curve(curves)
    colour = colour_of(number)
    panel.plot(
        curve.time, curve.mean, DASHES[number % len(DASHES)], color=colour, linewidth=1.5,
        label=label,
    )  # fmt: skip
    if mark_time:
        times = [results.time(run, task) for run in runs]
        known = [time for time in times if time is not None]
        if known and len(known) == len(times):
            mean = statistics.fmean(known)
            level = float(np.interp(mean, curve.time, curve.mean))
            panel.scatter([mean], [level], s=36, c=colour, edgecolors="white", zorder=5)
            panel.annotate(
                f"{mean:.0f}", (mean, level), xytext=(3, -11 - 9 * (number % 3)),
                textcoords="offset points", fontsize=8, color=colour,
            )  # fmt: skip
