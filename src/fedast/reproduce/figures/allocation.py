"""Active requests over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedast.records.compact import CompactRun
from fedast.report.looks import task_looks
from fedast.reproduce.figures.drawing import (
    LINE,
    Columns,
    empty,
    entitle,
    few_ticks,
    frame,
    name_axes,
    runs_if_any,
    task_title,
)
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.results import StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Steps:
    task: str
    times: tuple[float, ...]
    counts: tuple[int, ...]
    """From each time on; the last once more at the end."""


@study_figure("allocation")
def allocation(results: StudyResults) -> Figure:
    """Active requests of every task, of the first variant that reallocates any."""
    for key in results.folders:
        runs = runs_if_any(results, key)
        if runs and any(len(task.requests) > 1 for task in runs[0].tasks.values()):
            title = f"{', '.join(key)}, seed {runs[0].seed}"
            return draw_allocation([(title, steps_of(runs[0]))], results.columns)
    return draw_allocation([("", [])], results.columns)


def steps_of(run: CompactRun) -> list[Steps]:
    """Of every task that has requests, until it is done."""
    found = []
    for name, task in run.tasks.items():
        if not task.requests:
            continue
        ended = task.finish_reason == "target" and task.curve
        end = task.curve[-1].time if ended else run.finish_time
        kept = [(time, count) for time, count in task.requests if time <= end]
        times, counts = zip(*kept, strict=True)
        found.append(Steps(name, (*times, end), (*counts, counts[-1])))
    return found


def draw_allocation(panels: Sequence[tuple[str, Sequence[Steps]]], columns: Columns) -> Figure:
    figure, places = frame(len(panels), columns, columns, 2.2 if len(panels) == 1 else 1.6)
    looks = task_looks(list(dict.fromkeys(line.task for _, lines in panels for line in lines)))
    for place, (title, lines) in zip(places, panels, strict=True):
        entitle(place, title)
        if not lines:
            empty(place)
            continue
        for line in lines:
            look = looks[line.task]
            place.step(
                line.times, line.counts, where="post", color=look.colour, linestyle=look.dash,
                linewidth=LINE, label=task_title(line.task),
            )  # fmt: skip
            place.scatter([line.times[-1]], [line.counts[-1]], s=14, color=look.colour, zorder=4)
        place.set_xlim(left=0)
        place.set_ylim(bottom=0)
    few_ticks([place for place, (_, lines) in zip(places, panels, strict=True) if lines])
    name_axes(figure, places, "simulated time", ["active requests R"] * len(places))
    return figure
