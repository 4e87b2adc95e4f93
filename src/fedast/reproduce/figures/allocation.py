"""Active requests over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedast.reproduce.figures.drawing import colour_of, empty, frame, legend, runs_if_any
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.results import StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@study_figure("allocation")
def allocation(results: StudyResults) -> Figure:
    """Active requests of every task, of the first variant that reallocates any."""
    figure = frame(1, 1, 7.0, 3.4)
    (panel,) = figure.axes
    for key in results.folders:
        runs = runs_if_any(results, key)
        if not runs or not any(len(task.requests) > 1 for task in runs[0].tasks.values()):
            continue
        run = runs[0]
        for number, (name, task) in enumerate(run.tasks.items()):
            end = task.time_to_target or run.finish_time
            times = [time for time, _ in task.requests] + [end]
            counts = [count for _, count in task.requests]
            panel.step(times, [*counts, counts[-1]], where="post", color=colour_of(number),
                       linewidth=1.6, label=name)  # fmt: skip
            panel.scatter([end], [counts[-1]], s=28, color=colour_of(number), zorder=4)
        panel.set_title(f"{', '.join(key)}, seed {run.seed}", fontsize=10)
        panel.set_xlabel("simulated time")
        panel.set_ylabel("active requests R")
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
        break
    else:
        empty(panel)
    legend(figure)
    return figure
