"""The figures that need only results and learning curves (and, for the allocation, events)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fedast.plot.study import By, Given, check_label, given, record_of, requests_of, study_of
from fedast.reproduce.figures.allocation import draw_allocation, steps_of
from fedast.reproduce.figures.drawing import Columns, head
from fedast.reproduce.figures.registry import find_figure
from fedast.reproduce.results import StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves(
    runs: Given,
    *,
    series: By = None,
    panel: By = None,
    loss: bool = False,
    columns: Columns = 2,
    title: str = "",
) -> Figure:
    """Learning curves: a panel for each task, the mean of each series and its range over seeds.

    A dashed line is the target, a dot the mean time at which a series reached it. With ``loss``
    the loss is shown instead of the metric.
    """
    study = study_of(runs, series=series, panel=panel, columns=columns)
    return _drawn("losses" if loss else "curves", study, title)


def times(
    runs: Given,
    *,
    series: By = None,
    panel: By = None,
    x: By = None,
    baseline: str | None = None,
    held: bool = False,
    columns: Columns = 2,
    title: str = "",
) -> Figure:
    """Bars of the time to target, by task (or by ``x``), with gains over the baseline.

    The baseline is a series, by default the last. With ``held`` a task is done when the mean of its
    last five evaluations is at the target.
    """
    study = study_of(
        runs, series=series, panel=panel, x=x, baseline=baseline, held=held, columns=columns
    )
    return _drawn("bars", study, title)


def gains(
    runs: Given,
    *,
    series: By = None,
    baseline: str | None = None,
    held: bool = False,
    columns: Columns = 2,
    title: str = "",
) -> Figure:
    """How much less time each series takes than the baseline: in pairs of one seed (dots), their
    mean and its standard error."""
    study = study_of(runs, series=series, baseline=baseline, held=held, columns=columns)
    if len(study.labels("series")) < 2:
        raise ValueError("a gain needs two series, one of them the baseline")
    return _drawn("gains", study, title)


def race(
    runs: Given,
    ours: str,
    baseline: str,
    *,
    series: By = None,
    held: bool = False,
    columns: Columns = 2,
    title: str = "",
) -> Figure:
    """One series beside another, task by task, and how much earlier it is done; seeds as dots."""
    study = study_of(runs, series=series, baseline=baseline, held=held, columns=columns)
    check_label(ours, study.labels("series"))
    order = sorted(study.folders, key=lambda key: key[-1] != ours)
    return _drawn("race", replace(study, folders={k: study.folders[k] for k in order}), title)


def tasks(
    runs: Given,
    *,
    series: By = None,
    panel: By = None,
    columns: Columns = 2,
    title: str = "",
) -> Figure:
    """All tasks of a run in one panel, marked where they are done: each series' first seed."""
    return _drawn("tasks", study_of(runs, series=series, panel=panel, columns=columns), title)


def dots(
    runs: Given,
    *,
    series: By = None,
    baseline: str | None = None,
    held: bool = False,
    ranked: bool = False,
    columns: Columns = 2,
    title: str = "",
) -> Figure:
    """A row for each of many series, its seeds as dots and their mean as a bar.

    With ``ranked`` the fastest comes first, by the seeds that all have.
    """
    study = study_of(runs, series=series, baseline=baseline, held=held, columns=columns)
    study = replace(study, baseline=baseline or "")
    return _drawn("ranking" if ranked else "dots", study, title)


def sweep(
    runs: Given,
    x: By,
    value: Literal["time", "rounds", "final"] = "time",
    *,
    series: By = "algorithm",
    panel: By = None,
    held: bool = False,
    columns: Columns = 2,
    title: str = "",
) -> Figure:
    """A quantity over the values of a key: the time or rounds to target, or final metric and loss.

    A run that diverged is marked; a value that some run did not reach is left out.
    """
    if value not in ("time", "rounds", "final"):
        raise ValueError(f"value must be time, rounds or final; got {value!r}")
    study = study_of(runs, series=series, panel=panel, x=x, held=held, columns=columns)
    return _drawn(f"sweep-{value}", study, title)


def allocation(runs: Given, *, series: By = None, columns: Columns = 2, title: str = "") -> Figure:
    """Active requests of every task over time: a panel for each series, its first seed.

    Full records must have been made with ``--events``, or only the first allocation is known.
    """
    found = given(runs)
    study = study_of(found, series=series)
    panels = []
    for key, name in study.folders.items():
        run = next(run for run in found if run.name == name)
        record, requests = record_of(run), requests_of(run)
        moved = {
            task: replace(entry, requests=requests.get(task, ()))
            for task, entry in record.tasks.items()
        }
        if any(requests.values()):
            panels.append((f"{key[-1]}, seed {run.seed}", steps_of(replace(record, tasks=moved))))
    if not panels:
        raise ValueError("no run has active requests: their algorithms train in rounds")
    figure = draw_allocation(panels, columns)
    return _titled(figure, title)


def _drawn(name: str, study: StudyResults, title: str) -> Figure:
    return _titled(find_figure(name)(study), title)


def _titled(figure: Figure, title: str) -> Figure:
    if title:
        head(figure, title)
    return figure
