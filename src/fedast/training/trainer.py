"""Local training, the slow and obvious way: one client after another, one step after another.

This is the reference that faster trainers are checked against, and it works
with any ``nn.Module``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
import torch

from fedast.core.protocol import ClientId, RequestId, TaskName, Version
from fedast.core.streams import Stream
from fedast.parts.blame import place
from fedast.tasks.dataset import Arrays, Dataset, Windows
from fedast.tasks.metrics import RMSE, Accuracy, cross_entropy
from fedast.tasks.task import BadTask, Indices, OutOfMemory, Task
from fedast.training.batches import draw_parts
from fedast.training.flat import FlatModel
from fedast.training.randomness import seeded
from fedast.training.stepping import Stepper, rates

Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The mini-batches of a local training, drawn before it begins."""

    batches: Indices
    stream: Stream
    """What everything else that is random comes from."""


@dataclass(frozen=True, slots=True)
class Job:
    """One LocalTrain: all that the value of its update depends on."""

    request: RequestId
    client: ClientId
    base: torch.Tensor
    version: Version = 0
    """The round of the base model; schedules may go by it."""
    drawn: Drawn | None = None
    """Its mini-batches, if somebody had the time to draw them."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a local training gives: the mean stochastic gradient (Delta) of the parameters and the
    mean training loss."""

    delta: torch.Tensor
    loss: torch.Tensor
    buffers: torch.Tensor | None = None
    """The values of the model's floating-point buffers after the training; None if it has none."""
    saturated: torch.Tensor | None = None
    """Whether (1 or 0) a value was too large for fp16 and was clipped; None unless trained in
    fp16."""


class Trainer(Protocol):
    def limit(self, task: TaskName) -> int:
        """How many jobs of a task it takes at once; 1 if there is nothing to gain from more."""
        ...

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        """On a GPU, what it asks for goes to the current stream, which is not always the same one;
        each call's work comes after that of the last."""
        ...

    def close(self) -> None:
        """Release what it holds, such as worker processes."""
        ...


@runtime_checkable
class AheadTrainer(Trainer, Protocol):
    """A trainer that goes on training while its caller does other things."""

    def ahead(self, task: TaskName) -> bool:
        """Whether it does so for this task. If not, the rest is of no use for it."""
        ...

    def plan(self, jobs: Sequence[tuple[TaskName, Job]]) -> None:
        """All the jobs that ``train`` may still be called with, to begin with some. What is not
        among them any more is forgotten."""
        ...

    def bound(self, task: TaskName) -> list[RequestId]:
        """Requests whose values depend on what they are being trained with: these must be trained
        before the state of a run is saved."""
        ...

    def spread(
        self,
        task: TaskName,
        model: torch.Tensor,
        function: Callable[[DeviceTask, torch.Tensor, Any, dict[Any, Any]], Any],
        pieces: Sequence[Any],
    ) -> list[Any]:
        """What a function of a task, a model, a piece of work, and what it keeps for later gives
        for each piece; the pieces are done where clients are trained."""
        ...


def batches_of(device_task: DeviceTask, stream: Stream, job: Job) -> tuple[Indices, Stream]:
    """A job's mini-batches, and the stream that everything random in it comes from."""
    parts, mine = parts_of(device_task, stream, job)
    return np.concatenate(list(parts)), mine


def parts_of(device_task: DeviceTask, stream: Stream, job: Job) -> tuple[Iterator[Indices], Stream]:
    """The same, with mini-batches in parts that are drawn when they are asked for."""
    if job.drawn is not None:
        return iter([job.drawn.batches]), job.drawn.stream
    how = device_task.task.training
    mine = stream.child(job.client, job.request)
    parts = draw_parts(
        device_task.task.partition[job.client],
        how.batch_size,
        how.local_steps,
        how.sampling,
        np.random.default_rng(mine.bits()),
    )
    return parts, mine


