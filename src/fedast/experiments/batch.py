"""Many runs, side by side in processes; each is what it would be alone, with one worker.

(Alone, ``compute.trainer = "auto"`` may choose another trainer, whose rounding differs.)
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event as SharedEvent
from pathlib import Path
from typing import Any, final

from fedast.core.protocol import Algorithm, ClientId, Command, Evaluated, Finish, RequestId
from fedast.experiments.config import Compute, RunConfig
from fedast.records.run import RunResult
from fedast.records.tally import Tally


@dataclass(frozen=True, slots=True)
class BatchRun:
    label: str
    config: RunConfig
    out: Path | None


@dataclass(frozen=True, slots=True)
class Pulse:
    """How far a run is: simulated time, tasks done, each task's latest metric."""

    run: int
    time: float
    updates: int
    done: int
    tasks: tuple[tuple[str, float | None], ...]


class Interrupted(Exception):
    """The batch was stopped before all its runs were done."""


def default_jobs() -> int:
    """One run per core: a run is single-threaded."""
    return os.cpu_count() or 1


def run_batch(
    runs: Sequence[BatchRun],
    *,
    jobs: int,
    events: bool = False,
    overwrite: bool = False,
    progress: Callable[[Pulse], None] = lambda pulse: None,
    done: Callable[[int, RunResult, Compute], None] = lambda number, result, compute: None,
    failed: Callable[[int, Exception], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[RunResult]:
    """Carry out all runs and give their results in order; ``Interrupted`` if ``stop`` says so.

    ``done`` gets each result, and how it was computed, as soon as it is there. With ``failed``,
    which gets the errors, a run that fails does not end the others, and has no place among the
    results.
    """
    context = multiprocessing.get_context("spawn")
    halt, pulses = context.Event(), context.SimpleQueue()
    results: dict[int, RunResult] = {}
    failures: set[int] = set()
    workers = min(jobs, len(runs))
    with ProcessPoolExecutor(
        workers, context, initializer=_enter_worker, initargs=(halt, pulses)
    ) as pool:
        with _no_interrupt():
            futures = {
                pool.submit(
                    _work, number, _alone(run.config, workers), run.out, events, overwrite
                ): number
                for number, run in enumerate(runs)
            }
        try:
            while len(results) + len(failures) < len(runs):
                if stop():
                    raise Interrupted
                while not pulses.empty():
                    progress(pulses.get())
                for future in [f for f in futures if f.done()]:
                    number = futures.pop(future)
                    error = future.exception()
                    if isinstance(error, Exception) and failed is not None:
                        failures.add(number)
                        failed(number, error)
                        continue
                    results[number], compute = future.result()
                    done(number, results[number], compute)
                time.sleep(0.05)
        except BaseException:
            halt.set()  # runs under way write their records and end; the rest do not begin
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        while not pulses.empty():
            progress(pulses.get())
    return [results[number] for number in range(len(runs)) if number in results]


def _alone(config: RunConfig, runs: int) -> RunConfig:
    """Where several runs share the cores, none of them starts workers of its own."""
    if runs == 1 or config.compute.workers is not None:
        return config
    return config.model_copy(update={"compute": config.compute.model_copy(update={"workers": 1})})


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Processes started in here ignore Ctrl-C from their first instruction on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_halt: SharedEvent
_pulses: Any


def _enter_worker(halt: SharedEvent, pulses: Any) -> None:
    global _halt, _pulses
    _halt, _pulses = halt, pulses
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means


def _work(
    number: int, config: RunConfig, out: Path | None, events: bool, overwrite: bool
) -> tuple[RunResult, Compute]:
    from fedast.experiments.run import execute

    def watch(algorithm: Algorithm, tally: Tally) -> Pulser:
        return Pulser(number, tally, _pulses.put)

    outcome = execute(
        config, out, events=events, overwrite=overwrite, watch=(watch,), stop=_halt.is_set
    )
    return outcome.result, outcome.compute


@final
class Pulser:
    """An observer that reports how far a run is, a few times a second."""

    def __init__(self, number: int, tally: Tally, send: Callable[[Pulse], None]) -> None:
        self._number = number
        self._tally = tally
        self._send = send
        self._due = 0.0

    def commanded(self, now: float, command: Command) -> None:
        if isinstance(command, Finish) or time.monotonic() >= self._due:
            self._due = time.monotonic() + 0.2
            self._send(self.pulse(now))

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        pass

    def evaluated(self, now: float, event: Evaluated) -> None:
        pass

    def pulse(self, now: float) -> Pulse:
        tasks = self._tally.tasks
        return Pulse(
            run=self._number,
            time=now,
            updates=self._tally.updates,
            done=sum(task.finish_reason is not None for task in tasks.values()),
            tasks=tuple(
                (name, task.curve[-1].accuracy if task.curve else None)
                for name, task in tasks.items()
            ),
        )
