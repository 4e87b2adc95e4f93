"""The outputs of a task's model for inputs, for evaluation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias, final

import torch

from fedast.tasks.models import CharLSTM
from fedast.training.kernels import layers, lstm
from fedast.training.kernels.agreement import tolerance
from fedast.training.kernels.layers import is_hooked, layered
from fedast.training.kernels.lstm import CharLSTMNet
from fedast.training.kernels.net import Descent, Precision, Unstackable
from fedast.training.trainer import DeviceTask

_log = logging.getLogger(__name__)

_HALF = ("fp16", "bf16")


class Inference(Protocol):
    """A model that can be given parameters and asked for outputs."""

    def load(self, flat: torch.Tensor) -> None:
        """Use these parameters from now on."""
        ...

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor: ...


class Scoring(Protocol):
    """A hand-written net that can also give outputs."""

    @property
    def takes(self) -> torch.dtype | None: ...

    def load(self, flat: torch.Tensor) -> None: ...

    def scores(self, inputs: torch.Tensor) -> torch.Tensor: ...


MakeInference: TypeAlias = Callable[[DeviceTask], Inference]


@final
class ModuleInference:
    """The task's module itself."""

    def __init__(self, device_task: DeviceTask) -> None:
        self._model = device_task.model

    def load(self, flat: torch.Tensor) -> None:
        self._model.write(flat)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self._model.module.eval()(inputs)
        return outputs


@final
class KernelInference:
    """One copy of a hand-written net, with the kernels that train it."""

    def __init__(self, net: Scoring) -> None:
        self._net = net
        self.takes = net.takes

    def load(self, flat: torch.Tensor) -> None:
        self._net.load(flat[None])

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._net.scores(inputs[None])[0]


def inference(device_task: DeviceTask, precision: Precision = "fp32") -> Inference:
    """The fastest implementation that agrees with the module."""
    plain = ModuleInference(device_task)
    net = _with_kernels(device_task, precision)
    if net is None:
        return plain
    fast, base = KernelInference(net), device_task.model.read()
    inputs, _ = device_task.test.batch(
        torch.arange(min(4, len(device_task.test)), device=base.device)
    )
    with torch.no_grad():
        wanted = plain(inputs)
    try:
        fast.load(base)
        off = float((fast(inputs.clone()) - wanted).norm() / (wanted.norm() + 1e-12))
    except Exception as error:  # for instance a kernel too large for this device
        _log.info("task %r: evaluated with its module: %s", device_task.task.name, error)
        return plain
    return fast if off <= tolerance(precision) else plain


def _with_kernels(device_task: DeviceTask, precision: Precision) -> Scoring | None:
    module = device_task.model.module
    if len(device_task.model.read()) != device_task.model.parameter_count:
        return None  # buffers or frozen parameters
    still = Descent(0.0, 0.0)
    try:
        if type(module) is CharLSTM and not is_hooked(module):
            known = lstm.with_kernels(module) and lstm.usable_precision(module, precision) in _HALF
            return CharLSTMNet(module, 1, still, precision) if known else None
        known = bool(layers.with_kernels(module))
        return layered(module, 1, still, precision) if known else None
    except (Unstackable, ImportError):  # the kernels need Triton
        return None
