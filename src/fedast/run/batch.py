"""Many runs in parallel processes. Each gives what it would give alone with one worker.

(Alone, ``compute.trainer = "auto"`` may choose another trainer, whose rounding differs.)

Runs that share a GPU may run out of its memory. A run that does so while others are running goes
back into the queue, and from then on only as many run at a time as were left. Its process ends
first, which frees its memory. A run that was alone all the time and runs out of memory has failed.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event as SharedEvent
from pathlib import Path
from typing import Any, final

from fedast.config.identity import describe, differences, listed
from fedast.config.load import load, parse
from fedast.config.resolve import resolve
from fedast.config.schema import Compute, RunConfig
from fedast.core.protocol import Algorithm, ClientId, Command, Evaluated, Finish, RequestId
from fedast.records.metrics import RunMetrics
from fedast.records.run import (
    CONFIG,
    CURVES,
    EVENTS,
    RESULT,
    RunResult,
    UnusableFolder,
    check_unheld,
    read_run,
)
from fedast.run.compute import available_cores
from fedast.tasks.task import OutOfMemory
from fedast.version import __version__


@dataclass(frozen=True, slots=True)
class BatchRun:
    label: str
    config: RunConfig
    out: Path | None


@dataclass(frozen=True, slots=True)
class Pulse:
    """The progress of a run: simulated time, tasks done, each task's latest metric."""

    run: int
    time: float
    updates: int
    done: int
    tasks: tuple[tuple[str, float | None], ...]


class Interrupted(Exception):
    """The batch was stopped before all its runs were done."""


def default_jobs() -> int:
    """One run per core that this process may use: a run is single-threaded."""
    return available_cores()


