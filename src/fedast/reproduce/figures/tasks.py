"""Learning curves of one run: every task, and when it reached its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedast.records.run import TaskResult
from fedast.reproduce.figures.drawing import colour_of, empty, frame, legend, metric_of, runs_if_any
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.results import StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@study_figure("tasks")
def tasks(results: StudyResults) -> Figure:
    """The first seed's run of every variant: a curve for each task, marked where it is done."""
    panels, series = results.labels("panel"), results.labels("series")
    figure = frame(len(panels), len(series), 3.9, 3.0)
    grid = np.array(figure.axes).reshape(len(panels), len(series))
    for row, panel_label in enumerate(panels):
        for column, label in enumerate(series):
            panel: Axes = grid[row, column]
            key = results.key(panel=panel_label, series=label, x="")
            name = f"{label}, {panel_label} targets" if panel_label else label
            runs = runs_if_any(results, key)
            panel.set_title(f"{name}, seed {runs[0].seed}" if runs else name, fontsize=10)
            if not runs:
                empty(panel)
                continue
            for number, (task, record) in enumerate(runs[0].tasks.items()):
                _one_run(panel, task, record, results.targets[key][task], number)
            panel.set_xlabel("simulated time")
            panel.set_ylabel(f"test {metric_of(results)}")
            panel.set_xlim(left=0)
        limit = max((p.get_xlim()[1] for p in grid[row] if p.lines), default=1.0)
        for panel in grid[row]:
            if panel.lines:
                panel.set_xlim(0, limit)
    legend(figure)
    return figure


def _one_run(panel: Axes, task: str, record: TaskResult, target: float | None, number: int) -> None:
    colour = colour_of(number)
    panel.plot(
        [p.time for p in record.curve], [p.value for p in record.curve],
        color=colour, linewidth=1.4, label=task,
    )  # fmt: skip
    if target is not None:
        panel.axhline(target, color=colour, linewidth=0.6, linestyle=":", alpha=0.8)
    done = record.time_to_target
    if done is not None:
        panel.axvline(done, color=colour, linewidth=1.0, linestyle="--")
        panel.annotate(
            f"{done:.0f}", (done, 0.0), xycoords=("data", "axes fraction"),
            xytext=(2, 3 + 10 * number), textcoords="offset points", fontsize=8, color=colour,
        )  # fmt: skip
