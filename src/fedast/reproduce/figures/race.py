"""A method beside the baseline, task by task: how much earlier each is done."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from fedast.reproduce.figures.drawing import GREY, empty, frame, runs_if_any
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.gains import gains_of
from fedast.reproduce.results import StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@study_figure("race", roles=("series",))
def race(results: StudyResults) -> Figure:
    """Mean times of the study's first variant and of its baseline, with seeds as dots."""
    figure = frame(1, 1, 7.5, 3.6)
    (panel,) = figure.axes
    ours = next(iter(results.folders))
    theirs = next((key for key in results.folders if results.baseline in key), ours)
    if not runs_if_any(results, ours) or not runs_if_any(results, theirs):
        empty(panel)
        return figure
    tasks: list[str | None] = [*results.targets[ours], None]
    for place, task in enumerate(tasks):
        for key, shift, colour in ((theirs, -0.2, "#b8bcc2"), (ours, 0.2, "#1f6fb4")):
            times = [time for time in results.times(key, task).values() if time is not None]
            if not times:
                continue
            label = key[-1] if place == 0 else None
            mean = statistics.fmean(times)
            panel.barh(place + shift, mean, height=0.36, color=colour, label=label)
            panel.scatter(times, [place + shift] * len(times), s=9, color="black", alpha=0.5)
        gain = next(g for g in gains_of(results, task) if g.variant == ours)
        if gain.gains:
            panel.annotate(
                f"{statistics.fmean(gain.gains):.0f} % earlier",
                (max(t for t in gain.times.values() if t is not None), place + 0.2),
                xytext=(8, 0), textcoords="offset points", va="center", fontsize=9,
                fontweight="bold" if task is None else "normal",
            )  # fmt: skip
    panel.set_yticks(range(len(tasks)), [task or "all four done" for task in tasks])
    panel.invert_yaxis()
    panel.set_xlabel("simulated time until the target is " + _done(results))
    seeds = sorted(results.runs[ours])
    panel.legend(frameon=False, loc="upper right", title=f"seeds {seeds[0]} to {seeds[-1]}")
    panel.tick_params(axis="y", length=0)
    panel.spines["left"].set_color(GREY)
    return figure


def _done(results: StudyResults) -> str:
    return "held for five evaluations" if results.criterion == "held" else "reached"
