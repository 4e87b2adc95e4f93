"""How a run ended, and whether that is what was asked for.

Exit codes of the commands (docs/configuration.md has them for users): 0 it ended as asked, 1 it
failed, 2 something about the command or its files is wrong, 3 a task diverged or missed its target,
130 it was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedast.config.schema import RunConfig
from fedast.records.run import RunResult, TaskResult

NOT_REACHED = 3
"""Exit code of a run that ended, but not as asked."""

_LIMITS = {"time": "time limit", "rounds": "round limit"}


def end_style(reason: str, *, reached: bool, wanted: bool) -> str:
    """The colour of a task's end: red if it diverged, green if it reached its target, yellow if it
    was to reach one and did not."""
    if reason == "diverged":
        return "bold red"
    if reached:
        return "green"
    return "yellow" if wanted and reason in _LIMITS else ""


def wanted(config: RunConfig) -> frozenset[str]:
    """The tasks that are to reach a target."""
    if config.simulation.until == "time":
        return frozenset()
    return frozenset(task.name or task.use for task in config.tasks if task.target is not None)


def missed(result: RunResult, config: RunConfig) -> dict[str, str]:
    """The tasks that did not end as asked, and how they ended.

    Without a target, or with targets that are only recorded (``until = "time"``), the end of time
    or rounds is what was asked for. A task that was removed, or interrupted, has no fault.
    """
    found = {}
    for task in config.tasks:
        name = task.name or task.use
        end = result.tasks.get(name)
        if end is None or end.finish_reason in ("removed", "interrupted"):
            continue
        if end.diverged:
            found[name] = "diverged"
        elif task.target is not None and not _reached(end, config):
            final = "" if end.final is None else f" at {end.final:.3f}, target {task.target:g}"
            found[name] = f"{_LIMITS.get(end.finish_reason, end.finish_reason)}{final}"
    return found


def _reached(end: TaskResult, config: RunConfig) -> bool:
    match config.simulation.until:
        case "time":
            return True
        case "held":
            return end.finish_reason == "target" or end.time_held is not None
        case _:
            return end.time_to_target is not None


def ending_lines(result: RunResult, config: RunConfig) -> list[str]:
    """What to tell of the tasks that did not end as asked, if there are any."""
    diverged = [name for name, how in missed(result, config).items() if how == "diverged"]
    late = [f"{name} ({how})" for name, how in missed(result, config).items() if how != "diverged"]
    lines = []
    if diverged:
        lines.append(f"DIVERGED: {', '.join(diverged)}; lower client_lr or server_lr")
    if late:
        lines.append(f"TARGET MISSED: {', '.join(late)}")
    return lines


def divergences(results: Sequence[RunResult], where: str) -> list[str]:
    """A line for the runs of a comparison in which a task diverged."""
    found = [
        f"{name} (seed {result.seed})"
        for result in results
        for name, task in result.tasks.items()
        if task.diverged
    ]
    return [f"warning: {where}: diverged: {', '.join(found)}"] if found else []
