"""What the figures share: frames, legends, colours, places left empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedast.records.compact import CompactRun
from fedast.report.figures import COLOURS
from fedast.reproduce.results import Key, Missing, StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


GREY = "#666666"


def frame(rows: int, columns: int, width: float = 4.3, height: float = 3.2) -> Figure:
    """A figure with a grid of panels, each of this size in inches."""
    from matplotlib.figure import Figure

    across = max(6.4, width * columns)  # room for the legend
    figure = Figure(figsize=(across, height * rows + 0.5), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
        panel.set_axisbelow(True)
    return figure


def legend(figure: Figure) -> None:
    """One legend for all panels, below them."""
    found: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        widest = 0.6 + 0.075 * max(map(len, found))  # inches, about
        columns = max(1, int(figure.get_figwidth() / widest))
        figure.legend(
            list(found.values()), list(found), loc="outside lower center", frameon=False,
            ncols=min(len(found), columns),
        )  # fmt: skip


def empty(panel: Axes, text: str = "not run yet") -> None:
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center", color=GREY)
    panel.set_xticks([])
    panel.set_yticks([])


def runs_if_any(results: StudyResults, key: Key) -> list[CompactRun]:
    """A variant's runs by seed; empty if it has not been run."""
    try:
        return results.runs_of(key)
    except Missing:
        return []


def colour_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def metric_of(results: StudyResults) -> str:
    """The name of the tasks' metric, for labels; "metric" if they have several."""
    names = {
        task.metric
        for runs in results.runs.values()
        for run in runs.values()
        for task in run.tasks.values()
    }
    return names.pop() if len(names) == 1 else "metric"
