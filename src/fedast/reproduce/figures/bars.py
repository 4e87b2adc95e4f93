"""Grouped bars: times to target, and gains over the baseline."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedast.records.run import ALL_TASKS
from fedast.report.looks import Look
from fedast.reproduce.figures.drawing import (
    GREY,
    SMALL,
    Columns,
    done_text,
    empty,
    entitle,
    few_ticks,
    frame,
    inches,
    name_axes,
    percent,
    series_looks,
    task_title,
    text_width,
)
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.gains import gains_of
from fedast.reproduce.results import Key, Missing, StudyResults, Unreached

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR, _GAP = 0.135, 0.1
"""Inches from bar to bar, and more from group to group."""


@dataclass(frozen=True)
class Bar:
    series: str
    length: float | None
    """None: there is no bar, and ``text`` says why."""
    text: str
    """Beside the bar."""
    spread: float | None = None
    dots: tuple[float, ...] = ()


@dataclass(frozen=True)
class BarPanel:
    title: str
    groups: Mapping[str, Sequence[Bar]]


@study_figure("bars")
def bars(results: StudyResults) -> Figure:
    """Mean times over seeds; a group for each value of x, or for each task if there is no x."""
    panels = list(bar_panels(results))
    what = done_text(results)
    if results.baseline in results.labels("series") and len(results.labels("series")) > 1:
        what += f" (gain over {results.baseline})"
    axis = results.axis("x")
    groups_are = axis.name if axis else ""
    return draw_bars(panels, series_looks(results), what, results.columns, groups_are)


@study_figure("gains", roles=("series",))
def gains(results: StudyResults) -> Figure:
    """Gains over the baseline, by task: mean and standard error, seeds as dots."""
    what = f"less time than {results.baseline}, %"
    return draw_bars([gain_panel(results)], series_looks(results), what, results.columns)


def bar_panels(results: StudyResults) -> Iterator[BarPanel]:
    by_task = results.axis("x") is None and results.per_run == "last"
    for panel in results.labels("panel"):
        groups = _groups(results, panel, by_task)
        yield BarPanel(
            f"{panel} targets" if panel and by_task else panel,
            {
                name: [_bar(results, label, key, keys.get(results.baseline), task)
                       for label, key in keys.items()]
                for name, (task, keys) in groups.items()
            },
        )  # fmt: skip


def _groups(
    results: StudyResults, panel: str, by_task: bool
) -> dict[str, tuple[str | None, dict[str, Key]]]:
    """By the group's name: its task if it is one, and its variants by series."""
    series = results.labels("series")
    if not by_task:
        return {
            x: (None, {label: results.key(panel=panel, x=x, series=label) for label in series})
            for x in results.labels("x")
        }
    keys = {label: results.key(panel=panel, x="", series=label) for label in series}
    tasks = results.targets[next(iter(keys.values()))]
    groups: dict[str, tuple[str | None, dict[str, Key]]] = {
        task_title(task): (task, keys) for task in tasks
    }
    if len(tasks) > 1:
        groups[ALL_TASKS] = (None, keys)
    return groups


def _bar(results: StudyResults, label: str, key: Key, base: Key | None, task: str | None) -> Bar:
    try:
        times = list(results.times(key, task).values())
    except Missing:
        return Bar(label, None, "not run")
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return Bar(label, None, "not held" if results.criterion == "held" else "not reached")
    mean = statistics.fmean(known)
    text = f"{mean:.0f}" if mean >= 100 else f"{mean:.1f}"
    if base is not None and key != base:
        with contextlib.suppress(Missing, Unreached):
            text += f" ({percent(results.gains(key, base, task)[0], sign=True)})"
    return Bar(label, mean, text, statistics.stdev(known) if len(known) > 1 else None)


def gain_panel(results: StudyResults) -> BarPanel:
    """A group for each task and one for all, a bar for each variant but the baseline."""
    first = next(iter(results.targets.values()))
    place = next(i for i, axis in enumerate(results.axes) if axis.role == "series")
    tasks: dict[str, str | None] = {task_title(task): task for task in first}
    if len(first) > 1:
        tasks[ALL_TASKS] = None
    groups: dict[str, list[Bar]] = {}
    for name, task in tasks.items():
        groups[name] = []
        for gain in gains_of(results, task):
            label = gain.variant[place]
            if label == results.baseline:
                continue
            if gain.missed or not gain.gains:
                groups[name].append(Bar(label, None, "not reached"))
                continue
            mean = statistics.fmean(gain.gains)
            error = "" if gain.error is None else f" ± {gain.error:.0f}"
            text = percent(mean).replace(" %", f"{error} %")
            groups[name].append(Bar(label, mean, text, gain.error, gain.gains))
    return BarPanel("", groups)


