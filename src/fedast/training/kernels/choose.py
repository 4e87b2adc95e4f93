"""Which stacked net a task gets: a hand-written one if there is one, the general one, or none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import TypeAlias

import torch

from fedast.tasks.client_optimizers import SGD
from fedast.tasks.models import CharLSTM
from fedast.tasks.task import Training
from fedast.training.kernels.agreement import (
    DIFFERENT,
    disagreement,
    randomness_of,
    used_parameters,
)
from fedast.training.kernels.general import GeneralNet
from fedast.training.kernels.layers import is_hooked, layered
from fedast.training.kernels.lstm import CharLSTMNet
from fedast.training.kernels.net import Descent, Net, Precision, Unstackable
from fedast.training.stepping import Stepper
from fedast.training.trainer import DeviceTask

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
    randomness = randomness_of(device_task)
    bare = len(device_task.model.read()) == device_task.model.parameter_count
    if by_hand and bare and device_task.usual_loss:
        descent = Descent(training.client_lr, training.weight_decay)
        hand = _by_hand(module, descent, precision)
        plain = training.client_optimizer.plain
        if (
            hand is not None
            and plain
            and not disagreement(hand, device_task, precision, randomness)
        ):
            return hand
        if hand is not None:
            say_once(
                f"task {device_task.task.name!r}: the kernels for its model "
                f"{'do not agree with autograd here' if plain else 'are for plain SGD only'}; "
                "in batches it is trained with torch.func instead, which is slower"
            )
    used = used_parameters(device_task)

    def general(how: Training, copies: int) -> Net:
        return GeneralNet(
            module, device_task.loss, copies, how, used,
            draws=randomness.draws, precision=precision,
        )  # fmt: skip

    # Gradients are compared by a step of plain SGD: those of other optimizers may be large where
    # a gradient is all rounding.
    simple = partial(general, _with_plain_sgd(training))
    problem = disagreement(simple, device_task, precision, randomness)
    if problem == DIFFERENT and precision != "fp32":
        # Batch normalisation of two samples makes much of little: whether it is only rounding shows
        # without rounding.
        problem = disagreement(simple, device_task, "fp32", randomness, exact=True)
    if problem is not None:
        raise Unstackable(problem)
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
