"""The figures of a study, in the paper's forms: curves, grouped bars, sweeps.

Numbers come from ``StudyResults``, which is tested; here is only the drawing. A variant that has
not been run leaves its place empty.
"""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedast.records.compact import CompactRun, TaskRecord
from fedast.records.metrics import Point
from fedast.report.compare import mean_curve
from fedast.report.figures import COLOURS, DASHES
from fedast.reproduce.findings import every_run
from fedast.reproduce.results import Key, Missing, StudyResults, Unreached

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY = "#666666"
_RED = "#b03000"
DPI = 130


def figures_of(results: StudyResults) -> dict[str, Figure]:
    """By kind; none for a study of which nothing has been run."""
    if not any(results.runs.values()):
        return {}
    figures = {kind: _KINDS[kind](results) for kind in results.figures}
    if results.disclaimer:
        for figure in figures.values():
            _stamp(figure, results.disclaimer)
    return figures


def _stamp(figure: Figure, text: str) -> None:
    """Across the top, so that nobody takes the figure for what its labels say."""
    characters = int(11 * figure.get_figwidth())
    figure.suptitle(textwrap.fill(text, characters), fontsize=9, color=_RED, weight="bold")


def save_figures(figures: Mapping[str, Figure], folder: Path, study: str) -> dict[str, Path]:
    """As PDF, SVG and PNG, the same bytes for the same figure; gives the PNG by kind."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    undated: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    with matplotlib.rc_context({"svg.hashsalt": study, "svg.fonttype": "none"}):
        for kind, figure in figures.items():
            for suffix, metadata in undated.items():
                path = folder / f"{study}-{kind}.{suffix}"
                figure.savefig(path, dpi=DPI, metadata=metadata)
    return {kind: folder / f"{study}-{kind}.png" for kind in figures}


def _frame(rows: int, columns: int, width: float = 4.3, height: float = 3.2) -> Figure:
    from matplotlib.figure import Figure

    across = max(6.4, width * columns)  # room for the legend
    figure = Figure(figsize=(across, height * rows + 0.5), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
        panel.set_axisbelow(True)
    return figure


def _legend(figure: Figure) -> None:
    """One legend below all panels, from whichever panels have something."""
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


def _empty(panel: Axes, text: str = "not run yet") -> None:
    panel.text(0.5, 0.5, text, transform=panel.transAxes, ha="center", color=_GREY)
    panel.set_xticks([])
    panel.set_yticks([])


def _runs(results: StudyResults, key: Key) -> list[CompactRun]:
    try:
        return results.runs_of(key)
    except Missing:
        return []


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


# --- curves of one run: every task, and when it was done ----------------------------------------


def _tasks(results: StudyResults) -> Figure:
    panels, series = results.labels("panel"), results.labels("series")
    figure = _frame(len(panels), len(series), 3.9, 3.0)
    grid = np.array(figure.axes).reshape(len(panels), len(series))
    for row, panel_label in enumerate(panels):
        for column, label in enumerate(series):
            panel: Axes = grid[row, column]
            key = results.key(panel=panel_label, series=label, x="")
            name = f"{label}, {panel_label} targets" if panel_label else label
            runs = _runs(results, key)
            panel.set_title(f"{name}, seed {runs[0].seed}" if runs else name, fontsize=10)
            if not runs:
                _empty(panel)
                continue
            for number, (task, record) in enumerate(runs[0].tasks.items()):
                _one_run(panel, task, record, results.targets[key][task], number)
            panel.set_xlabel("simulated time")
            panel.set_ylabel("test accuracy")
            panel.set_xlim(left=0)
        limit = max((p.get_xlim()[1] for p in grid[row] if p.lines), default=1.0)
        for panel in grid[row]:
            if panel.lines:
                panel.set_xlim(0, limit)
    _legend(figure)
    return figure


def _one_run(panel: Axes, task: str, record: TaskRecord, target: float | None, number: int) -> None:
    colour = _colour(number)
    panel.plot(
        [p.time for p in record.curve], [p.value for p in record.curve],
        color=colour, linewidth=1.4, label=task,
    )  # fmt: skip
    if target is not None:
        panel.axhline(target, color=colour, linewidth=0.6, linestyle=":", alpha=0.8)
    done = record.result.time_to_target
    if done is not None:
        panel.axvline(done, color=colour, linewidth=1.0, linestyle="--")
        panel.annotate(
            f"{done:.0f}", (done, 0.0), xycoords=("data", "axes fraction"),
            xytext=(2, 3 + 10 * number), textcoords="offset points", fontsize=8, color=colour,
        )  # fmt: skip


# --- grouped bars -------------------------------------------------------------------------------


def _bars(results: StudyResults) -> Figure:
    panels = results.labels("panel")
    by_task = results.axis("x") is None and results.per_run == "last"
    grouped = {label: _groups(results, label, by_task) for label in panels}
    bars = max(sum(map(len, groups.values())) for groups in grouped.values())
    rows = -(-len(panels) // 2)
    columns = -(-len(panels) // rows)
    figure = _frame(rows, columns, max(3.4, 0.9 + 0.38 * bars), 3.4)
    for panel, (label, groups) in zip(figure.axes, grouped.items(), strict=False):
        _bar_panel(panel, results, groups)
        panel.set_title(f"{label} targets" if label and by_task else label, fontsize=10)
        panel.set_ylabel("simulated time to target")
        axis = results.axis("x")
        if axis is not None:
            panel.set_xlabel(axis.name)
    for panel in figure.axes[len(panels) :]:
        panel.set_visible(False)
    _legend(figure)
    return figure


def _groups(
    results: StudyResults, panel: str, by_task: bool
) -> dict[str, list[tuple[str, Key, str | None]]]:
    """Per group of bars its bars: series, variant, and a task where the group is one."""
    series = results.labels("series")
    if not by_task:
        return {
            x: [(label, results.key(panel=panel, x=x, series=label), None) for label in series]
            for x in results.labels("x")
        }
    keys = {label: results.key(panel=panel, x="", series=label) for label in series}
    tasks = next(iter(results.targets[key] for key in keys.values()))
    groups: dict[str, list[tuple[str, Key, str | None]]] = {
        task: [(label, key, task) for label, key in keys.items()] for task in tasks
    }
    groups["all tasks"] = [(label, key, None) for label, key in keys.items()]
    return groups


def _bar_panel(
    panel: Axes, results: StudyResults, groups: Mapping[str, Sequence[tuple[str, Key, str | None]]]
) -> None:
    count = len(next(iter(groups.values())))
    step = 0.8 / count
    tallest = 0.0
    open_bars: list[tuple[float, str]] = []

    def leave_open(x: float, number: int, label: str, why: str) -> None:
        open_bars.append((x, why))
        panel.bar(x, 0.0, step * 0.92, color=_colour(number), label=label)  # for the legend

    for place, bars in enumerate(groups.values()):
        for number, (label, key, task) in enumerate(bars):
            x = place + (number - (count - 1) / 2) * step
            try:
                times = list(results.times(key, task).values())
            except Missing:
                leave_open(x, number, label, "not run")
                continue
            known = [time for time in times if time is not None]
            if len(known) < len(times):
                leave_open(x, number, label, "not reached")
                continue
            mean = statistics.fmean(known)
            deviation = statistics.stdev(known) if len(known) > 1 else None
            tallest = max(tallest, mean + (deviation or 0.0))
            panel.bar(
                x, mean, step * 0.92, yerr=deviation, color=_colour(number), label=label,
                error_kw={"elinewidth": 0.9, "ecolor": "#333333"}, capsize=2,
            )  # fmt: skip
            _gain_label(panel, results, groups, place, number, (x, mean + (deviation or 0.0)))
    if not tallest:
        _empty(panel, "not reached" if "not reached" in dict(open_bars).values() else "not run yet")
        return
    top = tallest * 1.16
    panel.set_xlim(-0.5, len(groups) - 0.5)
    for x, text in open_bars:
        panel.text(x, top * 0.02, text, rotation=90, ha="center", va="bottom", fontsize=7,
                   color=_GREY)  # fmt: skip
    panel.set_ylim(0, top)
    many = len(groups) > 12
    panel.set_xticks(
        range(len(groups)), list(groups), fontsize=7 if many else 8, rotation=90 if many else 0
    )
    if list(groups) == [""]:
        panel.set_xticks([])
    panel.grid(axis="x", visible=False)


def _gain_label(
    panel: Axes,
    results: StudyResults,
    groups: Mapping[str, Sequence[tuple[str, Key, str | None]]],
    place: int,
    number: int,
    at: tuple[float, float],
) -> None:
    bars = list(groups.values())[place]
    label, key, task = bars[number]
    base = [bar for bar in bars if bar[0] == results.baseline]
    if not base or label == results.baseline:
        return
    try:
        gain, _ = results.gains(key, base[0][1], task)
    except (Missing, Unreached):
        return
    panel.annotate(
        f"{round(gain):+d} %", at, xytext=(0, 2), textcoords="offset points", ha="center",
        fontsize=7, color=_colour(number),
    )  # fmt: skip


# --- many variants below one another --------------------------------------------------------------


def _dots(results: StudyResults) -> Figure:
    return _dot_rows(results, ranked=False)


def _ranking(results: StudyResults) -> Figure:
    return _dot_rows(results, ranked=True)


def _dot_rows(results: StudyResults, *, ranked: bool) -> Figure:
    """A row for each variant, a panel for its time and one for each task: seeds as dots, their
    mean as a bar.

    ``ranked``: the fastest first, by the seeds that all variants have been run with, which are the
    only ones shown (if there are any); otherwise in the order of the study.
    """
    rows = [(", ".join(filter(None, key)), key) for key in results.folders if _runs(results, key)]
    shown: set[int] | None = None
    if ranked:
        shown = results.common_seeds([key for _, key in rows]) or None
        rows.sort(key=lambda row: _overall(results, row[1], shown))
    first, *others = results.targets.values()
    columns = [None, *(task for task in first if all(task in other for other in others))]
    figure = _frame(1, len(columns), 2.7, 0.9 + 0.21 * len(rows))
    for panel, task in zip(figure.axes, columns, strict=True):
        whole = "all tasks" if results.per_run == "last" else "mean of the tasks"
        panel.set_title(task or whole, fontsize=10)
        panel.set_xlabel("simulated time to target")
        for place, (_, key) in enumerate(rows):
            times = _times(results, key, task, shown)
            known = [time for time in times if time is not None]
            colour = _colour(0 if results.baseline in key else 1)
            panel.scatter(known, [place] * len(known), s=14, color=colour, alpha=0.55, linewidths=0)
            if len(known) == len(times):
                mean = statistics.fmean(known)
                panel.plot([mean, mean], [place - 0.36, place + 0.36], color=colour, linewidth=2.2)
                if results.baseline in key:
                    panel.axvline(mean, color=colour, linewidth=0.8, linestyle=":", zorder=0)
            else:
                panel.annotate(  # who misses a target is slow: there is room on the left
                    f"{len(times) - len(known)} of {len(times)} not reached", (0.03, place),
                    xycoords=("axes fraction", "data"), va="center", fontsize=7, color=_GREY,
                )  # fmt: skip
        panel.set_ylim(len(rows) - 0.4, -0.6)
        panel.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
        panel.margins(x=0.12)
        if panel is not figure.axes[0]:
            panel.tick_params(labelleft=False)
    return figure


def _times(
    results: StudyResults, key: Key, task: str | None, seeds: set[int] | None
) -> list[float | None]:
    times = results.times(key, task)
    return [time for seed, time in times.items() if seeds is None or seed in seeds]


def _overall(results: StudyResults, key: Key, seeds: set[int] | None) -> float:
    times = _times(results, key, None, seeds)
    known = [time for time in times if time is not None]
    return statistics.fmean(known) if known and len(known) == len(times) else math.inf


# --- mean curves ----------------------------------------------------------------------------------


def _curves(results: StudyResults) -> Figure:
    return _mean_curves(results, "accuracy", lambda point: point)


def _losses(results: StudyResults) -> Figure:
    return _mean_curves(
        results, "loss", lambda point: Point(point.time, point.round, point.loss, point.loss)
    )


def _mean_curves(results: StudyResults, what: str, of: Callable[[Point], Point]) -> Figure:
    """A panel for every data set and number of tasks; or, with different tasks, for every task."""
    panels, xs, series = (results.labels(role) for role in ("panel", "x", "series"))
    first = next(iter(results.targets.values()))
    apart = results.per_run == "last" and len(first) > 1 and len(xs) == 1
    columns: list[str | None] = list(first) if apart else list(xs)
    figure = _frame(len(panels), len(columns), 4.6 if len(columns) < 3 else 3.6, 2.9)
    grid = np.array(figure.axes).reshape(len(panels), len(columns))
    for row, panel_label in enumerate(panels):
        for column, name in enumerate(columns):
            panel: Axes = grid[row, column]
            task = name if apart else None
            x = "" if apart or name is None else name
            axis = results.axis("x")
            title = task or " ".join(
                filter(None, (panel_label, f"{x} {axis.name}" if axis else ""))
            )
            panel.set_title(title, fontsize=10)
            for number, label in enumerate(series):
                key = results.key(panel=panel_label, x=x, series=label)
                _curve(panel, results, key, task, label, number, of, what)
            if not panel.lines:
                _empty(panel)
                continue
            key = results.key(panel=panel_label, x=x, series=series[0])
            target = (
                results.targets[key][task] if task else next(iter(results.targets[key].values()))
            )
            if target is not None and what == "accuracy":
                panel.axhline(target, color=_GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
            panel.set_xlabel("simulated time")
            panel.set_ylabel(f"mean test {what}" if task is None else f"test {what}")
            panel.set_xlim(left=0)
    _legend(figure)
    return figure


def _curve(
    panel: Axes,
    results: StudyResults,
    key: Key,
    task: str | None,
    label: str,
    number: int,
    of: Callable[[Point], Point],
    what: str,
) -> None:
    runs = _runs(results, key)
    curves = [
        [of(point) for point in record.curve]
        for run in runs
        for name, record in run.tasks.items()
        if (task is None or name == task) and record.curve
    ]
    if not curves:
        return
    curve = mean_curve(curves)
    colour = _colour(number)
    panel.plot(
        curve.time, curve.mean, DASHES[number % len(DASHES)], color=colour, linewidth=1.5,
        label=label,
    )  # fmt: skip
    if what == "accuracy":
        times = [results.time(run, task) for run in runs]
        known = [time for time in times if time is not None]
        if known and len(known) == len(times):
            mean = statistics.fmean(known)
            level = float(np.interp(mean, curve.time, curve.mean))
            panel.scatter([mean], [level], s=36, c=colour, edgecolors="white", zorder=5)
            panel.annotate(
                f"{mean:.0f}", (mean, level), xytext=(3, -11 - 9 * (number % 3)),
                textcoords="offset points", fontsize=8, color=colour,
            )  # fmt: skip


# --- requests over time -------------------------------------------------------------------------


def _allocation(results: StudyResults) -> Figure:
    """Active requests of every task, of the first series that moves any."""
    figure = _frame(1, 1, 7.0, 3.4)
    (panel,) = figure.axes
    for key in results.folders:
        runs = _runs(results, key)
        if not runs or not any(len(task.requests) > 1 for task in runs[0].tasks.values()):
            continue
        run = runs[0]
        for number, (name, task) in enumerate(run.tasks.items()):
            end = task.result.time_to_target or run.finish_time
            times = [time for time, _ in task.requests] + [end]
            counts = [count for _, count in task.requests]
            panel.step(times, [*counts, counts[-1]], where="post", color=_colour(number),
                       linewidth=1.6, label=name)  # fmt: skip
            panel.scatter([end], [counts[-1]], s=28, color=_colour(number), zorder=4)
        panel.set_title(f"{', '.join(key)}, seed {run.seed}", fontsize=10)
        panel.set_xlabel("simulated time")
        panel.set_ylabel("active requests R")
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
        break
    else:
        _empty(panel)
    _legend(figure)
    return figure


# --- sweeps ---------------------------------------------------------------------------------------


def _sweep_time(results: StudyResults) -> Figure:
    return _sweep(results, [("simulated time to target", lambda t: t.result.time_to_target)])


def _sweep_rounds(results: StudyResults) -> Figure:
    return _sweep(results, [("rounds to target", lambda task: task.rounds_to_target)])


def _sweep_final(results: StudyResults) -> Figure:
    return _sweep(
        results,
        [("final accuracy", lambda task: task.final), ("final loss", lambda task: task.final_loss)],
    )


def _sweep(
    results: StudyResults, quantities: Sequence[tuple[str, Callable[[TaskRecord], float | None]]]
) -> Figure:
    panels, axis = results.labels("panel"), results.axis("x")
    assert axis is not None
    figure = _frame(len(quantities), len(panels), 4.3, 3.0)
    grid = np.array(figure.axes).reshape(len(quantities), len(panels))
    for row, (name, of) in enumerate(quantities):
        for column, panel_label in enumerate(panels):
            panel: Axes = grid[row, column]
            panel.set_title(panel_label, fontsize=10)
            _sweep_panel(panel, results, panel_label, of)
            if not panel.lines and not panel.collections:
                _empty(panel)
                continue
            panel.set_xlabel(axis.name)
            panel.set_ylabel(name)
    if results.axis("series") is not None or len(next(iter(results.targets.values()))) > 1:
        _legend(figure)
    return figure


def _sweep_panel(
    panel: Axes, results: StudyResults, panel_label: str, of: Callable[[TaskRecord], float | None]
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
                        [place + 0.06 * number], [0.03], marker="X", s=45, color=_colour(number),
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
            places, means, yerr=spreads if any(spreads) else None, color=_colour(number),
            linestyle=DASHES[number % len(DASHES)], marker="o", markersize=4, linewidth=1.4,
            capsize=2, label=name,
        )  # fmt: skip
        for place, mean in zip(places, means, strict=True):
            if panel_label in axis.chosen.get(axis.labels[place], ()) and math.isfinite(mean):
                panel.scatter([place], [mean], marker="*", s=190, c="#CC0000", zorder=6)
    panel.set_xticks(range(len(axis.labels)), axis.labels)
    panel.set_xlim(-0.25, len(axis.labels) - 0.75)


_KINDS: Mapping[str, Callable[[StudyResults], Figure]] = {
    "tasks": _tasks,
    "bars": _bars,
    "dots": _dots,
    "ranking": _ranking,
    "curves": _curves,
    "losses": _losses,
    "allocation": _allocation,
    "sweep-time": _sweep_time,
    "sweep-rounds": _sweep_rounds,
    "sweep-final": _sweep_final,
}
