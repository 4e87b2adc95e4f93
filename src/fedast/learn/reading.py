"""A task's model as it is read, to be measured: its outputs for inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias, final

import torch

from fedast.learn.models import CharLSTM
from fedast.learn.stacked import layers, lstm
from fedast.learn.stacked.choose import tolerance
from fedast.learn.stacked.layers import is_hooked, layered
from fedast.learn.stacked.lstm import CharLSTMNet
from fedast.learn.stacked.net import Descent, Precision, Unstackable
from fedast.learn.trainer import Workbench

_log = logging.getLogger(__name__)

_HALF = ("fp16", "bf16")


class Reader(Protocol):
    def load(self, flat: torch.Tensor) -> None:
        """Take these parameters."""
        ...

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor: ...


class Scoring(Protocol):
    """A net by hand that can be asked."""

    def load(self, flat: torch.Tensor) -> None: ...

    def scores(self, inputs: torch.Tensor) -> torch.Tensor: ...


MakeReader: TypeAlias = Callable[[Workbench], Reader]


@final
class ModuleReader:
    """The module itself, on the bench."""

    def __init__(self, bench: Workbench) -> None:
        self._model = bench.model

    def load(self, flat: torch.Tensor) -> None:
        self._model.write(flat)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self._model.module.eval()(inputs)
        return outputs


@final
class KernelReader:
    """One copy of a net by hand, with the kernels that it is trained with."""

    def __init__(self, net: Scoring) -> None:
        self._net = net

    def load(self, flat: torch.Tensor) -> None:
        self._net.load(flat[None])

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._net.scores(inputs[None])[0]


def reader(bench: Workbench, precision: Precision = "fp32") -> Reader:
    """The fastest way there is, which says the same as the module."""
    plain = ModuleReader(bench)
    net = _with_kernels(bench, precision)
    if net is None:
        return plain
    fast, base = KernelReader(net), bench.model.read()
    inputs, _ = bench.test.batch(torch.arange(min(4, len(bench.test)), device=base.device))
    with torch.no_grad():
        wanted = plain(inputs)
    try:
        fast.load(base)
        off = float((fast(inputs.clone()) - wanted).norm() / (wanted.norm() + 1e-12))
    except Exception as error:  # a kernel that this device has no room for, say
        _log.info("task %r: read by its module: %s", bench.task.name, error)
        return plain
    return fast if off <= tolerance(precision) else plain


def _with_kernels(bench: Workbench, precision: Precision) -> Scoring | None:
    module = bench.model.module
    if len(bench.model.read()) != bench.model.parameter_count:
        return None  # buffers or frozen parameters
    still = Descent(0.0, 0.0)
    try:
        if type(module) is CharLSTM and not is_hooked(module):
            known = lstm.with_kernels(module) and lstm.settled(module, precision) in _HALF
            return CharLSTMNet(module, 1, still, precision) if known else None
        known = bool(layers.with_kernels(module))
        return layered(module, 1, still, precision) if known else None
    except (Unstackable, ImportError):  # the kernels need Triton
        return None
