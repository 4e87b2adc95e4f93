"""The numbers of a study that claims nothing: what every variant reached, over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedast.report.compare import Summary
from fedast.reproduce.results import StudyResults


@dataclass(frozen=True)
class Numbers:
    """A row for every variant and task that has runs."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def numbers_of(results: StudyResults) -> Numbers:
    """Time to target and the last value of the metric, mean ± standard deviation over seeds."""
    rows = []
    for key, by_seed in results.runs.items():
        found = list(by_seed.values())
        for task in found[0].tasks if found else ():
            of_task = [run.tasks[task] for run in found if task in run.tasks]
            times = Summary.of([one.time_to_target for one in of_task])
            finals = Summary.of([one.final for one in of_task if one.final is not None])
            rows.append(
                (
                    ", ".join(key), task, of_task[0].metric, _text(times, 1), _text(finals, 3),
                    str(len(of_task)),
                )
            )  # fmt: skip
    columns = ("variant", "task", "metric", "time to target", "final", "seeds")
    return Numbers(columns, rows)


def _text(of: Summary, digits: int) -> str:
    if of.mean is None:
        return f"– (0 of {of.runs})" if of.runs else "–"
    text = f"{of.mean:.{digits}f}"
    if of.deviation is not None:
        text += f" ± {of.deviation:.{digits}f}"
    return text + (f" ({of.reached} of {of.runs})" if of.reached < of.runs else "")