def run_batch(
    runs: Sequence[BatchRun],
    *,
    jobs: int,
    events: bool = False,
    overwrite: bool = False,
    progress: Callable[[Pulse], None] = lambda pulse: None,
    done: Callable[[int, RunResult, Compute], None] = lambda number, result, compute: None,
    failed: Callable[[int, Exception], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[RunResult]:
    """Do all runs and return their results in order; raise ``Interrupted`` when ``stop`` is true.

    ``done`` gets each result, and how it was computed, as soon as it is there. With ``failed``,
    which gets the error, a failed run does not end the others and is left out of the results.
    ``say`` gets a line when a run was out of memory beside others and goes back into the queue.
    """
    context = multiprocessing.get_context("spawn")
    halt, pulses = context.Event(), context.SimpleQueue()
    results: dict[int, RunResult] = {}
    room = workers = min(jobs, len(runs))
    waiting = deque(range(len(runs)))
    running: dict[Future[tuple[RunResult, Compute]], tuple[int, ProcessPoolExecutor]] = {}
    idle: list[ProcessPoolExecutor] = []
    """Processes between two runs. Each has a pool of its own, so that it can end alone."""
    accompanied: set[int] = set()
    """Runs that shared the device with another at some time."""
    again: set[int] = set()

    def begin(number: int) -> None:
        run = runs[number]
        config = alone(run.config, workers)
        with _no_interrupt():
            pool = idle.pop() if idle else ProcessPoolExecutor(
                1, context, initializer=_enter_worker, initargs=(halt, pulses)
            )  # fmt: skip
            mine = overwrite or number in again
            table = config.model_dump(mode="json", exclude={"algorithms"})
            running[pool.submit(_work, number, table, run.out, events, mine)] = number, pool
        accompanied.discard(number)
        if len(running) > 1:
            accompanied.update(other for other, _ in running.values())

    def end_idle() -> None:
        while idle:
            idle.pop().shutdown()

    try:
        while waiting or running:
            if stop():
                raise Interrupted
            while waiting and len(running) < room:
                begin(waiting.popleft())
            while not pulses.empty():
                progress(pulses.get())
            for future in [f for f in running if f.done()]:
                number, pool = running.pop(future)
                error = future.exception()
                if isinstance(error, OutOfMemory) and number in accompanied:
                    idle.append(pool)
                    end_idle()  # which frees their memory on the device
                    room = max(1, len(running))
                    again.add(number)
                    waiting.appendleft(number)
                    say(
                        f"{runs[number].label}: out of memory beside other runs; it is run again, "
                        f"with at most {room} at a time"
                    )
                    continue
                if isinstance(error, BrokenProcessPool):
                    pool.shutdown()
                else:
                    idle.append(pool)
                if not waiting:
                    end_idle()
                if isinstance(error, Exception) and failed is not None:
                    failed(number, error)
                    continue
                results[number], compute = future.result()
                done(number, results[number], compute)
            time.sleep(0.05)
    except BaseException:
        halt.set()  # running ones write their records and end, waiting ones do not begin
        raise
    finally:
        for _, pool in running.values():
            pool.shutdown(wait=True, cancel_futures=True)
        end_idle()
    while not pulses.empty():
        progress(pulses.get())
    return [results[number] for number in range(len(runs)) if number in results]


def found_again(
    run: BatchRun, *, events: bool, say: Callable[[str], None] = lambda text: None
) -> RunResult | None:
    """The result of this run if its folder has it; ``UnusableFolder`` if there is another run.

    None, so that it is run again, if it was interrupted, lacks the log of ``events`` that is asked
    for, or was made by another version of fedast.
    """
    out = run.out
    if out is None:
        return None
    if not (out / CONFIG).is_file():
        check_unheld(out)
        return None
    theirs = resolve(load(out / CONFIG), out)
    # That run wrote out what it chose for "auto"; compare with the same choices.
    mine, chosen = run.config.compute, theirs.compute
    open_keys = [key for key in ("device", "precision") if getattr(mine, key) == "auto"]
    update = {key: getattr(chosen, key) for key in ("workers", *open_keys)}
    update["trainers"] = chosen.trainers | mine.trainers
    config = run.config.model_copy(update={"compute": mine.model_copy(update=update)})
    changed = differences(describe(theirs), config, out)
    if changed:
        raise UnusableFolder(
            f"{out}: holds a run of another configuration ({listed(changed)}); "
            "choose another folder or --overwrite"
        )
    needed = (RESULT, CURVES, EVENTS) if events else (RESULT, CURVES)
    if not all((out / name).is_file() for name in needed):
        return None
    result = read_run(out)
    if result.fedast != __version__:
        say(f"{out}: was made by fedast {result.fedast or '0.1.0'}; it is run again")
        return None
    return None if result.interrupted else result


def alone(config: RunConfig, runs: int) -> RunConfig:
    """With one worker, if several runs share the cores."""
    if runs == 1 or config.compute.workers is not None:
        return config
    return config.model_copy(update={"compute": config.compute.model_copy(update={"workers": 1})})


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Processes that start within this context ignore Ctrl-C from the beginning."""
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
    number: int, table: dict[str, Any], out: Path | None, events: bool, overwrite: bool
) -> tuple[RunResult, Compute]:
    """One run in this process; its configuration comes as a table, since a user's own parts are
    found by name here as they were there."""
    from fedast.run.execute import execute

    def watch(algorithm: Algorithm, run_metrics: RunMetrics) -> Pulser:
        return Pulser(number, run_metrics, _pulses.put)

    import torch

    try:
        outcome = execute(
            parse(table), out, events=events, overwrite=overwrite, watch=(watch,), stop=_halt.is_set
        )
        return outcome.result, outcome.compute
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"out of memory ({error})") from None
    finally:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # Other runs on this device may need the memory.
            gc.collect()
            torch.cuda.empty_cache()


@final
class Pulser:
    """An observer that reports the progress of a run a few times a second."""

    def __init__(self, number: int, run_metrics: RunMetrics, send: Callable[[Pulse], None]) -> None:
        self._number = number
        self._run_metrics = run_metrics
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
        tasks = self._run_metrics.tasks
        return Pulse(
            run=self._number,
            time=now,
            updates=self._run_metrics.updates,
            done=sum(task.finish_reason is not None for task in tasks.values()),
            tasks=tuple(
                (name, task.curve[-1].value if task.curve else None) for name, task in tasks.items()
            ),
        )
