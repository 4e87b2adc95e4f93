"""What the figures share: sizes, panels, one legend, places left empty, text that does not collide.

A figure is as wide as one or two columns of a paper, whatever it shows, and its text is of one
size; more panels make it higher.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedast.records.compact import CompactRun
from fedast.report.looks import Look, looks
from fedast.reproduce.results import Columns as Columns
from fedast.reproduce.results import Key, Missing, StudyResults
from fedast.tasks.options import TASKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS: Mapping[int, float] = {1: 3.4, 2: 7.0}
"""Inches, by the number of a paper's columns that a figure spans."""
TEXT, SMALL = 8.0, 7.0
"""Sizes of text, in points."""
GREY = "#666666"
LINE = 1.2
_SETTINGS: dict[Any, Any] = {
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "figure.labelsize": TEXT,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.4,
}


def frame(panels: int, across: int, columns: Columns, height: float) -> tuple[Figure, list[Axes]]:
    """A figure and its panels, so many beside one another, each of this height in inches."""
    import matplotlib
    from matplotlib.figure import Figure

    across = min(across, panels)
    rows = -(-panels // across)
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(
            figsize=(WIDTHS[columns], (height + 0.25) * rows + 0.5), layout="constrained"
        )
        grid = figure.subplots(rows, across, squeeze=False)
    found = list(grid.flat)
    for panel in found[panels:]:
        panel.remove()
    for panel in found[:panels]:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, linewidth=0.5)
        panel.set_axisbelow(True)
        panel.tick_params(labelsize=SMALL, width=0.6, length=2.5)
    return figure, found[:panels]


def few_ticks(panels: Sequence[Axes], axis: Literal["x", "y", "both"] = "both") -> None:
    """No more numbers on an axis than fit beside one another."""
    if not panels:
        return
    across = len({round(panel.get_position().x0, 3) for panel in panels})
    figure = panels[0].get_figure(root=True)
    assert figure is not None
    width = figure.get_figwidth() / across
    for panel in panels:
        if axis != "y":
            panel.locator_params(axis="x", nbins=max(2, int(2.2 * width)))
        if axis != "x":
            panel.locator_params(axis="y", nbins=5)


def name_axes(figure: Figure, panels: Sequence[Axes], x: str, y: Sequence[str]) -> None:
    """The legend, and what the axes are: once if it is the same for all panels.

    The legend is one for all panels, below them, in as many columns as fit.
    """
    if len(set(y)) == 1:
        if y[0]:
            figure.supylabel(y[0], fontsize=TEXT)
    else:
        for panel, name in zip(panels, y, strict=True):
            panel.set_ylabel(name)
    found = _legend_entries(figure)
    if not found:
        figure.supxlabel(x, fontsize=TEXT)
        return
    room = figure.get_figwidth() - 0.2
    labels = [textwrap.fill(label, int(14 * room) - 6) for label in found]
    columns = next(
        (count for count in range(len(labels), 1, -1) if _legend_width(labels, count) <= room), 1
    )
    figure.legend(
        list(found.values()), labels, loc="outside lower center", frameon=False, ncols=columns,
        fontsize=SMALL, handlelength=2.2, columnspacing=1.2,
        # As a label of the figure it would be put where the legend is.
        title=x, title_fontsize=TEXT,
    )  # fmt: skip


def _legend_entries(figure: Figure) -> dict[str, Any]:
    """Handles by label: lines and bars first, then what marks points of them."""
    from matplotlib.collections import PathCollection

    found: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return dict(sorted(found.items(), key=lambda entry: isinstance(entry[1], PathCollection)))


def _legend_width(labels: Sequence[str], columns: int) -> float:
    """Inches; matplotlib fills a legend column by column, the first ones with one more."""
    widest = [
        max(text_width(label) for label in column) for column in np.array_split(labels, columns)
    ]
    return sum(widest) + columns * (2.2 + 0.8 + 1.2) * SMALL / 72