@dataclass(frozen=True, slots=True)
class DeviceTask:
    """A task on the device that trains it: its data moved there, and one working copy of its model.

    It exists because a ``Task`` is a description that knows no device and builds no module.
    """

    task: Task
    model: FlatModel
    train: Dataset
    test: Dataset
    loss: Loss
    draws: bool = True
    """Whether a training pass, augmentation included, draws random numbers."""

    @classmethod
    def build(
        cls,
        task: Task,
        seed: int,
        device: torch.device,
        moved: dict[int, Dataset] | None = None,
    ) -> DeviceTask:
        """Build a task's model and move its data; the model depends on the run's seed and the
        task's name.

        ``moved`` holds what is on the device already, for tasks that share data.
        """
        with seeded(Stream.of(seed, "init", task.name), torch.device("cpu"), plain_dropout=False):
            try:
                module = task.model()
            except Exception as error:  # whatever the user's own code raises
                raise BadTask(
                    f"task {task.name!r}: its model cannot be built: {error}{place(error)}"
                ) from error
        if not isinstance(module, torch.nn.Module):
            raise BadTask(
                f"task {task.name!r}: model must build a torch.nn.Module, "
                f"it gave {type(module).__name__}"
            )
        moved = {} if moved is None else moved
        for dataset in (task.train, task.test):
            if id(dataset) not in moved:
                moved[id(dataset)] = dataset.to(device)
        device_task = cls(
            task=task,
            model=FlatModel(module, device),
            train=moved[id(task.train)],
            test=moved[id(task.test)],
            loss=task.loss or task.metric.default_loss(),
        )
        return replace(device_task, draws=device_task.try_out())

    @property
    def usual_loss(self) -> bool:
        """Whether it is trained with cross-entropy of class numbers."""
        return self.task.loss is None and self.task.metric.default_loss() is cross_entropy

    @property
    def checked_labels(self) -> bool:
        """Whether each label is known to be a class: a dataset of somebody's own may have others,
        which torch's cross-entropy leaves out."""
        return isinstance(self.train, Arrays | Windows)

    def try_out(self) -> bool:
        """Check before the run that model, data and loss fit together.

        Two samples of every part go through the model, the loss and, for
        training, its gradient; the model is left unchanged. Whether training draws random numbers.
        """
        draws = False
        name = f"task {self.task.name!r}"
        if not self.model.parameters:
            raise BadTask(f"{name}: its model has no parameters to train")
        device = self.model.parameters[0].device
        parts = {"train": self.train, "test": self.test}
        if self.task.final_test is not None:
            parts["final_test"] = self.task.final_test.to(device)
        state = {name: value.clone() for name, value in self.model.module.state_dict().items()}
        for part, dataset in parts.items():
            self.model.module.train(part == "train")
            try:
                inputs, labels = dataset.batch(torch.arange(min(2, len(dataset)), device=device))
                with seeded(Stream(0), device) as generator:
                    before = generator.get_state()
                    if part == "train" and self.task.augment is not None:
                        inputs = self.task.augment(inputs)
                    outputs = self.model.module(inputs)
                    loss = self.loss(outputs, labels)
                    if part == "train":
                        torch.autograd.grad(loss, self.model.parameters, allow_unused=True)
                        draws = not torch.equal(before, generator.get_state())
            except torch.OutOfMemoryError as error:
                raise OutOfMemory(
                    f"{name}: out of memory before training began; free some, or set "
                    f'compute.device = "cpu" ({error})'
                ) from None
            except Exception as error:  # whatever the user's own code raises
                said = " ".join(str(error).split())
                raise BadTask(
                    f"{name}: model, loss and {part} data do not fit: {said}{place(error)}"
                ) from error
            if (
                isinstance(self.task.metric, Accuracy)
                and labels.shape != outputs.argmax(dim=1).shape
            ):
                raise BadTask(
                    f"{name}: accuracy needs one class number per sample, {part} labels have shape "
                    f"{tuple(labels.shape)} for outputs of shape {tuple(outputs.shape)}"
                )
            if isinstance(self.task.metric, RMSE) and labels.numel() != outputs.numel():
                raise BadTask(
                    f"{name}: rmse needs a label per output, {part} labels have shape "
                    f"{tuple(labels.shape)} for outputs of shape {tuple(outputs.shape)}"
                )
            self._check_labels(f"{name}: {part}", dataset, outputs.shape)
        self.model.module.load_state_dict(state)
        return draws

    def _check_labels(self, where: str, dataset: Dataset, shape: Sequence[int]) -> None:
        """Class numbers must be classes of the model, where the loss takes class numbers."""
        if (
            not self.usual_loss
            or not isinstance(dataset, Arrays)
            or dataset.labels.is_floating_point()
        ):
            return
        low, high = int(dataset.labels.min()), int(dataset.labels.max())
        if low < 0 or high >= shape[1]:
            wrong = low if low < 0 else high
            raise BadTask(f"{where} has label {wrong}, outside the model's {shape[1]} classes")


@final
class SerialTrainer:
    def __init__(self, device_tasks: Mapping[TaskName, DeviceTask], seed: int) -> None:
        self._device_tasks = device_tasks
        self._streams = {name: Stream.of(seed, "train", name) for name in device_tasks}
        self._steppers: dict[TaskName, Stepper] = {}

    def limit(self, task: TaskName) -> int:
        return 1

    def train(self, task: TaskName, jobs: Sequence[Job]) -> list[Update]:
        return [self._train(task, job) for job in jobs]

    def close(self) -> None:
        pass

    def _train(self, task: TaskName, job: Job) -> Update:
        """tau steps from ``job.base``; Delta = (before - after) / (tau eta_c)."""
        device_task = self._device_tasks[task]
        how, model = device_task.task.training, device_task.model
        batches, stream = batches_of(device_task, self._streams[task], job)
        model.write(job.base)
        model.module.train()
        if task not in self._steppers:
            self._steppers[task] = Stepper(how, model.parameters, stacked=False)
        stepper = self._steppers[task]
        stepper.begin()
        total = job.base.new_zeros(())
        draws = device_task.draws  # if not, there is nothing to be gained but overhead
        with seeded(stream, job.base.device, plain_dropout=draws):
            on_device = torch.from_numpy(batches).to(job.base.device)
            for batch, lr in zip(on_device, rates(how, job.version), strict=True):
                inputs, labels = device_task.train.batch(batch)
                if device_task.task.augment is not None:
                    inputs = device_task.task.augment(inputs)
                loss = device_task.loss(model.module(inputs), labels)
                gradients = torch.autograd.grad(loss, model.parameters, allow_unused=True)
                stepper.step(gradients, lr)  # None: the loss does not depend on it
                total += loss.detach()
        after, end = model.read(), model.buffers_from
        delta = (job.base[:end] - after[:end]) / (how.local_steps * how.client_lr)
        buffers = after[end:].clone() if model.buffer_count else None
        return Update(delta, total / how.local_steps, buffers)
