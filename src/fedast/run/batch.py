"""Many runs at a time. Each gives what it would give alone with one worker.

(Alone, ``compute.trainer = "auto"`` may choose another trainer, whose rounding differs.)

Runs that share a GPU may run out of its memory. A run that does so while others are running goes
back into the queue, and from then on only as many run at a time as were left. Its process ends
first, which frees its memory. A run that was alone all the time and runs out of memory has failed.

A run whose worker is lost (its machine has died, say) is begun again, from its newest checkpoint if
it has one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from fedast.config.schema import Compute, RunConfig
from fedast.records.run import RunResult
from fedast.run.compute import available_cores
from fedast.tasks.task import OutOfMemory

TRIES = 4
"""A run whose worker is lost so many times has failed: perhaps it is what kills them."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    label: str
    config: RunConfig
    out: Path | None
    every: str | None = None
    """How often checkpoints are taken (``Every``); None: never."""
    resume: bool = False
    """Go on with what is in the folder, from its newest checkpoint."""


@dataclass(frozen=True, slots=True)
class Work:
    """A run as a worker is given it. Its configuration is a table, since a user's own parts are
    found by name there as they were here."""

    number: int
    table: dict[str, Any]
    out: Path | None
    events: bool
    overwrite: bool
    every: str | None
    resume: bool


@dataclass(frozen=True, slots=True)
class Pulse:
    """The progress of a run: simulated time, tasks done, each task's latest metric."""

    run: int
    time: float
    updates: int
    done: int
    tasks: tuple[tuple[str, float | None], ...]
    reached: tuple[float | None, ...] = ()
    """When each task reached its target."""


class Interrupted(Exception):
    """The batch was stopped before all its runs were done."""


class WorkerLost(Exception):
    """What carried out a run is gone: its process, its machine. It is no fault of the run."""


class ClusterLost(Exception):
    """What the workers were on does not answer any more; finished runs are kept."""


Ended: TypeAlias = tuple[int, tuple[RunResult, Compute] | Exception]
"""A run's number, and what came of it."""


class Workers(Protocol):
    """Where runs are carried out (``fedast.run.work.carried_out``)."""

    def begin(self, work: Work) -> None:
        """Start a run, without waiting for it."""

    def halt(self, number: int) -> None:
        """Ask a run to end early, with what it has; more than once is no harm."""

    def pulses(self) -> Iterable[Pulse]:
        """The progress of runs since the last call."""

    def ended(self) -> Iterable[Ended]:
        """The runs that have ended since the last call; ``WorkerLost`` for one to begin again."""

    def rest(self) -> None:
        """Nothing is to begin just now: free what is only kept for the next run."""

    def close(self) -> None:
        """Wait for runs that were asked to end, and free everything."""


def default_jobs() -> int:
    """One run per core that this process may use: a run is single-threaded."""
    return available_cores()


def run_batch(runs: Iterable[BatchRun], *, jobs: int, **options: Any) -> list[RunResult]:
    """``carry_out`` in processes on this machine."""
    from fedast.run.local_workers import LocalWorkers

    return carry_out(LocalWorkers(), runs, jobs=jobs, **options)


def carry_out(
    workers: Workers,
    runs: Iterable[BatchRun],
    *,
    jobs: int,
    events: bool = False,
    overwrite: bool = False,
    progress: Callable[[Pulse], None] = lambda pulse: None,
    done: Callable[[int, RunResult, Compute], None] = lambda number, result, compute: None,
    failed: Callable[[int, Exception], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
    prune: Callable[[int], bool] = lambda number: False,
) -> list[RunResult]:
    """Do all runs and return their results in order; raise ``Interrupted`` when ``stop`` is true.

    ``done`` gets each result, and how it was computed, as soon as it is there. With ``failed``,
    which gets the error, a failed run does not end the others and is left out of the results.
    ``say`` gets a line when a run goes back into the queue. ``runs`` are taken as there is room for
    them; ``prune`` is asked which ones to end early.
    """
    results: dict[int, RunResult] = {}
    at_a_time = max(1, min(jobs, len(runs))) if isinstance(runs, Sequence) else jobs
    room = at_a_time
    coming = iter(runs)
    taken: list[BatchRun] = []
    waiting: deque[int] = deque()
    """Runs that go back into the queue; they come before new ones."""
    running: set[int] = set()
    accompanied: set[int] = set()
    """Runs that shared the device with another at some time."""
    again: dict[int, int] = {}
    """How often runs were put back."""

    def following() -> int | None:
        """The next run, if there is one."""
        if waiting:
            return waiting.popleft()
        run = next(coming, None)
        if run is None:
            return None
        taken.append(run)
        return len(taken) - 1

    def begin(number: int) -> None:
        run = taken[number]
        table = alone(run.config, at_a_time).model_dump(mode="json", exclude={"algorithms"})
        mine = overwrite or number in again
        resume = run.resume or (number in again and _has_checkpoint(run))
        workers.begin(Work(number, table, run.out, events, mine, run.every, resume))
        running.add(number)
        accompanied.discard(number)
        if len(running) > 1:
            accompanied.update(running)

    def put_back(number: int, error: Exception) -> bool:
        """Whether a run is begun again."""
        nonlocal room
        label = taken[number].label
        if isinstance(error, OutOfMemory) and number in accompanied:
            workers.rest()
            room = max(1, len(running))
            say(
                f"{label}: out of memory beside other runs; it is run again, "
                f"with at most {room} at a time"
            )
        elif isinstance(error, WorkerLost) and again.get(number, 0) + 1 < TRIES:
            kept = " from its newest checkpoint" if _has_checkpoint(taken[number]) else ""
            say(f"{label}: {error}; it is begun again{kept}")
        else:
            return False
        again[number] = again.get(number, 0) + 1
        waiting.appendleft(number)
        return True

    try:
        left = True
        while left or running:
            if stop():
                raise Interrupted
            while left and len(running) < room:
                number = following()
                if number is None:
                    left = False
                else:
                    begin(number)
            if not left:
                workers.rest()
            for pulse in workers.pulses():
                progress(pulse)
            for number in running:
                if prune(number):
                    workers.halt(number)
            for number, outcome in workers.ended():
                running.remove(number)
                if isinstance(outcome, tuple):
                    results[number] = outcome[0]
                    done(number, *outcome)
                elif put_back(number, outcome):
                    left = True
                elif failed is not None:
                    failed(number, outcome)
                else:
                    raise outcome
            time.sleep(0.05)
    except BaseException:
        for number in running:
            workers.halt(number)  # running ones write their records and end
        raise
    finally:
        workers.close()
    for pulse in workers.pulses():
        progress(pulse)
    return [results[number] for number in sorted(results)]


def _has_checkpoint(run: BatchRun) -> bool:
    from fedast.run.continuing import has_checkpoint

    return run.every is not None and run.out is not None and has_checkpoint(run.out)


def alone(config: RunConfig, runs: int) -> RunConfig:
    """With one worker, if several runs share the cores."""
    if runs == 1 or config.compute.workers is not None:
        return config
    return config.model_copy(update={"compute": config.compute.model_copy(update={"workers": 1})})
