"""The GPU kernels, run by Triton's interpreter on the CPU, against autograd and plain torch.

The interpreter computes what a GPU would, element by element, so nets are small
here. It must be asked for before Triton is imported: another process does that.
"""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.training.interpreter import (
    answer,
    assembly,
    far_off,
    needs_triton,
    run_interpreted,
    sixteen_bytes,
)

pytestmark = needs_triton
interpreted = partial(run_interpreted, __file__)


@pytest.mark.parametrize(
    ("precision", "forward", "steps"), [("fp32", 1e-5, 1e-4), ("fp16", 2e-3, 5e-2)]
)
@pytest.mark.parametrize(
    ("channels", "size", "shape"),
    [
        ([3, 64], 5, (14, 12)),  # channels that are filled up, sides that differ
        ([1, 6, 16], 5, (28, 28)),  # LeNet-5
        ([3, 8, 5], 3, (13, 11)),  # odd sides: rows and columns that no window has
        ([6, 5, 4], 3, (12, 10)),  # more channels than are unrolled
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
    # With few samples, one maximum that rounding moves to another pixel shows in the gradient.
    assert found["steps"] < steps


def test_gradients_that_fp16_alone_could_not_hold() -> None:
    """1e-8 underflows in it, and what is scaled up may overflow; then it is clipped."""
    small = interpreted("convolutions", "fp16", [3, 8], 3, (8, 8), 1e-8)
    assert small["steps"] < 0.1
    large = interpreted("convolutions", "fp16", [3, 8], 3, (8, 8), 200.0)
    assert large["finite"]
    assert 0.1 < large["steps"] < 0.9  # less of a step, in about that direction


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_model_that_has_diverged_is_seen_to_have(precision: str) -> None:
    assert interpreted("diverged", precision) == {"nan": True, "forgotten": True}


def test_what_fp16_cuts_off_is_marked_where_it_happens() -> None:
    """Each case makes one kind of value too large, in the second of two copies."""
    found = interpreted("saturated")
    only_second = [0, 1]
    assert found == {
        "nothing": [0, 0],
        "weight": only_second,
        "infinite weight": only_second,
        "NaN": [0, 0],  # which stays NaN, and is seen
        "large bias, small outputs": [0, 0],
        "activation": only_second,
        "activation between blocks": only_second,
        "gradient": only_second,
        "gradient between blocks": only_second,
        "step": only_second,
        "loaded again": [0, 0],
        "bf16": None,
        "fp32": None,
    }


def test_what_fp16_cuts_off_in_the_lstm_is_marked() -> None:
    assert interpreted("saturated_lstm") == {
        "nothing": [0, 0],
        "weight": [0, 1],
        "gradient": [0, 1],
        "loaded again": [0, 0],
        "tf32": None,
    }


def test_updates_in_which_something_was_cut_off_are_counted() -> None:
    """From the kernels through trainer, learner and checkpoint, in one process."""
    tame, wild = (interpreted("counted", rate) for rate in (1e-2, 1e6))
    assert tame == {"first": 0, "kept": 0, "resumed": 0}
    # The first two start from a sound model and end with weights that do not fit.
    assert wild == {"first": 2, "kept": 2, "resumed": 4}


@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-5), ("tf32", 1e-5), ("fp16", 1e-3)])
def test_the_lstm(precision: str, most: float) -> None:
    assert interpreted("lstm", precision)["step"] < most


def test_the_lstm_asked_for_scores() -> None:
    assert interpreted("lstm", "fp16")["scores"] < 1e-3


def test_convolutions_are_compiled_to_what_is_fast() -> None:
    """No GPU is needed to compile for one: matrix units, fed sixteen bytes at a time."""
    kernels = ["convolve", "images", "weights", "first_weights"]
    for kernel, found in interpreted("compiled_convolutions", kernels, interpreter="0").items():
        assert found["matrix"] > 0, kernel
        assert found["sixteen"] > 0, kernel
        assert found["single"] == 0, kernel


def test_the_lstm_is_compiled_to_what_is_fast() -> None:
    """In half precision the weights of all gates are one operand of the matrix units, and few
    barriers are left."""
    found = interpreted("compiled_lstm", interpreter="0")
    assert all(kernel["matrix"] > 0 for kernel in found.values())
    assert found["half forward"]["barriers"] <= 32
    assert found["half backward"]["barriers"] <= 32


