"""The local training that all simulators are measured on, with torch alone.

The nets of ``fedast bench --models`` on random data of their shapes, 100 clients, batches of 32,
SGD at rate 0.05 without momentum. The paper's nets go three times through 288 samples, which is 27
steps, the larger ones once through 160, which is 5. (fedast itself drops the rest of an epoch, so
these numbers give the same steps in every framework.)

fedast is not installed where the others are, so the two files that have the nets are read by
themselves: they need nothing but torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import nn

CLIENTS, BATCH, RATE = 100, 32, 0.05
SOURCE = Path(__file__).resolve().parents[2] / "src" / "fedast"


def _read(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, SOURCE / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_paper, _others = _read("tasks/models.py"), _read("run/bench_nets.py")


class Workload(NamedTuple):
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """Of a sample; one of symbols, not of pixels, if it has one axis."""
    classes: int
    cohort: int
    """Clients that are trained in one round: so many that a round takes some seconds."""
    points: int = 288
    epochs: int = 3
    everywhere: bool = False
    """Whether each place of a sample has a label."""

    @property
    def steps(self) -> int:
        return self.epochs * self.points // BATCH

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of all clients, client by client."""
        draws = torch.Generator().manual_seed(0)
        total = CLIENTS * self.points
        if len(self.shape) > 1:
            inputs = torch.randn(total, *self.shape, generator=draws)
        else:
            inputs = torch.randint(self.classes, (total, *self.shape), generator=draws)
        places = self.shape if self.everywhere else ()
        return inputs, torch.randint(self.classes, (total, *places), generator=draws)


_large = partial(Workload, points=160, epochs=1)

WORKLOADS = {
    "perceptron": Workload(partial(_paper.perceptron, (784, 200, 200, 10)), (1, 28, 28), 10, 80),
    "lenet5": Workload(_paper.lenet5, (1, 28, 28), 10, 40),
    "cifar-net": Workload(_paper.cifar_cnn, (3, 32, 32), 10, 8),
    "lstm": Workload(_paper.CharLSTM, (80,), 80, 8),
    "resnet18-batch-norm": _large(
        partial(_paper.resnet18, norm=nn.BatchNorm2d), (3, 32, 32), 100, 4
    ),
    "resnet18-group-norm": _large(_paper.resnet18, (3, 32, 32), 100, 4),
    "depthwise": _large(_others.depthwise_net, (3, 32, 32), 100, 8),
    "vit": _large(_others.VisionTransformer, (3, 32, 32), 100, 8),
    "gpt": _large(_others.CharGPT, (128,), 80, 8, everywhere=True),
}
