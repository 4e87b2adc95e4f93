"""Learning curves of one run: every task, and when it reached its target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedast.records.metrics import Point
from fedast.report.looks import task_looks
from fedast.reproduce.figures.drawing import (
    LINE,
    Columns,
    empty,
    entitle,
    few_ticks,
    frame,
    label_above,
    metric_of,
    name_axes,
    runs_if_any,
    task_title,
)
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.results import StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class CurveLine:
    task: str
    curve: tuple[Point, ...]
    target: float | None
    done: float | None

    @property
    def end(self) -> float:
        return self.curve[-1].time if self.curve else 0.0


@dataclass(frozen=True)
class RunPanel:
    title: str
    row: str
    """Panels of one row have the same time axis."""
    lines: tuple[CurveLine, ...]


@study_figure("tasks")
def tasks(results: StudyResults) -> Figure:
    """The first seed's run of every variant: a curve for each task, marked where it is done."""
    return draw_tasks(list(run_panels(results)), f"test {metric_of(results)}", results.columns)


def run_panels(results: StudyResults) -> Iterator[RunPanel]:
    panels, series = results.labels("panel"), results.labels("series")
    for panel in panels:
        for label in series:
            key = results.key(panel=panel, series=label, x="")
            runs = runs_if_any(results, key)
            where = f"{panel} targets" if panel else ""
            seed = f"seed {runs[0].seed}" if runs else ""
            yield RunPanel(
                "\n".join(filter(None, (label, ", ".join(filter(None, (where, seed)))))),
                panel,
                tuple(
                    CurveLine(
                        task, record.curve, results.targets[key].get(task), results.done(record)
                    )
                    for task, record in (runs[0].tasks if runs else {}).items()
                ),
            )


def draw_tasks(panels: Sequence[RunPanel], what: str, columns: Columns) -> Figure:
    names = list(dict.fromkeys(line.task for panel in panels for line in panel.lines))
    colours = task_looks(names)
    per_row = max(1, len(panels) // len({panel.row for panel in panels}))
    figure, places = frame(len(panels), min(per_row, columns + 1), columns, 1.5)
    ends = {panel.row: 0.0 for panel in panels}
    for panel in panels:
        ends[panel.row] = max(ends[panel.row], *(line.end for line in panel.lines), 0.0)
    for place, panel in zip(places, panels, strict=True):
        if not panel.lines:
            entitle(place, panel.title)
            empty(place)
            continue
        for line in panel.lines:
            look = colours[line.task]
            place.plot(
                [point.time for point in line.curve], [point.value for point in line.curve],
                color=look.colour, linestyle=look.dash, linewidth=LINE, label=task_title(line.task),
            )  # fmt: skip
            if line.target is not None:
                place.axhline(line.target, color=look.colour, linewidth=0.5, linestyle=":")
            if line.done is not None:
                place.axvline(line.done, color=look.colour, linewidth=0.7, linestyle="--")
        place.set_xlim(0, 1.03 * (ends[panel.row] or 1.0))
    few_ticks([place for place, panel in zip(places, panels, strict=True) if panel.lines])
    name_axes(figure, places, "simulated time", [what] * len(panels))
    figure.draw_without_rendering()
    for place, panel in zip(places, panels, strict=True):
        if panel.lines:
            done = [
                (line.done, f"{line.done:.0f}", colours[line.task].colour)
                for line in panel.lines
                if line.done is not None
            ]
            label_above(place, done, panel.title)
    return figure
