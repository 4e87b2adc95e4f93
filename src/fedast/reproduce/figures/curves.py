"""Mean learning curves: the metric or the loss over time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedast.records.metrics import Point
from fedast.report.compare import MeanCurve, mean_curve
from fedast.report.looks import Look
from fedast.reproduce.figures.drawing import (
    GREY,
    LINE,
    Columns,
    empty,
    entitle,
    few_ticks,
    frame,
    metric_of,
    name_axes,
    runs_if_any,
    series_looks,
    task_title,
)
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.results import Key, StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADED = 5
"""Ranges over seeds are drawn for up to this many curves; more would hide one another."""


@dataclass(frozen=True)
class Line:
    label: str
    curve: MeanCurve
    runs: int
    done: float | None
    """The mean time to target, if every run reached it."""


@dataclass(frozen=True)
class CurvePanel:
    title: str
    what: str
    """What the curves show."""
    target: float | None
    lines: tuple[Line, ...]


@study_figure("curves")
def curves(results: StudyResults) -> Figure:
    """The metric, with targets and the mean times at which they are reached."""
    return draw_curves(list(curve_panels(results)), series_looks(results), results.columns)


@study_figure("losses")
def losses(results: StudyResults) -> Figure:
    """The loss over simulated time."""
    panels = list(curve_panels(results, loss=True))
    return draw_curves(panels, series_looks(results), results.columns)


def curve_panels(results: StudyResults, *, loss: bool = False) -> Iterator[CurvePanel]:
    """A panel for each pair of panel and x; for each task if the tasks differ and there is no x."""
    panels, xs, series = (results.labels(role) for role in ("panel", "x", "series"))
    first = next(iter(results.targets.values()))
    apart = results.per_run == "last" and len(xs) == 1
    columns: list[tuple[str, str | None]] = [(xs[0], task) for task in first]
    if not apart:
        columns = [(x, None) for x in xs]
    for panel in panels:
        for x, task in columns:
            keys = {label: results.key(panel=panel, x=x, series=label) for label in series}
            lines = (_line(results, key, task, label, loss) for label, key in keys.items())
            targets = results.targets[keys[series[0]]]
            axis = results.axis("x")
            count = f"{x} {axis.name}" if axis else ""
            metric = "loss" if loss else metric_of(results, task)
            yield CurvePanel(
                ", ".join(filter(None, (panel, count, task and task_title(task)))),
                f"test {metric}" if apart else f"mean test {metric}",
                None if loss else targets[task] if task else next(iter(targets.values())),
                tuple(line for line in lines if line is not None),
            )


def _line(results: StudyResults, key: Key, task: str | None, label: str, loss: bool) -> Line | None:
    of: Callable[[Point], Point] = lambda point: point  # noqa: E731
    if loss:
        of = lambda point: replace(point, value=point.loss)  # noqa: E731
    runs = runs_if_any(results, key)
    found = [
        [
            [of(point) for point in record.curve]
            for name, record in run.tasks.items()
            if task in (None, name) and record.curve
        ]
        for run in runs
    ]
    if not any(found):
        return None
    times = [results.time(run, task) for run in runs]
    known = [time for time in times if time is not None]
    done = statistics.fmean(known) if known and len(known) == len(times) and not loss else None
    return Line(label, mean_curve([run for run in found if run]), len(runs), done)


def draw_curves(
    panels: Sequence[CurvePanel], looks: Mapping[str, Look], columns: Columns
) -> Figure:
    across = 2 if len(panels) == 4 else min(len(panels), columns + 1)
    height = 2.2 if across == 1 else 1.4
    figure, places = frame(len(panels), across, columns, height)
    for place, panel in zip(places, panels, strict=True):
        entitle(place, panel.title)
        if not panel.lines:
            empty(place)
            continue
        if panel.target is not None:
            place.axhline(
                panel.target, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0,
                label="target",
            )  # fmt: skip
        for line in panel.lines:
            _draw_line(place, line, looks[line.label], shaded=len(panel.lines) <= SHADED)
        place.set_xlim(left=0)
    few_ticks([place for place, panel in zip(places, panels, strict=True) if panel.lines])
    name_axes(figure, places, "simulated time", [panel.what for panel in panels])
    return figure


def _draw_line(place: Axes, line: Line, look: Look, *, shaded: bool) -> None:
    curve = line.curve
    place.plot(
        curve.time, curve.mean, linestyle=look.dash, color=look.colour, linewidth=LINE,
        label=line.label,
    )  # fmt: skip
    if shaded and line.runs > 1:
        place.fill_between(curve.time, curve.low, curve.high, color=look.colour, alpha=0.15, lw=0)
    if line.done is not None:
        level = float(np.interp(line.done, curve.time, curve.mean))
        place.scatter(
            [line.done], [level], s=22, color=look.colour, edgecolors="white", linewidths=0.7,
            zorder=5,
        )  # fmt: skip
