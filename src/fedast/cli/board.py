"""Watching several runs: a row per run in a terminal, a line per finished run elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedast.cli.tables import against, new_table
from fedast.run.batch import BatchRun, Pulse


@final
class Board:
    """Use as a context; ``pulse`` takes the progress of a batch."""

    def __init__(self, console: Console, runs: Sequence[BatchRun]) -> None:
        self._console = console
        self._runs = runs
        self._pulses: dict[int, Pulse] = {}
        self._live = Live(console=console, refresh_per_second=6) if console.is_terminal else None
        self._announced: set[int] = set()

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.__exit__(None, None, None)

    def pulse(self, pulse: Pulse) -> None:
        self._pulses[pulse.run] = pulse
        if self._live is not None:
            self._live.update(self._table())
        elif pulse.done == len(pulse.tasks) and pulse.run not in self._announced:
            self._announced.add(pulse.run)
            run = self._runs[pulse.run]
            targets = {task.name: task.target for task in run.config.tasks}
            late = _late(pulse, targets)
            self._console.print(
                f"{run.label} seed {run.config.seed}: done at t={pulse.time:.1f} "
                f"after {pulse.updates} updates"
                + (f", without the target of {', '.join(late)}" if late else "")
            )

    def _table(self) -> Table:
        names = [task.name or task.use for task in self._runs[0].config.tasks]
        table = new_table("Runs", ("algorithm", "seed", "time", "updates", *names))
        for number, run in enumerate(self._runs):
            pulse = self._pulses.get(number)
            if pulse is None:
                table.add_row(run.label, str(run.config.seed), "waiting", style="dim")
                continue
            targets = {task.name: task.target for task in run.config.tasks}
            done = pulse.done == len(pulse.tasks)
            table.add_row(
                run.label,
                str(run.config.seed),
                f"{pulse.time:.1f}",
                str(pulse.updates),
                *(against(value, targets.get(name)) for name, value in pulse.tasks),
                style=_style(pulse, targets) if done else "",
            )
        return table


def _late(pulse: Pulse, targets: Mapping[str | None, float | None]) -> list[str]:
    """The tasks that have not reached their targets."""
    return [
        name
        for (name, _), reached in zip(pulse.tasks, pulse.reached, strict=False)
        if reached is None and targets.get(name) is not None
    ]


def _style(pulse: Pulse, targets: Mapping[str | None, float | None]) -> str:
    return "yellow" if _late(pulse, targets) else "green"
