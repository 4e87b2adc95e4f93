"""A row for each variant, seeds as dots."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from fedast.reproduce.figures.drawing import GREY, colour_of, frame, runs_if_any
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.results import Key, StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@study_figure("dots")
def dots(results: StudyResults) -> Figure:
    """Times to target of many variants, in the order of the study."""
    return _dot_rows(results, ranked=False)


@study_figure("ranking")
def ranking(results: StudyResults) -> Figure:
    """Times to target of many variants, the fastest first."""
    return _dot_rows(results, ranked=True)


def _dot_rows(results: StudyResults, *, ranked: bool) -> Figure:
    """A row for each variant, a panel for its time and one for each task: seeds as dots, their
    mean as a bar.

    A ranking uses and shows only the seeds that all variants have been run with, if there are
    any.
    """
    rows = [
        (", ".join(filter(None, key)), key) for key in results.folders if runs_if_any(results, key)
    ]
    shown: set[int] | None = None
    if ranked:
        shown = results.common_seeds([key for _, key in rows]) or None
        rows.sort(key=lambda row: _overall(results, row[1], shown))
    first, *others = results.targets.values()
    columns = [None, *(task for task in first if all(task in other for other in others))]
    figure = frame(1, len(columns), 2.7, 0.9 + 0.21 * len(rows))
    for panel, task in zip(figure.axes, columns, strict=True):
        whole = "all tasks" if results.per_run == "last" else "mean of the tasks"
        panel.set_title(task or whole, fontsize=10)
        panel.set_xlabel("simulated time to target")
        for place, (_, key) in enumerate(rows):
            times = _times(results, key, task, shown)
            known = [time for time in times if time is not None]
            colour = colour_of(0 if results.baseline in key else 1)
            panel.scatter(known, [place] * len(known), s=14, color=colour, alpha=0.55, linewidths=0)
            if len(known) == len(times):
                mean = statistics.fmean(known)
                panel.plot([mean, mean], [place - 0.36, place + 0.36], color=colour, linewidth=2.2)
                if results.baseline in key:
                    panel.axvline(mean, color=colour, linewidth=0.8, linestyle=":", zorder=0)
            else:
                panel.annotate(  # slow variants have room on the left
                    f"{len(times) - len(known)} of {len(times)} not reached", (0.03, place),
                    xycoords=("axes fraction", "data"), va="center", fontsize=7, color=GREY,
                )  # fmt: skip
        panel.set_ylim(len(rows) - 0.4, -0.6)
        panel.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
        panel.margins(x=0.12)
        if panel is not figure.axes[0]:
            panel.tick_params(labelleft=False)
    return figure


def _times(
    results: StudyResults, key: Key, task: str | None, seeds: set[int] | None
) -> list[float | None]:
    times = results.times(key, task)
    return [time for seed, time in times.items() if seeds is None or seed in seeds]


def _overall(results: StudyResults, key: Key, seeds: set[int] | None) -> float:
    times = _times(results, key, None, seeds)
    known = [time for time in times if time is not None]
    return statistics.fmean(known) if known and len(known) == len(times) else math.inf
