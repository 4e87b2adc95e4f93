"""Many runs in parallel processes. Each gives what it would give alone with one worker.

(Alone, ``compute.trainer = "auto"`` may choose another trainer, whose rounding differs.)

Runs that share a GPU may run out of its memory. A run that does so while others are running goes
back into the queue, and from then on only as many run at a time as were left. Its process ends
first, which frees its memory. A run that was alone all the time and runs out of memory has failed.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Event as SharedEvent
from pathlib import Path
from typing import Any, final

from fedast.config.load import parse
from fedast.config.schema import Compute, RunConfig
from fedast.core.protocol import Algorithm, ClientId, Command, Evaluated, Finish, RequestId
from fedast.records.metrics import RunMetrics
from fedast.records.run import RunResult
from fedast.run.compute import available_cores
from fedast.tasks.task import OutOfMemory


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


def default_jobs() -> int:
    """One run per core that this process may use: a run is single-threaded."""
    return available_cores()


@final
class _Worker:
    """A process for one run at a time. It has a pool of its own, so that it can end alone."""

    def __init__(self, context: SpawnContext, pulses: Any) -> None:
        self.halt = context.Event()
        self.pool = ProcessPoolExecutor(
            1, context, initializer=_enter_worker, initargs=(self.halt, pulses)
        )


def run_batch(
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
    ``say`` gets a line when a run was out of memory beside others and goes back into the queue.
    ``runs`` are taken as there is room for them; ``prune`` is asked which ones to end early.
    """
    context = multiprocessing.get_context("spawn")
    pulses = context.SimpleQueue()
    results: dict[int, RunResult] = {}
    workers = max(1, min(jobs, len(runs))) if isinstance(runs, Sequence) else jobs
    room = workers
    coming = iter(runs)
    taken: list[BatchRun] = []
    waiting: deque[int] = deque()
    """Runs that go back into the queue; they come before new ones."""
    running: dict[Future[tuple[RunResult, Compute]], tuple[int, _Worker]] = {}
    idle: list[_Worker] = []
    accompanied: set[int] = set()
    """Runs that shared the device with another at some time."""
    again: set[int] = set()

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
        config = alone(run.config, workers)
        with _no_interrupt():
            worker = idle.pop() if idle else _Worker(context, pulses)
            worker.halt.clear()
            mine = overwrite or number in again
            table = config.model_dump(mode="json", exclude={"algorithms"})
            future = worker.pool.submit(
                _work, number, table, run.out, events, mine, run.every, run.resume
            )
            running[future] = number, worker
        accompanied.discard(number)
        if len(running) > 1:
            accompanied.update(other for other, _ in running.values())

    def end_idle() -> None:
        while idle:
            idle.pop().pool.shutdown()

    try:
        left = True
        while left or running:
            if stop():
                raise Interrupted
            while left and len(running) < room:
                following_run = following()
                left = following_run is not None
                if following_run is not None:
                    begin(following_run)
            if not left:
                end_idle()
            while not pulses.empty():
                progress(pulses.get())
            for number, worker in running.values():
                if prune(number):
                    worker.halt.set()
            for future in [f for f in running if f.done()]:
                number, worker = running.pop(future)
                error = future.exception()
                if isinstance(error, OutOfMemory) and number in accompanied:
                    idle.append(worker)
                    end_idle()  # which frees their memory on the device
                    room = max(1, len(running))
                    again.add(number)
                    waiting.appendleft(number)
                    left = True
                    say(
                        f"{taken[number].label}: out of memory beside other runs; it is run again, "
                        f"with at most {room} at a time"
                    )
                    continue
                if isinstance(error, BrokenProcessPool):
                    worker.pool.shutdown()
                else:
                    idle.append(worker)
                if isinstance(error, Exception) and failed is not None:
                    failed(number, error)
                    continue
                results[number], compute = future.result()
                done(number, results[number], compute)
            time.sleep(0.05)
    except BaseException:
        for _, worker in running.values():
            worker.halt.set()  # running ones write their records and end
        raise
    finally:
        for _, worker in running.values():
            worker.pool.shutdown(wait=True, cancel_futures=True)
        end_idle()
    while not pulses.empty():
        progress(pulses.get())
    return [results[number] for number in sorted(results)]


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
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """A process whose parent was killed ends too: the next command takes its run up."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _work(
    number: int,
    table: dict[str, Any],
    out: Path | None,
    events: bool,
    overwrite: bool,
    every: str | None,
    resuming: bool,
) -> tuple[RunResult, Compute]:
    """One run in this process; its configuration comes as a table, since a user's own parts are
    found by name here as they were there."""
    from fedast.run.checkpointing import Every
    from fedast.run.execute import execute, resume

    def watch(algorithm: Algorithm, run_metrics: RunMetrics) -> Pulser:
        return Pulser(number, run_metrics, _pulses.put)

    import torch

    try:
        often = None if every is None else Every.parse(every)
        if resuming and out is not None:
            outcome = resume(out, every=often, watch=(watch,), stop=_halt.is_set)
        else:
            outcome = execute(
                parse(table), out, events=events, overwrite=overwrite, watch=(watch,),
                stop=_halt.is_set, every=often,
            )  # fmt: skip
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
            reached=tuple(task.time_to_target for task in tasks.values()),
        )
