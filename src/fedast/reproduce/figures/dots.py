"""A row for each variant, seeds as dots."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedast.records.run import ALL_TASKS
from fedast.report.looks import colour_of
from fedast.reproduce.figures.drawing import (
    SMALL,
    Columns,
    done_text,
    entitle,
    few_ticks,
    frame,
    name_axes,
    runs_if_any,
    task_title,
)
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.results import Key, StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNREACHED = "a run that did not get there"


@dataclass(frozen=True)
class DotRow:
    label: str
    colour: str
    baseline: bool
    times: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        return [time for time in self.times if time is not None]

    @property
    def missed(self) -> int:
        return len(self.times) - len(self.known)


@dataclass(frozen=True)
class DotPanel:
    title: str
    rows: tuple[DotRow, ...]


@study_figure("dots")
def dots(results: StudyResults) -> Figure:
    """Times to target of many variants, in the order of the study."""
    return draw_dots(list(dot_panels(results)), done_text(results), results.columns)


@study_figure("ranking")
def ranking(results: StudyResults) -> Figure:
    """Times to target of many variants, the fastest first."""
    return draw_dots(list(dot_panels(results, ranked=True)), done_text(results), results.columns)


def dot_panels(results: StudyResults, *, ranked: bool = False) -> Iterator[DotPanel]:
    """A panel for the time of all tasks and one for each task, with a row for each variant.

    A ranking uses and shows only the seeds that all variants have been run with, if there are
    any.
    """
    keys = [key for key in results.folders if runs_if_any(results, key)]
    shown: set[int] | None = None
    if ranked:
        shown = results.common_seeds(keys) or None
        keys.sort(key=lambda key: _overall(_times(results, key, None, shown)))
    first, *others = results.targets.values()
    tasks = [task for task in first if all(task in other for other in others)]
    whole = ALL_TASKS if results.per_run == "last" else "mean of the tasks"
    for task in [None, *tasks] if len(tasks) != 1 else tasks:
        yield DotPanel(
            task_title(task) if task else whole,
            tuple(
                DotRow(
                    ", ".join(filter(None, key)),
                    colour_of(results.algorithm(key)),
                    results.baseline in key,
                    _times(results, key, task, shown),
                )
                for key in keys
            ),
        )


def _times(
    results: StudyResults, key: Key, task: str | None, seeds: set[int] | None
) -> tuple[float | None, ...]:
    times = results.times(key, task)
    return tuple(time for seed, time in times.items() if seeds is None or seed in seeds)


def _overall(times: Sequence[float | None]) -> float:
    known = [time for time in times if time is not None]
    return statistics.fmean(known) if known and len(known) == len(times) else math.inf


def draw_dots(panels: Sequence[DotPanel], what: str, columns: Columns) -> Figure:
    """In one column there is room for the first panel only."""
    panels = panels[:1] if columns == 1 else panels
    folded = [textwrap.fill(row.label, 42 if columns == 2 else 24) for row in panels[0].rows]
    most = max((label.count("\n") + 1 for label in folded), default=1)
    across = len(panels) if len(panels) <= 5 else 3
    figure, places = frame(len(panels), across, columns, 0.2 + (0.06 + 0.1 * most) * len(folded))
    for number, (place, panel) in enumerate(zip(places, panels, strict=True)):
        entitle(place, panel.title)
        for at, row in enumerate(panel.rows):
            _draw_row(place, at, row)
        place.set_ylim(len(panel.rows) - 0.4, -0.6)
        place.set_yticks(range(len(folded)), folded)
        for label, row in zip(place.get_yticklabels(), panel.rows, strict=True):
            label.set_fontweight("bold" if row.baseline else "normal")
        place.tick_params(axis="y", labelleft=number % across == 0, length=0, labelsize=SMALL)
        place.margins(x=0.12)
        place.locator_params(axis="x", nbins=3)
    if len(panels) < 3:
        few_ticks(places, "x")
    name_axes(figure, places, what, [""] * len(places))
    return figure


def _draw_row(place: Axes, at: int, row: DotRow) -> None:
    known = row.known
    place.scatter(known, [at] * len(known), s=9, color=row.colour, alpha=0.5, linewidths=0)
    if known and not row.missed:
        mean = statistics.fmean(known)
        place.plot([mean, mean], [at - 0.36, at + 0.36], color=row.colour, linewidth=2.0)
        if row.baseline:
            place.axvline(mean, color=row.colour, linewidth=0.8, linestyle=":", zorder=0)
    for number in range(row.missed):
        place.scatter(
            [1.0 - 0.06 * number], [at], marker=">", s=14, facecolors="white",
            edgecolors=row.colour, linewidths=0.8, transform=place.get_yaxis_transform(),
            clip_on=False, zorder=4, label=_UNREACHED,
        )  # fmt: skip