# --- in the other process ------------------------------------------------------------------------


def convolutions(
    precision: Any, channels: list[int], size: int, shape: list[int], gradients: float = 1e-3
) -> dict[str, float]:
    from fedast.training.kernels.convolution import ConvPools
    from fedast.training.kernels.net import Descent

    copies, samples, rate = 2, 3, 1e-4 / gradients
    decay = 1e-3 / rate
    layers = [nn.Conv2d(i, o, size) for i, o in itertools.pairwise(channels)]
    x = torch.randn(copies, samples, channels[0], *shape)
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
        dy = gradients * torch.randn_like(y)
        net.backward(dy, wants_dx=False)
        for copy in range(copies):
            mine = [p[copy].clone().requires_grad_() for p in wanted]
            z = x[copy].double()
            for weight, bias in zip(mine[::2], mine[1::2], strict=True):
                z = functional.max_pool2d(functional.conv2d(z, weight, bias).relu(), 2)
            worst = max(worst, far_off(y[copy], z.detach()))
            for p, value, gradient in zip(
                wanted, mine, torch.autograd.grad(z, mine, dy[copy].double()), strict=True
            ):
                p[copy] = (value - rate * (gradient + decay * value)).detach()
    moved = torch.cat([(a - b).flatten() for a, b in zip(net.read(), start, strict=True)])
    should = torch.cat([(a - b).flatten() for a, b in zip(wanted, start, strict=True)])
    finite = bool(moved.isfinite().all())
    return {"forward": worst, "steps": far_off(moved, should), "finite": finite}


def compiled_convolutions(kernels: list[str]) -> dict[str, dict[str, int]]:
    return {kernel: _compiled_convolution(kernel) for kernel in kernels}


def _compiled_convolution(what: str) -> dict[str, int]:
    """One of the kernels of the CIFAR-10 net, as its block launches it."""
    from fedast.training.kernels import convolution, convolution_kernels

    first = {"HEIGHT": 28, "WIDTH": 32, "OUT_H": 14, "OUT_W": 14, "IN": 16, "HIGH": 1}
    second = {"HEIGHT": 14, "WIDTH": 14, "OUT_H": 5, "OUT_W": 5, "IN": 64, "HIGH": 5}
    pixels = second | {"OUT_H": 10, "OUT_W": 10}
    half = {"LIMIT": True, "PRECISION": "tf32"}
    shapes: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
        "convolve": (second | half, convolution.CONVOLVE),
        "weights": (pixels | {"PRECISION": "tf32"}, convolution.WEIGHTS),
        "first_weights": (first | half, convolution.FIRST_WEIGHTS),
        "images": (
            pixels | half | {"TURNED": False, "BS": 32, "BH": 2, "BW": 2}, convolution.IMAGES
        ),
    }  # fmt: skip
    shape, tile = shapes[what]
    fixed = shape | {"OUT": 64, "BROAD": 5, "BN": 64, "LARGE": False}
    fixed |= {name: tile[name] for name in ("BM", "BK")}
    if what == "images":
        del fixed["BM"]
    kernel = getattr(convolution_kernels, what)
    types = {
        "x": "*fp16", "weight": "*fp16", "bias": "*fp32", "y": "*fp16", "place": "*u8",
        "saturated": "*i32", "wide": "*fp16", "dy": "*fp16", "dx": "*fp16", "parts": "*fp32",
        "sums": "*fp32",
    }  # fmt: skip
    pointers = {name: types[name] for name in kernel.arg_names if name in types}
    text = assembly(
        kernel, pointers, fixed, {name: tile[name] for name in ("num_warps", "num_stages")}
    )
    return {
        "matrix": text.count("wgmma.mma_async"),
        "sixteen": sixteen_bytes(text),
        "single": len(re.findall(r"ld\.global\S*\.b16", text)),
    }


