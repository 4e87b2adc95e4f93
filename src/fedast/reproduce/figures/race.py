"""A method beside the baseline, task by task: how much earlier each is done."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from fedast.records.run import ALL_TASKS
from fedast.report.looks import looks
from fedast.reproduce.figures.bars import Bar, BarPanel, draw_bars
from fedast.reproduce.figures.drawing import done_text, task_title
from fedast.reproduce.figures.registry import study_figure
from fedast.reproduce.gains import gains_of
from fedast.reproduce.results import Key, Missing, StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@study_figure("race", roles=("series",))
def race(results: StudyResults) -> Figure:
    """Mean times of the study's first variant and of its baseline, with seeds as dots."""
    ours = next(iter(results.folders))
    theirs = next((key for key in results.folders if results.baseline in key), ours)
    panel = race_panel(results, ours, theirs)
    algorithms = {", ".join(key): results.algorithm(key) for key in (theirs, ours)}
    seeds = sorted(results.runs.get(ours, ()))
    which = f", seeds {seeds[0]} to {seeds[-1]}" if seeds else ""
    what = done_text(results) + which
    return draw_bars([panel], looks(algorithms), what, results.columns, strong=ALL_TASKS)


def race_panel(results: StudyResults, ours: Key, theirs: Key) -> BarPanel:
    """A group for each task and one for all of them."""
    tasks: list[str | None] = [*results.targets[ours], None]
    return BarPanel(
        "",
        {
            ALL_TASKS if task is None else task_title(task): [
                _bar(results, key, task, told=key == ours) for key in (theirs, ours)
            ]
            for task in tasks
        },
    )


def _bar(results: StudyResults, key: Key, task: str | None, *, told: bool) -> Bar:
    label = ", ".join(key)
    try:
        times = tuple(time for time in results.times(key, task).values() if time is not None)
    except Missing:
        return Bar(label, None, "not run")
    if not times:
        return Bar(label, None, "not reached")
    text = ""
    if told:
        gain = next(found for found in gains_of(results, task) if found.variant == key)
        if gain.gains:
            percent = statistics.fmean(gain.gains)
            text = f"{abs(percent):.0f} % {'earlier' if percent >= 0 else 'later'}"
    return Bar(label, statistics.fmean(times), text, dots=times)
