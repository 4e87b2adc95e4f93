"""Watching a sweep: its trials in a live table in a terminal, a line per trial elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedast.cli.tables import new_table, number
from fedast.records.sweeps import Trial
from fedast.run.batch import Pulse
from fedast.sweeps.objective import Objective
from fedast.sweeps.space import Parameter, shown
from fedast.sweeps.sweep import Sweep

_ROWS = 12
"""Ended trials in the live table: the best ones."""


def point_text(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {shown(value)}" for key, value in point.items())


def trials_table(
    trials: Sequence[Trial],
    objective: Objective,
    space: Sequence[Parameter],
    title: str,
    times: Mapping[int, float] | None = None,
) -> Table:
    """``times``: how far runs under way are."""
    names = [parameter.name for parameter in space]
    table = new_table(title, ("trial", objective.label, *short_names(names)))
    for trial in trials:
        value = number(trial.value, 3) if trial.state == "complete" else trial.state
        if trial.state == "running" and times is not None:
            value = f"t={times.get(trial.number, 0.0):.1f}"
        table.add_row(
            str(trial.number),
            value,
            *(shown(trial.parameters[name]) for name in names),
            style="dim" if trial.state not in ("running", "complete") else "",
        )
    return table


def short_names(names: Sequence[str]) -> list[str]:
    """Keys without what comes before their last part, where that says enough."""
    last = [name.rpartition(".")[2] for name in names]
    return [
        short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)
    ]


@final
class SweepBoard:
    """Use as a context; is told what becomes of trials (``sweeps.run.Watcher``)."""

    def __init__(
        self, console: Console, objective: Objective, sweep: Sweep, there: Mapping[int, Trial]
    ) -> None:
        self._console = console
        self._objective = objective
        self._sweep = sweep
        self._trials = dict(there)
        self._times: dict[int, float] = {}
        self._live = Live(console=console, refresh_per_second=6) if console.is_terminal else None

    def __enter__(self) -> SweepBoard:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.__exit__(None, None, None)

    def began(self, trial: Trial) -> None:
        self._trials[trial.number] = trial
        self._draw()

    def pulse(self, trial: int, seed: int, pulse: Pulse) -> None:
        self._times[trial] = pulse.time
        self._draw()

    def ended(self, trial: Trial) -> None:
        self._trials[trial.number] = trial
        if self._live is not None:
            self._draw()
            return
        over = sum(trial.ended for trial in self._trials.values())
        best = self._ranked()[:1]
        outcome: str = trial.state
        if trial.value is not None:
            outcome = f"{self._objective.label} {trial.value:.4g}"
        elif trial.bound is not None:
            outcome = f"pruned at {trial.bound:.4g}"
        self._console.print(
            f"[{over}/{self._sweep.trials}] trial {trial.number}: {outcome}"
            + (f" (best: {best[0].value:.4g}, trial {best[0].number})" if best else "")
            + f"; {point_text(trial.parameters)}",
            markup=False,
        )

    def _ranked(self) -> list[Trial]:
        sign = 1 if self._objective.direction == "minimize" else -1
        complete = [t for t in self._trials.values() if t.state == "complete"]
        return sorted(complete, key=lambda t: (sign * (t.value or 0.0), t.number))

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._table())

    def _table(self) -> Table:
        running = [trial for trial in self._trials.values() if trial.state == "running"]
        over = [trial for trial in self._trials.values() if trial.ended]
        others = [trial for trial in over if trial.state != "complete"]
        rows = [*running, *self._ranked()[:_ROWS]]
        title = f"{len(over)} of {self._sweep.trials} trials"
        if others:
            counts = {state: sum(t.state == state for t in others) for state in
                      dict.fromkeys(t.state for t in others)}  # fmt: skip
            title += " (" + ", ".join(f"{count} {state}" for state, count in counts.items()) + ")"
        return trials_table(rows, self._objective, self._sweep.space, title, self._times)