def compiled_lstm() -> dict[str, dict[str, int]]:
    import triton.language as tl

    from fedast.training.kernels import cell, half_cell_kernels

    shape: dict[str, Any] = {"HIDDEN": 100, "BH": 128, "LENGTH": 80, "BP": 32}
    half = shape | {"OPERAND": tl.float16, "PACKED": True}
    shared = {"weights": "*fp16", "cells": "*fp16", "gates": "*i32"}
    single = {"cells": "*fp32", "gates": "*fp32"}
    cases = {
        "half forward": (
            half_cell_kernels.forward, half | {"KEEP": True, "EXTRA": 10, "WIDTH": 192},
            shared | {"vectors": "*fp16", "codes": "*i64", "states": "*fp16"},
        ),
        "half backward": (
            half_cell_kernels.backward, half,
            shared | {"d_last": "*fp32", "d_gates": "*i32", "saturated": "*i32"},
        ),
        "forward": (
            cell._forward, shape | {"PRECISION": "tf32", "WIDTH": 180},
            single | {"table": "*fp32", "codes": "*i64", "weight": "*fp32", "states": "*fp32"},
        ),
        "backward": (
            cell._backward, shape | {"PRECISION": "tf32"},
            single | {"d_last": "*fp32", "transposed": "*fp32", "d_gates": "*fp32"},
        ),
    }  # fmt: skip
    found = {}
    for name, (kernel, fixed, pointers) in cases.items():
        text = assembly(kernel, pointers, fixed, {"num_warps": 8, "num_stages": 1}, ["samples"])
        found[name] = {
            "matrix": text.count("wgmma.mma_async"),
            "barriers": text.count("bar.sync"),
        }
    return found


def diverged(precision: Any) -> dict[str, bool]:
    from fedast.training.kernels.convolution import ConvPools
    from fedast.training.kernels.layers import Flatten, LayeredNet
    from fedast.training.kernels.net import Descent, Layout

    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    convolution = cast("nn.Conv2d", module[0])
    first = ConvPools([convolution], 1, Descent(0.0, 0.0), precision)
    net = LayeredNet([first, Flatten()], Layout.of(module))
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    flat[3] = float("nan")
    net.load(flat[None])
    scores = net.scores(torch.randn(1, 2, 1, 6, 6))
    block = first._blocks[0]
    return {"nan": bool(scores.isnan().any()), "forgotten": block._x is block._weight}


def lstm(precision: Any) -> dict[str, float]:
    from fedast.tasks.models import CharLSTM
    from fedast.training.kernels.lstm import CharLSTMNet
    from fedast.training.kernels.net import Descent

    module = CharLSTM(symbols=20, embedded=8, hidden=70)
    codes, labels = torch.randint(20, (2, 37, 5)), torch.randint(20, (2, 37))
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
    found = {"step": far_off(fast.read() - bases, plain.read() - bases)}
    if precision == "fp16":
        with torch.no_grad():
            wanted = module(codes[0])
        found["scores"] = far_off(net(True, precision).scores(codes)[0], wanted)
    return found


def saturated() -> dict[str, list[int] | None]:
    from fedast.training.kernels.convolution import ConvPools
    from fedast.training.kernels.net import Descent

    layers = [nn.Conv2d(2, 6, 3), nn.Conv2d(6, 5, 3)]
    plain = [p.detach() for layer in layers for p in (layer.weight, layer.bias) if p is not None]
    net = ConvPools(layers, 2, Descent(1e-2, 0.0), "fp16")
    x = torch.randn(2, 3, 2, 14, 14)
    x[0] = x[1]  # what is marked is not due to the samples
    x[1, 0, 0, 0, 0] += 1e-3

    def start() -> list[torch.Tensor]:
        return [torch.stack([p, p.clone()]) for p in plain]

    def marks(given: list[torch.Tensor], gradient: float = 1e-3) -> list[int]:
        net.load(given)
        y = net.forward(x)
        dy = 1e-3 * torch.ones_like(y)
        dy[1] *= gradient / 1e-3
        net.backward(dy, wants_dx=False)
        assert net.saturated is not None
        return cast("list[int]", net.saturated.tolist())

    found: dict[str, list[int] | None] = {"nothing": marks(start())}
    for name, value in (("weight", 7e4), ("infinite weight", -torch.inf), ("NaN", torch.nan)):
        given = start()
        given[2][1, 0, 0, 0, 0] = value
        net.load(given)
        assert net.saturated is not None
        found[name] = net.saturated.tolist()
    given = start()
    given[2].zero_()
    given[2][:, :, :, 1, 1] = -1.0
    given[1].fill_(1.5e4)  # times six channels, 9e4 less than the bias
    given[0].zero_()
    given[3].fill_(1.2e5)
    found["large bias, small outputs"] = marks(given, 0.0)
    given = start()
    given[3][1] = 7e4
    found["activation"] = marks(given, 0.0)
    given = start()
    given[1][1] = 7e4
    found["activation between blocks"] = marks(given, 0.0)
    found["gradient"] = marks(start(), 100.0)
    given = start()
    given[2][:] *= 1000
    found["gradient between blocks"] = marks(given, 5.0)
    net = ConvPools(layers, 2, Descent(1e7, 0.0), "fp16")
    given = start()
    net.load(given)
    dy = torch.zeros_like(net.forward(x))
    dy[1] = 1e-1
    net.backward(dy, wants_dx=False)
    assert net.saturated is not None
    found["step"] = net.saturated.tolist()
    net.load(given)
    found["loaded again"] = net.saturated.tolist()
    for precision in ("bf16", "fp32"):
        found[precision] = ConvPools(layers, 2, Descent(1e-2, 0.0), precision).saturated  # type: ignore[assignment]
    return found


