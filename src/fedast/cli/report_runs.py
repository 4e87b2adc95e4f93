"""``fedast report`` of a folder of ``fedast run`` or ``fedast compare``."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from fedast.analysis.runs import Run
from fedast.cli.starting import over
from fedast.cli.tables import comparison_tables, number, result_table, summary
from fedast.parts.errors import ConfigError
from fedast.records.run import ALL_TASKS, RESULT, RunResult, read_run
from fedast.report.compare import Comparison, compare
from fedast.reproduce.results import Columns
from fedast.reproduce.runs_page import PageTable, write_runs_page
from fedast.reproduce.store import MANIFEST

_COMPARISON = "comparison.json"


def holds_runs(folder: Path) -> bool:
    """Whether it is the folder of a run or of a comparison, not of a reproduction."""
    if (folder / MANIFEST).exists():
        return False
    return (folder / RESULT).is_file() or any(folder.glob(f"**/{RESULT}"))


def report_runs(folder: Path, *, page: bool, columns: Columns, as_json: bool) -> None:
    from fedast.plot.study import given, variants

    runs = given(folder)
    results: dict[str, list[RunResult]] = {}
    for label, run in zip(variants(runs), runs, strict=True):
        results.setdefault(label, []).append(read_run(run.path))
    if len({tuple(run.tasks) for run in runs}) > 1:
        raise ConfigError("", f"{folder}: its runs have different tasks; report them one by one")
    comparison = compare(results, _baseline(folder, runs, list(results)))
    written = _write(folder, comparison, results, columns) if page and not as_json else {}
    over()
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=2))
        return
    console = Console(highlight=False)
    if len(runs) == 1:
        console.print(result_table(read_run(runs[0].path), next(iter(results))))
    else:
        for table in comparison_tables(comparison):
            console.print(table)
    if written:
        click.echo(f"Page: {folder / 'report.html'}; figures: {folder / 'figures'}")


def _baseline(folder: Path, runs: list[Run], labels: list[str]) -> str:
    """What the comparison was made against; otherwise the last."""
    from fedast.plot.study import variants

    try:
        named = json.loads((folder / _COMPARISON).read_text(encoding="utf-8"))["baseline"]
    except (OSError, ValueError, KeyError, TypeError):
        return labels[-1]
    for label, run in zip(variants(runs), runs, strict=True):
        if run.name.split("/")[0] == named:
            return label
    return labels[-1]


def _write(
    folder: Path, comparison: Comparison, results: dict[str, list[RunResult]], columns: Columns
) -> dict[str, Path]:
    """The figures, and the page with them; PNG files by name."""
    from fedast import plot
    from fedast.reproduce.figures.save import save_figures

    figures = {"curves": plot.curves(folder, columns=columns)}
    reached = any(
        task.time_to_target is not None
        for found in results.values()
        for result in found
        for task in result.tasks.values()
    )
    if reached:
        figures["times"] = plot.times(folder, baseline=comparison.baseline, columns=columns)
    written = save_figures(figures, folder / "figures", "runs")
    columns_of = (*comparison.tasks, ALL_TASKS)
    to_target = PageTable(
        "Simulated time to target, mean ± standard deviation over seeds",
        ("algorithm", *columns_of, "gain"),
        [
            (
                label,
                *(summary(comparison.times[label][task]) for task in columns_of),
                "–" if (gain := comparison.gain(label)) is None else f"{100 * gain:.1f} %",
            )
            for label in comparison.labels
        ],
    )
    ends = PageTable(
        "Runs",
        ("algorithm", "seed", "task", "metric", "final", "loss", "rounds", "updates", "end"),
        [
            (
                label, str(result.seed), name, task.metric, number(task.final, 3),
                number(task.final_loss, 3), str(task.rounds), str(task.updates), task.finish_reason,
            )
            for label, found in results.items()
            for result in found
            for name, task in result.tasks.items()
        ],
    )  # fmt: skip
    write_runs_page(folder / "report.html", folder.resolve().name, [to_target, ends], written)
    return written
