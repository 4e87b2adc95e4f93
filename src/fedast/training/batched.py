"""Local training of many clients at once, as stacked copies of the model.

Jobs of one task run side by side: parameters, mini-batches and losses have a
client axis, data is gathered by index on its device, and on a GPU one captured
graph does a whole local step of all clients without involving the host.

Batch sizes are rounded up to few values, so that there are few graphs; the
places left over repeat the last job, and their results are discarded. A batch
that does not fit into memory is split, and later ones are as small.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, final

import numpy as np
import torch

from fedast.core.protocol import TaskName
from fedast.core.streams import Stream
from fedast.tasks.dataset import Dataset, mapped
from fedast.tasks.task import Indices, OutOfMemory
from fedast.training.graphs import Graphs
from fedast.training.kernels.agreement import randomness_of
from fedast.training.kernels.choose import Build, choose, say_once
from fedast.training.kernels.net import Net, Precision, Unstackable
from fedast.training.kernels.stacked import Randomness, step
from fedast.training.prepared import prepared
from fedast.training.randomness import draw_seed, host_state
from fedast.training.stepping import rates
from fedast.training.trainer import DeviceTask, Job, SerialTrainer, Update, parts_of

_log = logging.getLogger(__name__)

MOST = 256
"""The most clients in one batch."""


Ready: TypeAlias = dict[tuple[int, torch.dtype | None], Dataset]
"""Datasets by identity and type, as nets take them; tasks may share data."""


def padded(size: int) -> int:
    """The next of 1, 2, 4, 8, then steps of an eighth of the power of two below, at least 8."""
    if size <= 8:
        return 1 << (size - 1).bit_length()
    step = max(8, 1 << (size.bit_length() - 3))
    return -(-size // step) * step


@final
class BatchedTrainer:
    def __init__(
        self,
        device_tasks: Mapping[TaskName, DeviceTask],
        seed: int,
        *,
        most: int | None = None,
        precision: Precision = "fp32",
    ) -> None:
        self._streams = {name: Stream.of(seed, "train", name) for name in device_tasks}
        self._device_tasks = device_tasks
        self._serial = SerialTrainer(device_tasks, seed)
        self._stacked: dict[TaskName, _StackedTask] = {}
        ready: Ready = {}
        graphs = Graphs()
        self.alone: dict[TaskName, str] = {}
        """Tasks whose clients are trained one at a time, and why."""
        for name, device_task in device_tasks.items():
            try:
                self._stacked[name] = _StackedTask(
                    device_task, choose(device_task, precision), most or MOST, ready, graphs
                )
            except Unstackable as problem:
                self.alone[name] = str(problem)
                say_once(f"task {name!r} is trained client by client: {problem}")

    def limit(self, task: TaskName) -> int:
        return self._stacked[task].most if task in self._stacked else 1

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        if task not in self._stacked:
            return self._serial.train(task, jobs)
        device_task = self._device_tasks[task]
        if not _same_frozen(device_task, jobs):  # they are kept once for all copies
            return self._serial.train(task, jobs)
        return self._stacked[task].train(jobs, self._streams[task])

    def close(self) -> None:
        self._stacked.clear()


def _same_frozen(device_task: DeviceTask, jobs: Sequence[Job]) -> bool:
    model = device_task.model
    span = slice(model.parameter_count, model.buffers_from)
    first = jobs[0].base
    return span.start == span.stop or all(
        job.base is first or torch.equal(job.base[span], first[span]) for job in jobs
    )


@final
class _StackedTask:
    """A task whose clients are trained as stacked copies, with an engine per padded size."""

    def __init__(
        self, device_task: DeviceTask, build: Build, most: int, ready: Ready, graphs: Graphs
    ) -> None:
        self._device_task = device_task
        self._build = build
        self._randomness = randomness_of(device_task)
        self._engines: dict[int, _Engine] = {}
        self._ready = ready
        self._graphs = graphs
        self.most = most

    def train(self, jobs: Sequence[Job], stream: Stream) -> list[Update]:
        """``stream``: the task's, which those of its requests come from."""
        if len(jobs) > self.most:
            return self.train(jobs[: self.most], stream) + self.train(jobs[self.most :], stream)
        size = padded(len(jobs))
        try:
            if size not in self._engines:
                self._engines[size] = self._graphs.with_room(partial(self._engine, size))
            return self._engines[size].train(jobs, stream)
        except torch.OutOfMemoryError:
            pass  # and nothing of the engine that failed is held any more
        self._engines.clear()
        torch.cuda.empty_cache()
        if len(jobs) == 1:
            raise OutOfMemory(
                f"task {self._device_task.task.name!r}: not even one client's training fits into "
                'the device\'s memory; lower its batch_size, or set compute.device = "cpu"'
            )
        self.most = max(1, len(jobs) // 2)
        return self.train(jobs, stream)

    def _engine(self, size: int) -> _Engine:
        net = self._build(size)
        return _Engine(
            self._device_task, self._samples(net), net, size, self._randomness, self._graphs
        )

    def _samples(self, net: Net) -> Dataset:
        """The training samples as a net takes them."""
        train = self._device_task.train
        takes = net.takes if self._randomness.augment is None else None
        if (id(train), takes) not in self._ready:
            self._ready[id(train), takes] = prepared(train, takes)
        return self._ready[id(train), takes]


@final
class _Engine:
    """A net of a fixed number of copies, and on a GPU the graph of its step."""

    def __init__(
        self,
        device_task: DeviceTask,
        train: Dataset,
        net: Net,
        size: int,
        randomness: Randomness,
        graphs: Graphs,
    ) -> None:
        """``train``: the task's training samples, as the net takes them."""
        how = device_task.task.training
        self._device_task = device_task
        self._train = train
        self._net = net
        self._size = size
        base = device_task.model.read()
        self._scale = how.local_steps * how.client_lr
        self._batches = torch.zeros(
            how.local_steps, size, how.batch_size, dtype=torch.int64, device=base.device
        )
        self._drawn = torch.zeros_like(self._batches, device="cpu", pin_memory=base.is_cuda)
        self._host = self._drawn.numpy()
        self._copied = torch.cuda.Event() if base.is_cuda else None  # type: ignore[no-untyped-call]
        self._at = torch.zeros(1, dtype=torch.int64, device=base.device)
        self._losses = torch.zeros(size, dtype=base.dtype, device=base.device)
        self._rates = base.new_zeros((how.local_steps, size)) if net.lr is not None else None
        self._randomness = randomness
        self._draws = randomness.generators(size, base.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        if base.is_cuda and randomness.repeatable:
            self._net.load(base.expand(size, -1))
            self._graph = self._capture(graphs)

    def train(self, jobs: Sequence[Job], stream: Stream) -> list[Update]:
        places = [min(place, len(jobs) - 1) for place in range(self._size)]
        base = torch.stack([jobs[place].base for place in places])
        self._net.load(base)  # a GPU does that while mini-batches are drawn
        drawn = [parts_of(self._device_task, stream, job) for job in jobs]
        if self._rates is not None:
            how = self._device_task.task.training
            by_place = [rates(how, jobs[place].version) for place in places]
            self._rates.copy_(torch.tensor(by_place, dtype=self._rates.dtype).T)
        if self._draws is not None:
            seeds = [draw_seed(mine) for _, mine in drawn]
            self._draws.begin([seeds[place] for place in places])
        self._at.zero_()
        self._losses.zero_()
        if self._copied is not None:
            self._copied.synchronize()  # copies of the last call may still be in progress
        begun = 0
        for batches in _together([parts for parts, _ in drawn]):
            self._run(begun, batches)
            begun += len(batches)
        after, end = self._net.read(), self._device_task.model.buffers_from
        moved = (base[:, :end] - after[:, :end])[: len(jobs)].unbind()
        deltas = torch._foreach_div(moved, self._scale)  # each in memory of its own
        losses = (self._losses / begun).unbind()
        marks = self._net.saturated
        saturated = [None] * len(jobs) if marks is None else marks.clone().unbind()
        has_buffers = bool(self._device_task.model.buffer_count)
        buffers = after[:, end:].clone().unbind() if has_buffers else [None] * len(jobs)
        return [Update(deltas[i], losses[i], buffers[i], saturated[i]) for i in range(len(jobs))]

    def _run(self, begun: int, batches: np.ndarray) -> None:
        """Some local steps, after those that have begun already."""
        rows, clients = slice(begun, begun + len(batches)), batches.shape[1]
        self._host[rows, :clients] = batches
        self._host[rows, clients:] = batches[:, -1:]
        self._batches[rows].copy_(self._drawn[rows], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        for number in range(rows.start, rows.stop):
            if self._graph is not None:
                self._graph.replay()
            else:
                self._step(number)

    def _step(self, number: int | None = None) -> None:
        """One local step of all copies; the next one by the device's own count, which a graph can
        go by, unless it is given."""
        at: torch.Tensor | int = self._at if number is None else number
        indices = _row(self._batches, at)
        inputs, labels = mapped(
            lambda part: part.view(*indices.shape, *part.shape[1:]),
            self._train.batch(indices.flatten()),
        )
        if self._rates is not None and self._net.lr is not None:
            self._net.lr.copy_(_row(self._rates, at))
        self._losses += step(self._net, inputs, labels, self._randomness, self._draws)
        if number is None:
            self._at += 1

    def _capture(self, graphs: Graphs) -> torch.cuda.CUDAGraph | None:
        before = host_state()
        with graphs.beside():
            self._step()  # lazy initialisations must not be captured
            self._at.zero_()
        name = self._device_task.task.name
        if host_state() != before:
            _log.info("task %r: no graph: its training draws random numbers on the host", name)
            return None
        graph = torch.cuda.CUDAGraph()
        if self._draws is not None:
            self._draws.register(graph)
        try:
            with graphs.capture(graph):
                self._step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:  # the user's code needs the host: run it step by step
            torch.cuda.synchronize()
            _log.info("task %r: no graph: %s", name, problem)
            if self._draws is not None:  # others, which do not belong to a graph
                self._draws = self._randomness.generators(self._size, self._at.device)
            return None
        return graph


def _together(drawn: Sequence[Iterator[Indices]]) -> Iterator[np.ndarray]:
    """Mini-batches of several clients as (step, client, sample), in two parts: the first is trained
    on while the rest is drawn."""
    first = [next(batches) for batches in drawn]
    ready = min(map(len, first))
    yield np.stack([batches[:ready] for batches in first], axis=1)
    rest = [np.concatenate([have[ready:], *more]) for have, more in zip(first, drawn, strict=True)]
    if len(rest[0]):
        yield np.stack(rest, axis=1)


def _row(table: torch.Tensor, at: torch.Tensor | int) -> torch.Tensor:
    return table[at] if isinstance(at, int) else table.index_select(0, at)[0]
