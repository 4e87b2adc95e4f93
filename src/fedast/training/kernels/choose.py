"""Which stacked net a task gets: a hand-written one if there is one, the general one, or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TypeAlias

import torch

from fedast.core.streams import Stream
from fedast.tasks.client_optimizers import SGD
from fedast.tasks.models import CharLSTM
from fedast.tasks.task import OutOfMemory, Training
from fedast.training.kernels.general import GeneralNet
from fedast.training.kernels.layers import is_hooked, layered
from fedast.training.kernels.lstm import CharLSTMNet
from fedast.training.kernels.net import Descent, Layout, Net, Precision, Unstackable
from fedast.training.stepping import Stepper
from fedast.training.trainer import DeviceTask, seeded

_log = logging.getLogger(__name__)


@cache
def say_once(what: str) -> None:
    """Warn of something that is decided anew for every trainer of a process."""
    _log.warning("%s", what)


Build: TypeAlias = Callable[[int], Net]
"""Makes a net of a number of copies."""


def choose(
    device_task: DeviceTask, precision: Precision = "fp32", *, by_hand: bool = True
) -> Build:
    """How to make stacked copies of a task's model; raises ``Unstackable`` if it cannot be done.

    The choice has been tried out: two copies, and one alone, took a step and
    agreed with autograd.
    """
    module, training = device_task.model.module, device_task.task.training
    if device_task.task.augment is not None:
        raise Unstackable("its training inputs are augmented at random")
    if len(device_task.model.read()) != device_task.model.parameter_count:
        raise Unstackable("its model has buffers or frozen parameters")
    if _draws(device_task):
        raise Unstackable("its model draws random numbers")
    if by_hand and device_task.usual_loss:
        descent = Descent(training.client_lr, training.weight_decay)
        hand = _by_hand(module, descent, precision)
        plain = training.client_optimizer.plain
        if hand is not None and plain and _agrees(hand, device_task, precision):
            return hand
        if hand is not None:
            say_once(
                f"task {device_task.task.name!r}: the kernels for its model "
                f"{'do not agree with autograd here' if plain else 'are for plain SGD only'}; "
                "in batches it is trained with torch.func instead, which is slower"
            )
    used = _used(device_task)

    def general(how: Training, copies: int) -> Net:
        return GeneralNet(module, device_task.loss, copies, how, used)

    # Gradients are compared by a step of plain SGD: those of other optimizers may be large where
    # a gradient is all rounding.
    if not _agrees(partial(general, _with_plain_sgd(training)), device_task, precision):
        raise Unstackable("stacked copies do not train as one copy alone does")
    if not _by_entry(training):
        name = training.client_optimizer.name
        raise Unstackable(f"its client optimizer {name} does not step every entry by itself")
    return partial(general, training)


def _with_plain_sgd(training: Training) -> Training:
    return training.model_copy(update={"client_optimizer": SGD()})


def _by_entry(how: Training) -> bool:
    """Whether an optimizer steps two stacked clients as it steps each alone."""
    if type(how.client_optimizer).__module__ == SGD.__module__:
        return True  # fedast's own do
    draws = torch.Generator().manual_seed(0)
    start, *found = torch.randn(4, 2, 5, 3, generator=draws, dtype=torch.float64)
    steady = how.client_optimizer.schedule.use == "constant"

    def moved(clients: slice) -> torch.Tensor:
        parameter: torch.Tensor = start[clients].clone()
        stepper = Stepper(how, [parameter], stacked=True)
        stepper.begin()
        for gradient in found:
            rates = parameter.new_full((len(parameter),), how.client_lr)
            stepper.step([gradient[clients]], how.client_lr if steady else rates)
        return parameter

    try:
        apart = torch.cat([moved(slice(0, 1)), moved(slice(1, 2))])
        return torch.allclose(moved(slice(0, 2)), apart, rtol=1e-9, atol=1e-12)
    except Exception as error:  # whatever a user's own optimizer raises
        _log.info("client optimizer %s: %s", how.client_optimizer.name, error)
        return False


def is_lean(device_task: DeviceTask) -> bool:
    """Whether one hand-written copy beats autograd on a CPU: layered nets do, the LSTM does not."""
    task = device_task.task
    plain = task.training.client_optimizer.plain
    if task.augment is not None or not device_task.usual_loss or not plain:
        return False
    try:
        layered(device_task.model.module, 1, Descent(0.0, 0.0))
    except Unstackable:
        return False
    return True


def _by_hand(module: torch.nn.Module, descent: Descent, precision: Precision) -> Build | None:
    if type(module) is CharLSTM and not is_hooked(module):
        return lambda copies: CharLSTMNet(module, copies, descent, precision)
    try:
        layered(module, 1, descent, precision)
    except (Unstackable, ImportError):  # the kernels need Triton
        return None
    return lambda copies: layered(module, copies, descent, precision)


def _draws(device_task: DeviceTask) -> bool:
    """Whether a training pass draws from torch's generator."""
    device = device_task.model.parameters[0].device
    with seeded(Stream(0), device) as generator:
        before = generator.get_state()
        _loss(device_task, *_first_samples(device_task, 2))
        return not torch.equal(before, generator.get_state())


