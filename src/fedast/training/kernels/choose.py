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
from fedast.training.kernels.layers import LayeredNet, is_hooked, layered
from fedast.training.kernels.lstm import CharLSTMNet
from fedast.training.kernels.net import Descent, Net, Precision, Unstackable
from fedast.training.kernels.stacked import Randomness
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
    if not randomness.repeatable:
        say_once(
            f"task {device_task.task.name!r}: its augmentation gives something else when it is "
            "called again with the same seed, so this run cannot be repeated; let it draw with "
            "torch, on the device of the samples and without a generator of its own"
        )
    if by_hand:
        hand = _by_hand(device_task, precision)
        problem = None if hand is None else _unfit(hand, device_task, precision, randomness)
        if hand is not None and problem is None:
            return hand
        if problem is not None:
            say_once(
                f"task {device_task.task.name!r}: the kernels for its model {problem}; "
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


def _unfit(
    hand: Build, device_task: DeviceTask, precision: Precision, randomness: Randomness
) -> str | None:
    """Why a hand-written net cannot be used; None: it can."""
    if not device_task.task.training.client_optimizer.plain:
        return "are for plain SGD only"
    if disagreement(hand, device_task, precision, randomness):
        return "do not agree with autograd here"
    return None


def lean(device_task: DeviceTask) -> LayeredNet | None:
    """One copy of a hand-written net that beats autograd on a CPU: layered nets do, the LSTM does
    not."""
    hand = _by_hand(device_task, "fp32")
    net = None if hand is None else hand(1)
    if hand is None or not isinstance(net, LayeredNet) or device_task.task.augment is not None:
        return None
    return net if _unfit(hand, device_task, "fp32", randomness_of(device_task)) is None else None


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


def _by_hand(device_task: DeviceTask, precision: Precision) -> Build | None:
    """A hand-written net for the task's model, if there is one."""
    model = device_task.model
    module, training = model.module, device_task.task.training
    bare = len(model.read()) == model.parameter_count  # without buffers and frozen parameters
    if not bare or not device_task.usual_loss or not device_task.checked_labels:
        return None
    descent = Descent(training.client_lr, training.weight_decay)
    if type(module) is CharLSTM and not is_hooked(module):
        return lambda copies: CharLSTMNet(module, copies, descent, precision)
    try:
        layered(module, 1, descent, precision)
    except (Unstackable, ImportError):  # the kernels need Triton
        return None
    return lambda copies: layered(module, copies, descent, precision)
