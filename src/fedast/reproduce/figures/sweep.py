"""Sweeps: a quantity over the values of the x axis."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedast.records.run import TaskResult
from fedast.report.figures import DASHES
from fedast.reproduce.figures.drawing import colour_of, empty, frame, legend, metric_of
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.findings import every_run
from fedast.reproduce.results import Missing, StudyResults, Unreached

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@study_figure("sweep-time", roles=("x",))
def sweep_time(results: StudyResults) -> Figure:
    """Times to target along the axis x."""
    return _sweep(results, [("simulated time to target", lambda t: t.time_to_target)])


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


def _sweep(
    results: StudyResults, quantities: Sequence[tuple[str, Callable[[TaskResult], float | None]]]
) -> Figure:
    panels, axis = results.labels("panel"), results.axis("x")
    assert axis is not None
    figure = frame(len(quantities), len(panels), 4.3, 3.0)
    grid = np.array(figure.axes).reshape(len(quantities), len(panels))
    for row, (name, of) in enumerate(quantities):
        for column, panel_label in enumerate(panels):
            panel: Axes = grid[row, column]
            panel.set_title(panel_label, fontsize=10)
            _sweep_panel(panel, results, panel_label, of)
            if not panel.lines and not panel.collections:
                empty(panel)
                continue
            panel.set_xlabel(axis.name)
            panel.set_ylabel(name)
    if results.axis("series") is not None or len(next(iter(results.targets.values()))) > 1:
        legend(figure)
    return figure


def _sweep_panel(
    panel: Axes, results: StudyResults, panel_label: str, of: Callable[[TaskResult], float | None]
) -> None:
    axis = results.axis("x")
    assert axis is not None
    first = next(
        targets for key, targets in results.targets.items() if not panel_label or panel_label in key
    )
    several = results.axis("series") is None and len(first) > 1
    lines: list[tuple[str, str, str | None]] = (
        [(task, "", task) for task in first]
        if several
        else [(label or panel_label, label, None) for label in results.labels("series")]
    )
    for number, (name, series, task) in enumerate(lines):
        found: list[tuple[int, float, float]] = []
        for place, x in enumerate(axis.labels):
            key = results.key(panel=panel_label, x=x, series=series)
            try:
                if results.diverged(key, task):  # a mean over the others would flatter it
                    panel.scatter(
                        [place + 0.06 * number], [0.03], marker="X", s=45, color=colour_of(number),
                        transform=panel.get_xaxis_transform(), zorder=6, clip_on=False,
                        label="a run diverged",
                    )  # fmt: skip
                    continue
                values = list(every_run(results, key, of, task).values())
            except (Missing, Unreached):
                continue
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            found.append((place, statistics.fmean(values), spread))
        if not found:
            continue
        places, means, spreads = zip(*found, strict=True)
        panel.errorbar(
            places, means, yerr=spreads if any(spreads) else None, color=colour_of(number),
            linestyle=DASHES[number % len(DASHES)], marker="o", markersize=4, linewidth=1.4,
            capsize=2, label=name,
        )  # fmt: skip
        for place, mean in zip(places, means, strict=True):
            if panel_label in axis.chosen.get(axis.labels[place], ()) and math.isfinite(mean):
                panel.scatter([place], [mean], marker="*", s=190, c="#CC0000", zorder=6)
    panel.set_xticks(range(len(axis.labels)), axis.labels)
    panel.set_xlim(-0.25, len(axis.labels) - 0.75)