def _first_samples(device_task: DeviceTask, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    device = device_task.model.parameters[0].device
    return device_task.train.batch(torch.arange(count, device=device) % len(device_task.train))


def _loss(device_task: DeviceTask, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    device_task.model.module.train()
    return device_task.loss(device_task.model.module(inputs), labels)


def _used(device_task: DeviceTask) -> tuple[bool, ...]:
    loss = _loss(device_task, *_first_samples(device_task, 2))
    found = torch.autograd.grad(loss, device_task.model.parameters, allow_unused=True)
    return tuple(gradient is not None for gradient in found)


def _agrees(build: Build, device_task: DeviceTask, precision: Precision) -> bool:
    """Whether two copies on different samples, and one alone, each take autograd's step."""
    inputs, labels = _first_samples(device_task, 4)
    base = device_task.model.read()
    how = device_task.task.training
    expected = []
    for part in (slice(0, 2), slice(2, 4)):
        with _exact():
            loss = _loss(device_task, inputs[part], labels[part])
            found = torch.autograd.grad(loss, device_task.model.parameters, allow_unused=True)
        layout = Layout.of(device_task.model.module)
        pieces = layout.split(base[None])
        moved = [
            piece[0] if g is None else piece[0] - how.client_lr * (g + how.weight_decay * piece[0])
            for piece, g in zip(pieces, found, strict=True)
        ]
        expected.append(torch.cat([piece.reshape(-1) for piece in moved]))
    try:
        net = build(2)
        net.load(base.expand(2, -1))
        net.step(
            torch.stack([inputs[:2], inputs[2:]]).clone(), torch.stack([labels[:2], labels[2:]])
        )
        moved_by = net.read() - base
        alone = build(1)  # which may use other code
        alone.load(base[None])
        alone.step(inputs[None, :2].clone(), labels[None, :2])
        moved_by = torch.cat([moved_by, alone.read() - base])
    except torch.OutOfMemoryError as error:  # this says nothing about the net
        raise OutOfMemory(f"task {device_task.task.name!r}: out of memory ({error})") from None
    except Exception as error:  # whatever a module that cannot be mapped raises
        _log.info("task %r: stacked copies: %s", device_task.task.name, error)
        return False
    wanted = torch.stack([*expected, expected[0]]) - base
    off = float((moved_by - wanted).norm() / (wanted.norm() + 1e-12))
    _log.info("task %r: stacked copies are off by %.1e", device_task.task.name, off)
    if base.dtype == torch.float64:
        return off <= 1e-6
    return off <= tolerance(precision if base.is_cuda else "fp32")


@contextmanager
def _exact() -> Iterator[None]:
    """Without TF32: the reference must not round as the copies do. On two samples, one ReLU or
    maximum that flips is a tenth of the gradient, and a correct net would be refused."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def tolerance(precision: Precision) -> float:
    """The relative error that rounding alone may cause; a wrong net is off by about 1."""
    return {"fp32": 1e-2, "tf32": 0.1, "fp16": 0.1, "bf16": 0.3}[precision]
