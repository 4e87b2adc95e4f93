"""The GPU kernels, run by Triton's interpreter on the CPU, against autograd and plain torch.

The interpreter computes what a GPU would, element by element, so nets are small
here. It must be asked for before Triton is imported: another process does that.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which this system has not"
)


def interpreted(what: str, *given: object) -> dict[str, Any]:
    """The answer of one of the functions below, in a process with the interpreter."""
    done = subprocess.run(
        [sys.executable, __file__, what, json.dumps(given)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return cast("dict[str, Any]", json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("precision", "forward", "steps"), [("fp32", 1e-5, 1e-4), ("fp16", 2e-3, 5e-2)]
)
@pytest.mark.parametrize(
    ("channels", "size", "shape"),
    [
        ([3, 64], 5, (14, 12)),  # channels that are filled up, sides that differ
        ([1, 6, 16], 5, (28, 28)),  # LeNet-5
        ([3, 8, 5], 3, (13, 11)),  # odd sides: rows and columns that no window has
    ],
)
def test_convolutions(
    precision: str,
    forward: float,
    steps: float,
    channels: list[int],
    size: int,
    shape: tuple[int, int],
) -> None:
    found = interpreted("convolutions", precision, channels, size, shape)
    assert found["forward"] < forward
    # With few points, one maximum that rounding moves to another pixel shows in the gradient.
    assert found["steps"] < steps


@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-5), ("tf32", 1e-5), ("fp16", 1e-3)])
def test_the_lstm(precision: str, most: float) -> None:
    assert interpreted("lstm", precision)["step"] < most


def test_the_lstm_asked_for_scores() -> None:
    assert interpreted("lstm", "fp16")["scores"] < 1e-3


# --- in the other process ------------------------------------------------------------------------


def convolutions(
    precision: Any, channels: list[int], size: int, shape: list[int]
) -> dict[str, float]:
    from fedast.learn.stacked.convolution import ConvPools
    from fedast.learn.stacked.net import Descent

    copies, points, rate, decay = 2, 3, 0.1, 0.01
    layers = [nn.Conv2d(i, o, size) for i, o in itertools.pairwise(channels)]
    x = torch.randn(copies, points, channels[0], *shape)
    parameters = [
        p.detach() for layer in layers for p in (layer.weight, layer.bias) if p is not None
    ]
    start = [torch.stack([p * (1 + copy) for copy in range(copies)]) for p in parameters]
    net = ConvPools(layers, copies, Descent(rate, decay), precision)
    net.load(start)
    wanted = [p.double() for p in start]
    worst = 0.0
    for _ in range(2):
        y = net.forward(x)
        dy = 1e-3 * torch.randn_like(y)
        net.backward(dy, wants_dx=False)
        for copy in range(copies):
            mine = [p[copy].clone().requires_grad_() for p in wanted]
            z = x[copy].double()
            for weight, bias in zip(mine[::2], mine[1::2], strict=True):
                z = functional.max_pool2d(functional.conv2d(z, weight, bias).relu(), 2)
            worst = max(worst, _off(y[copy], z.detach()))
            for p, value, gradient in zip(
                wanted, mine, torch.autograd.grad(z, mine, dy[copy].double()), strict=True
            ):
                p[copy] = (value - rate * (gradient + decay * value)).detach()
    moved = torch.cat([(a - b).flatten() for a, b in zip(net.read(), start, strict=True)])
    should = torch.cat([(a - b).flatten() for a, b in zip(wanted, start, strict=True)])
    return {"forward": worst, "steps": _off(moved, should)}


def lstm(precision: Any) -> dict[str, float]:
    from fedast.learn.models import CharLSTM
    from fedast.learn.stacked.lstm import CharLSTMNet
    from fedast.learn.stacked.net import Descent

    module = CharLSTM(symbols=20, embedded=8, hidden=40)
    codes, labels = torch.randint(20, (2, 5, 6)), torch.randint(20, (2, 5))
    base = torch.cat([p.detach().flatten() for p in module.parameters()])
    bases = torch.stack([base, 1.5 * base])

    def net(kernels: bool, of: Any) -> CharLSTMNet:
        made = CharLSTMNet(module, 2, Descent(0.5, 0.01), of)
        made._kernels = kernels
        made.load(bases)
        return made

    plain, fast = net(False, "fp32"), net(True, precision)
    plain.step(codes, labels)
    fast.step(codes, labels)
    found = {"step": _off(fast.read() - bases, plain.read() - bases)}
    if precision == "fp16":
        with torch.no_grad():
            wanted = module(codes[0])
        found["scores"] = _off(net(True, precision).scores(codes)[0], wanted)
    return found


def _off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    answer = {"convolutions": convolutions, "lstm": lstm}[sys.argv[1]]
    print(json.dumps(answer(*json.loads(sys.argv[2]))))  # type: ignore[operator]
