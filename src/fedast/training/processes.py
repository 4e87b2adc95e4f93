"""Local training in processes of one thread each, over shared memory.

Workers are forked once models and data are built, so they have them without a
copy. Base models and updates travel through shared memory; only ids go through
pipes. A job's value does not depend on who trains it, so results are the same
for any number of workers.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import TypeAlias, final

import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.parts.blame import placed
from fedast.tasks.task import TrainingFailed
from fedast.training.lean import LeanTrainer
from fedast.training.trainer import DeviceTask, Job, Update


def can_fork() -> bool:
    """Not with a GPU: autograd starts threads there, which do not survive a fork."""
    return "fork" in multiprocessing.get_all_start_methods() and not torch.cuda.is_available()


_PER_WORKER = 8
"""Jobs per worker in one batch: enough that waiting for the last worker costs little."""
_AHEAD = 2
"""Jobs that a worker is given at a time, so that it never waits for the next one."""

_Order: TypeAlias = tuple[int, int, RequestId, ClientId, Version]
"""A job: the slot of its update, that of its base model, and its request, client and version."""


@final
class ProcessTrainer:
    def __init__(
        self, device_tasks: Mapping[TaskName, DeviceTask], seed: int, *, workers: int
    ) -> None:
        self._limit = _PER_WORKER * workers
        self._memory = {
            name: _SharedMemory(device_task, _AHEAD * workers)
            for name, device_task in device_tasks.items()
        }
        self._workers: list[_Worker] = []
        context = multiprocessing.get_context("fork")
        for _ in range(workers):
            here, there = context.Pipe()
            # A forked worker has copies of the parent's ends, its own and those of the workers
            # before it; while one is open, a worker would not notice that the parent is gone.
            ends = [worker.pipe for worker in self._workers] + [here]
            process = context.Process(
                target=_work, args=(there, ends, device_tasks, seed, self._memory), daemon=True
            )
            process.start()
            there.close()
            self._workers.append(_Worker(process, here))

    def limit(self, task: TaskName) -> int:
        return self._limit

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        if not self._workers:
            raise TrainingFailed("the worker processes have ended")
        try:
            return self._train(task, jobs)
        except BaseException:  # whoever goes on would be given answers to what was asked before
            self.close()
            raise

    def _train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        shared = self._memory[task]
        bases, found = _Bases(shared.bases), _Updates(shared, len(jobs))
        waiting = deque(enumerate(jobs))

        def send(worker: _Worker, slot: int) -> None:
            number, job = waiting.popleft()
            order = (slot, bases.take(job.base), job.request, job.client, job.version)
            worker.send(task, number, order)

        # Workers are given work as they finish it: one core may be slower than another.
        for slot, worker in enumerate(self._workers * _AHEAD):
            if waiting:
                send(worker, slot)
        while busy := [worker for worker in self._workers if worker.busy]:
            ready = wait([worker.pipe for worker in busy])
            for worker in busy:
                if worker.pipe not in ready:
                    continue
                number, (slot, place, *_) = worker.receive()
                found.take(slot, number)
                bases.release(place)
                if waiting:
                    send(worker, slot)
        return found.all()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []


@final
class _SharedMemory:
    """Shared memory of one task: a base model and an update of every job under way."""

    def __init__(self, device_task: DeviceTask, slots: int) -> None:
        example = device_task.model.read()
        self.bases = _shared((slots, len(example)), example.dtype)
        self.deltas = _shared((slots, device_task.model.buffers_from), example.dtype)
        self.buffers = _shared((slots, device_task.model.buffer_count), example.dtype)
        self.losses = _shared((slots,), example.dtype)


def _shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Anonymous memory that forked processes share; there is nothing to clean up."""
    size = torch.empty(0, dtype=dtype).element_size()
    for side in shape:
        size *= side
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)


@final
class _Bases:
    """The base models of the jobs under way, which many have in common."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._places: dict[int, int] = {}
        self._users = [0] * len(memory)

    def take(self, base: torch.Tensor) -> int:
        """Where it is now."""
        place = self._places.get(id(base))
        if place is None:
            place = self._users.index(0)  # there are as many places as jobs under way
            self._places = {key: at for key, at in self._places.items() if at != place}
            self._places[id(base)] = place
            self._memory[place].copy_(base)
        self._users[place] += 1
        return place

    def release(self, place: int) -> None:
        self._users[place] -= 1


@final
class _Updates:
    """What came back, copied out of the shared memory."""

    def __init__(self, shared: _SharedMemory, count: int) -> None:
        self._pairs = [
            (there, there.new_empty((count, *there.shape[1:])))
            for there in (shared.deltas, shared.losses, shared.buffers)
        ]

    def take(self, slot: int, number: int) -> None:
        for there, here in self._pairs:
            here[number] = there[slot]

    def all(self) -> list[Update]:
        deltas, losses, buffers = (here.unbind() for _, here in self._pairs)
        return [
            Update(delta, loss, mine if mine.numel() else None)
            for delta, loss, mine in zip(deltas, losses, buffers, strict=True)
        ]


@final
class _Worker:
    """The parent's end of a worker."""

    def __init__(self, process: multiprocessing.process.BaseProcess, pipe: Connection) -> None:
        self._process = process
        self.pipe = pipe
        self._left: deque[tuple[int, _Order]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._left)

    def send(self, task: TaskName, number: int, order: _Order) -> None:
        self._left.append((number, order))
        try:
            self.pipe.send((task, order))
        except OSError:
            raise self._died() from None

    def receive(self) -> tuple[int, _Order]:
        """Wait until it has done the first of what it was given, and say which that was."""
        try:
            problem = self.pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if problem is not None:
            raise TrainingFailed(f"request {self._request()}: {problem}")
        return self._left.popleft()

    def close(self) -> None:
        self.pipe.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()

    def _died(self) -> TrainingFailed:
        self._process.join(timeout=5)
        return TrainingFailed(
            f"a worker process ended (exit code {self._process.exitcode}) while training request "
            f"{self._request()}"
        )

    def _request(self) -> RequestId:
        """What it is working on."""
        _, (_, _, request, _, _) = self._left[0]
        return request


def _work(
    pipe: Connection,
    parents: Sequence[Connection],
    device_tasks: Mapping[TaskName, DeviceTask],
    seed: int,
    memory: Mapping[TaskName, _SharedMemory],
) -> None:
    for end in parents:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    torch.set_num_threads(1)
    keep_memory()
    trainer = LeanTrainer(device_tasks, seed)
    while True:
        try:
            task, (slot, place, request, client, version) = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # the parent is done, or gone; there is nothing to clean up
        shared = memory[task]
        try:
            (update,) = trainer.train(task, [Job(request, client, shared.bases[place], version)])
            shared.deltas[slot].copy_(update.delta)
            shared.losses[slot].copy_(update.loss)
            if update.buffers is not None:
                shared.buffers[slot].copy_(update.buffers)
            problem: str | None = None
        except Exception as error:
            problem = placed(error)
        try:
            pipe.send(problem)
        except OSError:
            os._exit(0)  # as above


def keep_memory() -> None:
    """Let the C library keep freed memory instead of requesting it again at every local step."""
    if sys.platform == "linux":
        try:
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, the most that it takes
            libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
        except (OSError, AttributeError):  # another C library
            pass
