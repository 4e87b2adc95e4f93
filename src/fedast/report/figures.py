"""Figures of a comparison. Their numbers come from ``compare``; here is only the drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedast.records.run import RunResult
from fedast.report.compare import Comparison, mean_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which most colour-blind readers can tell apart; line styles help too.
COLOURS = (
    "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#000000", "#999999",
    "#661100",
)  # fmt: skip
DASHES = ("-", "--", "-.", ":")
SHADED = 5
"""Ranges over seeds are drawn for up to this many curves; more would hide one another."""


def learning_curves(
    runs: Mapping[str, Sequence[RunResult]],
    comparison: Comparison,
    targets: Mapping[str, float | None],
    title: str = "",
) -> Figure:
    """A panel per task: each label's mean curve, its range over seeds, its time to target."""
    from matplotlib.figure import Figure

    tasks = comparison.tasks
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, task in zip(panels, tasks, strict=False):
        _task_panel(panel, task, runs, comparison, targets.get(task))
    for panel in list(figure.axes)[len(tasks) :]:
        panel.set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False
    )
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _task_panel(
    panel: Axes,
    task: str,
    runs: Mapping[str, Sequence[RunResult]],
    comparison: Comparison,
    target: float | None,
) -> None:
    metric = next(iter(runs.values()))[0].tasks[task].metric
    for number, (label, results) in enumerate(runs.items()):
        curves = [result.curves[task] for result in results if result.curves[task]]
        if not curves:
            continue
        colour = COLOURS[number % len(COLOURS)]
        curve = mean_curve(curves)
        dashes = DASHES[number % len(DASHES)]
        panel.plot(curve.time, curve.mean, dashes, color=colour, linewidth=1.8, label=label)
        if len(runs) <= SHADED:
            panel.fill_between(curve.time, curve.low, curve.high, color=colour, alpha=0.14, lw=0)
        reached = comparison.times[label][task]
        if target is not None and reached.mean is not None:
            panel.scatter([reached.mean], [target], s=50, c=colour, edgecolors="white", zorder=5)
    if target is not None:
        panel.axhline(target, color="#666666", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        panel.annotate(
            "target",
            (1.0, target),
            xytext=(0, 3),
            textcoords="offset points",
            xycoords=("axes fraction", "data"),
            ha="right",
            fontsize=8,
            color="#666666",
        )
    panel.set_title(task, fontsize=10)
    panel.set_xlabel("simulated time")
    panel.set_ylabel(f"test {metric}")
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_xlim(left=0)


def save(
    figure: Figure, folder: Path, name: str, kinds: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Write PNG to look at and SVG to publish."""
    paths = [folder / f"{name}.{kind}" for kind in kinds]
    for path in paths:
        figure.savefig(path, dpi=140)
    return paths
