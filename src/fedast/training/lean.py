"""Local training of one client after another on a CPU, with hand-written nets where there are any.

What worker processes train with: one copy of a layered net, without autograd, is faster than
autograd. Other models are left to the serial trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, final

import numpy as np
import torch

from fedast.core.protocol import TaskName
from fedast.core.streams import Stream
from fedast.tasks.task import Indices
from fedast.training.kernels.choose import lean
from fedast.training.kernels.dual import in_dual_form
from fedast.training.kernels.layers import LayeredNet
from fedast.training.kernels.loss import spread
from fedast.training.prepared import one_by_one
from fedast.training.trainer import DeviceTask, Job, SerialTrainer, Update, batches_of

_Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""What ``LayeredNet.step`` takes."""


@final
class LeanTrainer:
    def __init__(self, device_tasks: Mapping[TaskName, DeviceTask], seed: int) -> None:
        self._streams = {name: Stream.of(seed, "train", name) for name in device_tasks}
        self._serial = SerialTrainer(device_tasks, seed)
        self._lean: dict[TaskName, _LeanTask] = {}
        for name, device_task in device_tasks.items():
            net = lean(device_task)
            if net is not None:
                self._lean[name] = _LeanTask(device_task, net)

    def by_hand(self, task: TaskName) -> bool:
        """Whether it is trained without autograd."""
        return task in self._lean

    def limit(self, task: TaskName) -> int:
        return 1

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        if task not in self._lean:
            return self._serial.train(task, jobs)
        return [self._lean[task].train(job, self._streams[task]) for job in jobs]

    def close(self) -> None:
        self._lean.clear()


@final
class _LeanTask:
    def __init__(self, device_task: DeviceTask, net: LayeredNet) -> None:
        self._device_task = device_task
        self._net = net
        self._dual = in_dual_form(net) if one_by_one(device_task.train) else None

    @torch.no_grad()
    def train(self, job: Job, stream: Stream) -> Update:
        """``stream``: the task's."""
        how = self._device_task.task.training
        batches, _ = batches_of(self._device_task, stream, job)
        net, steps = self._net, self._gathered(batches)
        if self._dual is not None:
            own, places = np.unique(batches, return_inverse=True)
            if self._dual[1].pays(len(own), *batches.shape):
                net, steps = self._dual[0], self._placed(own, places.reshape(batches.shape))
        net.load(job.base[None])
        total = job.base.new_zeros(1)
        for batch in steps:
            total += net.step(*batch)
        delta = torch.empty_like(job.base)
        before, moved = net.layout.split(job.base[None]), net.layout.split(delta[None])
        for one, after, out in zip(before, net.parts(), moved, strict=True):
            torch.sub(one, after, out=out)
        return Update(delta.div_(how.local_steps * how.client_lr), total[0] / how.local_steps)

    def _gathered(self, batches: Indices) -> Iterator[_Batch]:
        for batch in torch.from_numpy(batches):
            inputs, labels = self._device_task.train.batch(batch)
            yield inputs[None], labels[None], None

    def _placed(self, own: Indices, places: Indices) -> Iterator[_Batch]:
        """With places among the client's own samples as inputs."""
        assert self._dual is not None
        net, first = self._dual
        inputs, labels = self._device_task.train.batch(torch.from_numpy(own))
        first.begin(inputs.flatten(1))
        at, classes = torch.from_numpy(places), net.layout.shapes[-1].numel()  # the last bias
        wanted = labels[at][:, None]
        yield from zip(at, wanted, spread(wanted, classes, inputs.dtype), strict=True)