def draw_bars(
    panels: Sequence[BarPanel],
    looks: Mapping[str, Look],
    what: str,
    columns: Columns,
    groups_are: str = "",
    *,
    strong: str | None = None,
) -> Figure:
    """Lying bars: their text has room whatever their number. ``strong`` is a group in bold."""
    bars = max(sum(map(len, panel.groups.values())) for panel in panels)
    count = max(len(panel.groups) for panel in panels)
    across = 1 if columns == 1 else 3 if len(panels) in (3, 5, 6) else 2
    figure, places = frame(len(panels), across, columns, _BAR * bars + _GAP * (count + 1))
    alone = all(list(panel.groups) == [""] for panel in panels)
    for number, (place, panel) in enumerate(zip(places, panels, strict=True)):
        entitle(place, panel.title)
        _draw_panel(place, panel, looks, alone, strong)
        if number % across and list(panel.groups) == list(panels[number - 1].groups):
            place.tick_params(axis="y", labelleft=False)
    drawn = [place for place in places if place.patches]
    few_ticks(drawn, "x")
    name_axes(figure, places, what, [groups_are] * len(places))
    figure.draw_without_rendering()
    for place, panel in zip(places, panels, strict=True):
        _make_room(place, panel)
    return figure


def _draw_panel(
    place: Axes, panel: BarPanel, looks: Mapping[str, Look], alone: bool, strong: str | None
) -> None:
    bars = [bar for group in panel.groups.values() for bar in group]
    lengths = [bar.length for bar in bars if bar.length is not None]
    if not lengths:
        reached = any(bar.text != "not run" for bar in bars)
        empty(place, bars[0].text if bars and reached else "not run yet")
        return
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for name, group in panel.groups.items():
        y += _GAP
        ticks.append((y + _BAR * len(group) / 2, name))
        for bar in group:
            look, middle = looks[bar.series], y + _BAR / 2
            place.barh(
                middle, bar.length or 0.0, 0.86 * _BAR, color=look.colour, hatch=look.hatch,
                edgecolor="white", linewidth=0.0, label=None if alone else bar.series,
                xerr=bar.spread or None,
                error_kw={"elinewidth": 0.7, "ecolor": "#333333", "capsize": 1.5},
            )  # fmt: skip
            place.scatter(bar.dots, [middle] * len(bar.dots), s=5, color="#333333", zorder=3, lw=0)
            if bar.text:
                place.annotate(
                    bar.text, (_end(bar), middle), xytext=(3.5, 0), textcoords="offset points",
                    va="center_baseline", fontsize=SMALL - 0.5, annotation_clip=False,
                    color="black" if bar.length else GREY,
                    fontweight="bold" if name == strong else "normal",
                )  # fmt: skip
            if alone:
                ticks[-1:] = [*(ticks[-1:] if ticks[-1][1] else []), (middle, bar.series)]
            y += _BAR
    place.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    place.tick_params(axis="y", length=0)
    place.set_ylim(y + _GAP, 0)
    place.grid(axis="y", visible=False)


def _end(bar: Bar) -> float:
    """Where a bar with all that belongs to it ends."""
    return max(0.0, (bar.length or 0.0) + (bar.spread or 0.0), *bar.dots)


def _make_room(place: Axes, panel: BarPanel) -> None:
    """Extend the axis so that the text beside the bars stays inside."""
    bars = [bar for group in panel.groups.values() for bar in group]
    if not place.patches or not bars:
        return
    low, width = min(0.0, place.get_xlim()[0]), inches(place)
    high = max(_end(bar) for bar in bars) or 1.0
    for bar in bars:
        share = min(0.8, (text_width(bar.text, SMALL) + 0.08) / width)
        high = max(high, low + (_end(bar) - low) / (1 - share))
    place.set_xlim(low, high)
