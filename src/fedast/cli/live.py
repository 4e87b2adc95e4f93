"""Watching one run: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedast.cli.ends import end_style
from fedast.cli.tables import new_table
from fedast.core.protocol import (
    Algorithm,
    ClientId,
    Command,
    Evaluated,
    Finish,
    RequestId,
    TaskName,
)
from fedast.records.metrics import RunMetrics
from fedast.report.estimate import expected_finish

_REDRAW = 0.15
_LINE_EVERY = 2.0


@final
class _Rate:
    """Updates per second since the view began; replayed updates are not counted."""

    def __init__(self, run_metrics: RunMetrics) -> None:
        self._run_metrics = run_metrics
        self._replayed = run_metrics.replayed
        self._began = time.monotonic()

    def now(self) -> float:
        moment = time.monotonic()
        if self._run_metrics.replayed != self._replayed:
            self._replayed, self._began = self._run_metrics.replayed, moment
        return (self._run_metrics.updates - self._replayed) / max(moment - self._began, 1e-3)


@final
class LiveView:
    """The live table of a run. Use as a context; ``watch`` attaches it to the run."""

    def __init__(
        self,
        console: Console,
        title: str,
        limits: Mapping[TaskName, float | None],
        clock: str = "simulated time",
    ) -> None:
        self._clock = clock
        self._title = title
        self._limits = limits
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._due = 0.0
        self._run: tuple[Algorithm, RunMetrics, _Rate] | None = None

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.update(self._table(), refresh=True)
        self._live.__exit__(None, None, None)

    def watch(self, algorithm: Algorithm, run_metrics: RunMetrics) -> LiveView:
        self._run = algorithm, run_metrics, _Rate(run_metrics)
        self._live.update(self._table())
        return self

    def commanded(self, now: float, command: Command) -> None:
        moment = time.monotonic()
        if moment >= self._due:
            self._due = moment + _REDRAW
            self._live.update(self._table())

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        pass

    def _table(self) -> Table:
        columns = ("task", "metric", "target", "round", "requests", "buffer", "staleness", "end")
        table = new_table(self._title, columns)
        if self._run is None:
            return table
        algorithm, run_metrics, rate = self._run
        for status in algorithm.status():
            task = run_metrics.tasks[status.name]
            latest = f"{task.curve[-1].value:.3f}" if task.curve else "–"
            target = "–" if task.spec.target is None else f"{task.spec.target:.3f}"
            if task.finish_time is not None:
                style = end_style(
                    str(task.finish_reason),
                    reached=task.time_to_target is not None,
                    wanted=task.spec.target is not None,
                )
                text = f"{task.finish_reason} at {task.finish_time:.1f}"
                end = f"[{style}]{text}[/]" if style else text
            else:
                expected = expected_finish(task.curve, task.spec, self._limits.get(status.name))
                end = "–" if expected is None else f"~{max(expected, run_metrics.now):.0f}"
            table.add_row(
                status.name,
                latest,
                target,
                str(status.round),
                f"{status.in_flight}/{status.active_requests}",
                f"{status.buffered}/{status.buffer_size or 'all'}",
                f"{task.staleness_mean:.1f}",
                end,
            )
        counted = f"{run_metrics.updates} updates · {rate.now():.0f} updates/s"
        table.caption = f"{self._clock} {run_metrics.now:.1f} · {counted}"
        return table


@final
class LineView:
    """A line every few seconds, and one for each task that finishes."""

    def __init__(self, write: Callable[[str], None], title: str) -> None:
        self._write = write
        self._title = title
        self._due = time.monotonic() + _LINE_EVERY
        self._run_metrics: RunMetrics
        self._rate: _Rate

    def watch(self, algorithm: Algorithm, run_metrics: RunMetrics) -> LineView:
        self._write(self._title)
        self._run_metrics = run_metrics
        self._rate = _Rate(run_metrics)
        return self

    def commanded(self, now: float, command: Command) -> None:
        if isinstance(command, Finish):
            self._write(f"t={now:.1f} task {command.task} finished: {command.reason}")
        moment, rate = time.monotonic(), self._rate.now()
        if moment < self._due:
            return
        self._due = moment + _LINE_EVERY
        metrics = " ".join(
            f"{name}={task.curve[-1].value:.3f}@{task.rounds}"
            for name, task in self._run_metrics.tasks.items()
            if task.curve
        )
        self._write(f"t={now:.1f} updates={self._run_metrics.updates} ({rate:.0f}/s) {metrics}")

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        pass