@lru_cache(maxsize=2000)
def text_width(text: str, size: float = SMALL) -> float:
    """Of the longest line, in inches: a little more than its letters take in print, because on a
    screen they take whole pixels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(size=size)
    lines = [TextPath((0, 0), line, prop=font) for line in text.splitlines() if line.strip()]
    return 1.06 / 72 * max((line.get_extents().width for line in lines), default=0.0)


def head(figure: Figure, text: str, **how: Any) -> None:
    """A line above all panels, folded to the figure's width."""
    characters = int(15 * figure.get_figwidth())
    figure.suptitle(textwrap.fill(text, characters), **{"fontsize": TEXT, **how})


def entitle(panel: Axes, title: str, **how: Any) -> None:
    """Give a panel its title, folded to its width and a little more."""
    room = 1.15 * inches(panel)
    lines = []
    for line in title.splitlines():
        share = room / max(room, text_width(line, TEXT))
        lines += textwrap.wrap(line, max(8, int(0.9 * share * len(line)) if share < 1 else 999))
    panel.set_title("\n".join(lines), fontsize=TEXT, **how)


def label_above(panel: Axes, marks: Sequence[tuple[float, str, str]], title: str) -> None:
    """Text above a panel at places of its x axis, as (x, text, colour), in as many lines as it
    takes; the title comes above. The figure must have been laid out."""
    low, high = panel.get_xlim()
    scale = inches(panel) / (high - low)
    ends: list[float] = []
    """Of each line, where its last text ends."""
    for x, text, colour in sorted(marks):
        half = text_width(text) / 2
        place = (x - low) * scale
        line = next((n for n, end in enumerate(ends) if place - half > end + 0.05), len(ends))
        ends[line:] = [place + half, *ends[line + 1 :]]
        panel.annotate(
            text, (x, 1.0), xycoords=("data", "axes fraction"), textcoords="offset points",
            xytext=(0, 1.5 + line * (SMALL + 1.5)), ha="center", va="bottom",
            fontsize=SMALL, color=colour, annotation_clip=False,
        )  # fmt: skip
    entitle(panel, title, pad=3 + len(ends) * (SMALL + 1.5))


def inches(panel: Axes) -> float:
    """How wide a panel is; about, as long as the figure has not been laid out."""
    figure = panel.get_figure(root=True)
    assert figure is not None
    return float(panel.get_position().width * figure.get_figwidth())


def empty(panel: Axes, text: str = "not run yet") -> None:
    panel.text(
        0.5, 0.5, text, transform=panel.transAxes, ha="center", color=GREY, fontsize=SMALL
    )  # fmt: skip
    panel.set_xticks([])
    panel.set_yticks([])
    panel.grid(visible=False)


def runs_if_any(results: StudyResults, key: Key) -> list[CompactRun]:
    """A variant's runs by seed; empty if it has not been run."""
    try:
        return results.runs_of(key)
    except Missing:
        return []


def series_looks(results: StudyResults) -> dict[str, Look]:
    """By label of a series: the look of its algorithm."""
    axis = results.axis("series")
    if axis is None:
        return looks({"": results.algorithm(next(iter(results.targets)))})
    place = results.axes.index(axis)
    return looks(
        {
            label: results.algorithm(next(key for key in results.targets if key[place] == label))
            for label in axis.labels
        }
    )


def task_title(task: str) -> str:
    """A task as figures write it."""
    options = TASKS.known(task)
    return (options.display_name if options is not None else "") or task


def metric_of(results: StudyResults, task: str | None = None) -> str:
    """The name of the metric (of a task, or of all), for labels; "metric" if there are several."""
    names = {
        record.metric
        for runs in results.runs.values()
        for run in runs.values()
        for name, record in run.tasks.items()
        if task in (None, name)
    }
    return names.pop() if len(names) == 1 else "metric"


def percent(value: float, sign: bool = False) -> str:
    """A number of per cent with a true minus, and no sign at zero."""
    number = round(value)
    text = f"{number:+d}" if sign and number else str(number)
    return f"{text.replace('-', '−')} %"


def done_text(results: StudyResults) -> str:
    """What the time axis of a bar or dot is."""
    held = results.criterion == "held"
    return "simulated time until the target is held" if held else "simulated time to target"
