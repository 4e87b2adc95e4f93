"""Sweeps: a quantity over the values of the x axis."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedast.records.run import TaskResult
from fedast.report.looks import Look, task_looks
from fedast.reproduce.figures.drawing import (
    LINE,
    WIDTHS,
    Columns,
    done_text,
    empty,
    entitle,
    few_ticks,
    frame,
    metric_of,
    name_axes,
    series_looks,
    task_title,
    text_width,
)
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.findings import every_run
from fedast.reproduce.results import Axis, Key, Missing, StudyResults, Unreached

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Quantity: TypeAlias = tuple[str, Callable[[TaskResult], float | None]]


@dataclass(frozen=True)
class SweepPoint:
    place: int
    """The number of its value on the x axis."""
    mean: float | None
    """None: a run diverged."""
    spread: float = 0.0
    chosen: bool = False
    """Whether the paper chose this value."""


@dataclass(frozen=True)
class SweepLine:
    label: str
    points: tuple[SweepPoint, ...]


@dataclass(frozen=True)
class SweepPanel:
    title: str
    what: str
    lines: tuple[SweepLine, ...]


@study_figure("sweep-time", roles=("x",))
def sweep_time(results: StudyResults) -> Figure:
    """Times to target along the axis x."""
    return _sweep(results, [(done_text(results), results.done)])


@study_figure("sweep-rounds", roles=("x",))
def sweep_rounds(results: StudyResults) -> Figure:
    """Rounds to target along the axis x."""
    return _sweep(results, [("rounds to target", lambda task: task.rounds_to_target)])


@study_figure("sweep-final", roles=("x",))
def sweep_final(results: StudyResults) -> Figure:
    """Final metrics and losses along the axis x."""
    return _sweep(
        results,
        [
            (f"final {metric_of(results)}", lambda task: task.final_mean),
            ("final loss", lambda task: task.final_loss_mean),
        ],
    )


def _sweep(results: StudyResults, quantities: Sequence[Quantity]) -> Figure:
    panels = list(sweep_panels(results, quantities))
    looks = series_looks(results)
    if _by_task(results):
        looks = task_looks(list(dict.fromkeys(line.label for p in panels for line in p.lines)))
    axis = results.axis("x")
    assert axis is not None
    across = len(results.labels("panel"))
    return draw_sweep(panels, looks, axis, across, results.columns)


def _by_task(results: StudyResults) -> bool:
    """Whether the lines are tasks."""
    return results.axis("series") is None and len(next(iter(results.targets.values()))) > 1


def sweep_panels(results: StudyResults, quantities: Sequence[Quantity]) -> Iterator[SweepPanel]:
    axis = results.axis("x")
    assert axis is not None
    for what, of in quantities:
        for panel in results.labels("panel"):
            first = next(t for key, t in results.targets.items() if not panel or panel in key)
            lines: list[tuple[str, str, str | None]] = (
                [(task_title(task), "", task) for task in first]
                if _by_task(results)
                else [(label, label, None) for label in results.labels("series")]
            )
            yield SweepPanel(
                panel,
                what,
                tuple(
                    SweepLine(
                        label,
                        tuple(
                            point
                            for place, x in enumerate(axis.labels)
                            if (point := _point(
                                results, results.key(panel=panel, x=x, series=series), of, task,
                                place, panel in axis.chosen.get(x, ()),
                            ))
                        ),
                    )
                    for label, series, task in lines
                ),
            )  # fmt: skip


def _point(
    results: StudyResults, key: Key, of: Callable[[TaskResult], float | None], task: str | None,
    place: int, chosen: bool,
) -> SweepPoint | None:  # fmt: skip
    try:
        if results.diverged(key, task):  # a mean over the others would flatter it
            return SweepPoint(place, None)
        values = list(every_run(results, key, of, task).values())
    except (Missing, Unreached):
        return None
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return SweepPoint(place, statistics.fmean(values), spread, chosen)


def draw_sweep(
    panels: Sequence[SweepPanel],
    looks: Mapping[str, Look],
    axis: Axis,
    across: int,
    columns: Columns,
) -> Figure:
    widest = 0.7 + sum(text_width(label) + 0.06 for label in axis.labels)
    across = max(1, min(across, columns + 1, int(WIDTHS[columns] / widest)))
    figure, places = frame(len(panels), across, columns, 1.5)
    for place, panel in zip(places, panels, strict=True):
        entitle(place, panel.title)
        if not any(line.points for line in panel.lines):
            empty(place)
            continue
        for number, line in enumerate(panel.lines):
            _draw_line(place, line, looks[line.label], number)
        place.set_xticks(range(len(axis.labels)), axis.labels)
        place.set_xlim(-0.25, len(axis.labels) - 0.75)
        few_ticks([place], "y")
    name_axes(figure, places, axis.name, [panel.what for panel in panels])
    return figure


def _draw_line(place: Axes, line: SweepLine, look: Look, number: int) -> None:
    means = [(p.place, p.mean, p.spread) for p in line.points if p.mean is not None]
    if means:
        xs, ys, spreads = zip(*means, strict=True)
        place.errorbar(
            xs, ys, yerr=spreads if any(spreads) else None, color=look.colour,
            linestyle=look.dash, marker="o", markersize=2.5, linewidth=LINE, capsize=1.5,
            elinewidth=0.7, label=line.label or None,
        )  # fmt: skip
    for point in line.points:
        if point.mean is None:
            place.scatter(
                [point.place + 0.06 * number], [0.03], marker="X", s=22, color=look.colour,
                transform=place.get_xaxis_transform(), zorder=6, clip_on=False,
                label="a run diverged",
            )  # fmt: skip
        elif point.chosen and math.isfinite(point.mean):
            place.scatter(
                [point.place], [point.mean], marker="*", s=70, color="#CC0000", zorder=6,
                label="the paper's choice",
            )  # fmt: skip
