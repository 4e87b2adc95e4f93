"""Processes on this machine, each with one run at a time."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Event as SharedEvent
from typing import Any, final

from fedast.config.schema import Compute
from fedast.records.run import RunResult
from fedast.run.batch import Ended, Pulse, Work


@final
class _Process:
    """A process for one run at a time. It has a pool of its own, so that it can end alone."""

    def __init__(self, context: SpawnContext, pulses: Any) -> None:
        self.halt = context.Event()
        self.pool = ProcessPoolExecutor(
            1, context, initializer=_enter_process, initargs=(self.halt, pulses)
        )


@final
class LocalWorkers:
    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._pulses = self._context.SimpleQueue()
        self._running: dict[int, tuple[Future[tuple[RunResult, Compute]], _Process]] = {}
        self._idle: list[_Process] = []

    def begin(self, work: Work) -> None:
        with _no_interrupt():
            process = self._idle.pop() if self._idle else _Process(self._context, self._pulses)
            process.halt.clear()
            self._running[work.number] = process.pool.submit(_work, work), process

    def halt(self, number: int) -> None:
        self._running[number][1].halt.set()

    def pulses(self) -> Iterator[Pulse]:
        while not self._pulses.empty():
            yield self._pulses.get()

    def ended(self) -> Iterator[Ended]:
        for number, (future, process) in list(self._running.items()):
            if not future.done():
                continue
            del self._running[number]
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                process.pool.shutdown()
            else:
                self._idle.append(process)
            if isinstance(error, Exception):
                yield number, error
            else:
                yield number, future.result()

    def rest(self) -> None:
        while self._idle:  # which frees their memory on the device
            self._idle.pop().pool.shutdown()

    def close(self) -> None:
        for _, process in self._running.values():
            process.pool.shutdown(wait=True, cancel_futures=True)
        self.rest()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Processes that start within this context never get Ctrl-C; this one gets it at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_halt: SharedEvent
_pulses: Any


def _enter_process(halt: SharedEvent, pulses: Any) -> None:
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


def _work(work: Work) -> tuple[RunResult, Compute]:
    from fedast.run.work import carried_out

    return carried_out(work, _pulses.put, _halt.is_set)
