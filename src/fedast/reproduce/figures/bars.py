"""Grouped bars: times to target, with gains over the baseline."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedast.reproduce.figures.drawing import GREY, colour_of, empty, frame, legend
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.results import Key, Missing, StudyResults, Unreached

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@study_figure("bars")
def bars(results: StudyResults) -> Figure:
    """Mean times over seeds; a group for each value of x, or for each task if there is no x."""
    panels = results.labels("panel")
    by_task = results.axis("x") is None and results.per_run == "last"
    grouped = {label: _groups(results, label, by_task) for label in panels}
    bars = max(sum(map(len, groups.values())) for groups in grouped.values())
    rows = -(-len(panels) // 2)
    columns = -(-len(panels) // rows)
    figure = frame(rows, columns, max(3.4, 0.9 + 0.38 * bars), 3.4)
    for panel, (label, groups) in zip(figure.axes, grouped.items(), strict=False):
        _bar_panel(panel, results, groups)
        panel.set_title(f"{label} targets" if label and by_task else label, fontsize=10)
        panel.set_ylabel("simulated time to target")
        axis = results.axis("x")
        if axis is not None:
            panel.set_xlabel(axis.name)
    for panel in figure.axes[len(panels) :]:
        panel.set_visible(False)
    legend(figure)
    return figure


def _groups(
    results: StudyResults, panel: str, by_task: bool
) -> dict[str, list[tuple[str, Key, str | None]]]:
    """The bars of each group: series, variant, and the task if the group is one task."""
    series = results.labels("series")
    if not by_task:
        return {
            x: [(label, results.key(panel=panel, x=x, series=label), None) for label in series]
            for x in results.labels("x")
        }
    keys = {label: results.key(panel=panel, x="", series=label) for label in series}
    tasks = next(iter(results.targets[key] for key in keys.values()))
    groups: dict[str, list[tuple[str, Key, str | None]]] = {
        task: [(label, key, task) for label, key in keys.items()] for task in tasks
    }
    groups["all tasks"] = [(label, key, None) for label, key in keys.items()]
    return groups


def _bar_panel(
    panel: Axes, results: StudyResults, groups: Mapping[str, Sequence[tuple[str, Key, str | None]]]
) -> None:
    count = len(next(iter(groups.values())))
    step = 0.8 / count
    tallest = 0.0
    open_bars: list[tuple[float, str]] = []

    def leave_open(x: float, number: int, label: str, why: str) -> None:
        open_bars.append((x, why))
        panel.bar(x, 0.0, step * 0.92, color=colour_of(number), label=label)  # for the legend

    for place, bars in enumerate(groups.values()):
        for number, (label, key, task) in enumerate(bars):
            x = place + (number - (count - 1) / 2) * step
            try:
                times = list(results.times(key, task).values())
            except Missing:
                leave_open(x, number, label, "not run")
                continue
            known = [time for time in times if time is not None]
            if len(known) < len(times):
                leave_open(x, number, label, "not reached")
                continue
            mean = statistics.fmean(known)
            deviation = statistics.stdev(known) if len(known) > 1 else None
            tallest = max(tallest, mean + (deviation or 0.0))
            panel.bar(
                x, mean, step * 0.92, yerr=deviation, color=colour_of(number), label=label,
                error_kw={"elinewidth": 0.9, "ecolor": "#333333"}, capsize=2,
            )  # fmt: skip
            _gain_label(panel, results, groups, place, number, (x, mean + (deviation or 0.0)))
    if not tallest:
        empty(panel, "not reached" if "not reached" in dict(open_bars).values() else "not run yet")
        return
    top = tallest * 1.16
    panel.set_xlim(-0.5, len(groups) - 0.5)
    for x, text in open_bars:
        panel.text(x, top * 0.02, text, rotation=90, ha="center", va="bottom", fontsize=7,
                   color=GREY)  # fmt: skip
    panel.set_ylim(0, top)
    many = len(groups) > 12
    panel.set_xticks(
        range(len(groups)), list(groups), fontsize=7 if many else 8, rotation=90 if many else 0
    )
    if list(groups) == [""]:
        panel.set_xticks([])
    panel.grid(axis="x", visible=False)


def _gain_label(
    panel: Axes,
    results: StudyResults,
    groups: Mapping[str, Sequence[tuple[str, Key, str | None]]],
    place: int,
    number: int,
    at: tuple[float, float],
) -> None:
    bars = list(groups.values())[place]
    label, key, task = bars[number]
    base = [bar for bar in bars if bar[0] == results.baseline]
    if not base or label == results.baseline:
        return
    try:
        gain, _ = results.gains(key, base[0][1], task)
    except (Missing, Unreached):
        return
    panel.annotate(
        f"{round(gain):+d} %", at, xytext=(0, 2), textcoords="offset points", ha="center",
        fontsize=7, color=colour_of(number),
    )  # fmt: skip
