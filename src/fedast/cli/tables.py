"""The tables that the commands print: tight enough for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedast.cli.ends import end_style
from fedast.records.run import ALL_TASKS, RunResult
from fedast.report.compare import Comparison, Summary


def new_table(title: str, columns: Sequence[str], caption: str = "") -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption or None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def result_table(
    result: RunResult,
    title: str,
    clock: str = "simulated time",
    *,
    wanted: Collection[str] = (),
) -> Table:
    """``wanted`` are the tasks that are to reach a target."""
    table = new_table(
        title,
        ("task", "to target", "final", "loss", "rounds", "updates", "stale", "max", "end"),
        f"{clock} {result.finish_time:.1f} · {result.wall_seconds:.1f} s · "
        f"{result.updates_per_second:.0f} updates/s",
    )
    for name, task in result.tasks.items():
        table.add_row(
            name,
            number(task.time_to_target, 1),
            number(task.final, 3),
            number(task.final_loss, 3),
            str(task.rounds),
            str(task.updates),
            f"{task.staleness_mean:.1f}",
            str(task.staleness_max),
            Text(
                task.finish_reason,
                end_style(
                    task.finish_reason,
                    reached=task.time_to_target is not None,
                    wanted=name in wanted,
                ),
            ),
        )
    return table


def saturation_warnings(results: Sequence[RunResult], where: str = "") -> list[str]:
    """A line for each task in which values were too large for fp16, over all these runs."""
    lines = []
    for name in dict.fromkeys(name for result in results for name in result.tasks):
        found = [result.tasks[name] for result in results if name in result.tasks]
        count = sum(task.saturated or 0 for task in found)
        if count:
            lines.append(
                f"warning: {where}task {name!r}: {count} of {sum(task.updates for task in found)} "
                "updates had values too large for fp16, which were cut off; run again with "
                "--set compute.precision=tf32 (or fp32), or lower the task's client_lr"
            )
    return lines


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Times to target; where a target was held, also the times at which they were."""
    both = (False, True) if comparison.held else (False,)
    return [_comparison_table(comparison, held=held) for held in both]


def _comparison_table(comparison: Comparison, *, held: bool) -> Table:
    columns = (*comparison.tasks, ALL_TASKS)
    when = "until the target is held (mean of five evaluations)" if held else "to target"
    table = new_table(
        f"Simulated time {when}, mean ± standard deviation over seeds",
        ("algorithm", *columns, "gain"),
        f"gain: of the time {'to hold' if held else 'to'} all targets, over {comparison.baseline}",
    )
    for label in comparison.labels:
        gain = comparison.gain(label, held=held)
        row = (comparison.held if held else comparison.times)[label]
        table.add_row(
            label,
            *(summary(row[task]) for task in columns),
            "–" if gain is None else f"{100 * gain:.1f} %",
        )
    return table


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def summary(times: Summary) -> str:
    if times.mean is None:
        return f"– (0 of {times.runs})"
    text = f"{times.mean:.1f}"
    if times.deviation is not None:
        text += f" ± {times.deviation:.1f}"
    if times.reached < times.runs:
        text += f" ({times.reached} of {times.runs})"
    return text


def against(value: float | None, target: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if target is None else f"{value:.3f} / {target:g}"