def saturated_lstm() -> dict[str, list[int] | None]:
    from fedast.tasks.models import CharLSTM
    from fedast.training.kernels.lstm import CharLSTMNet
    from fedast.training.kernels.net import Descent

    module = CharLSTM(symbols=20, embedded=8, hidden=70)
    codes, labels = torch.randint(20, (2, 37, 5)), torch.randint(20, (2, 37))
    base = torch.cat([p.detach().flatten() for p in module.parameters()])
    net = CharLSTMNet(module, 2, Descent(0.5, 0.01), "fp16")
    net._kernels = True

    def marks(weight: float = 0.0, enlarged: float = 1.0) -> list[int]:
        net.load(base.expand(2, -1))
        if weight:
            net._parameters[2][1, 3, 5] = weight
        net._parameters[5][1] *= enlarged  # the last layer hands larger gradients back
        net.step(codes, labels)
        assert net.saturated is not None
        return cast("list[int]", net.saturated.tolist())

    found: dict[str, list[int] | None] = {
        "nothing": marks(),
        "weight": marks(weight=-7e4),
        "gradient": marks(enlarged=1e6),
    }
    net.load(base.expand(2, -1))
    found["loaded again"] = cast("torch.Tensor", net.saturated).tolist()
    net._precision = "tf32"
    found["tf32"] = cast("None", net.saturated)
    return found


def counted(rate: float) -> dict[str, int]:
    import numpy as np

    from fedast.learner.local import LocalLearner
    from fedast.tasks.dataset import Arrays
    from fedast.tasks.task import Task, Training
    from fedast.training.batched import BatchedTrainer
    from fedast.training.kernels import agreement, layers

    # There are kernels without a GPU here, and they are as exact as on one.
    layers.with_kernels = lambda module: [module[0]]  # type: ignore[index]
    agreement.tolerance = lambda precision: 0.1
    task = Task(
        name="t",
        model=lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
        ),
        train=Arrays(torch.randn(12, 1, 6, 6), torch.arange(12) % 3),
        test=Arrays(torch.randn(3, 1, 6, 6), torch.arange(3)),
        partition=[np.arange(12)],
        training=Training(local_steps=2, batch_size=4, client_lr=rate),
    )

    def learner() -> LocalLearner:
        return LocalLearner(
            [task], {"t": 1.0}, seed=0, device=torch.device("cpu"), variance_window=0,
            trainer=partial(BatchedTrainer, precision="fp16"),
        )  # fmt: skip

    def send(to: LocalLearner, requests: range, version: int) -> None:
        for request in requests:
            to.dispatch(request, "t", 0, version)
            to.accept(request, "t")

    first, second = learner(), learner()
    send(first, range(5), 0)
    first.aggregate("t", (0, 1))  # the others are trained with these, and the checkpoint has them
    kept = first.state()
    count = first.saturated()["t"]
    first.drop(4, "t")
    send(second, range(5), 0)
    second.skip_aggregation("t", (0, 1))
    second.restore(kept)
    known = second.saturated()["t"]
    second.aggregate("t", (2, 3))
    return {"first": count, "kept": known, "resumed": second.saturated()["t"]}


if __name__ == "__main__":
    answer(globals())
