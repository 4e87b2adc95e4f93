"""Linear layers and the loss of stacked copies by GPU kernels, run by Triton's interpreter, against
torch's own operations in double precision."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

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
    ("sizes", "samples"),
    [
        ([70, 33, 10], 32),  # sides that fill no tile
        ([64, 64, 3], 7),  # fewer samples than a tile has
        ([5, 100], 50),  # one layer, with no ReLU
        ([20, 9, 4], 65),  # more samples than the kernels take
    ],
)
def test_two_steps(sizes: list[int], samples: int) -> None:
    """Layers that follow each other pass gradients through each other's ReLU, others do not."""
    for found in interpreted("two_steps_each", sizes, samples):
        assert found["scores"] < 1e-6
        assert found["moved"] < 1e-5
        assert found["losses"] < 1e-6


def test_the_gradient_of_the_inputs_is_by_the_weights_before_their_step() -> None:
    assert interpreted("gradient_of_inputs") < 1e-6


def test_a_model_that_has_diverged_is_seen_to_have() -> None:
    """NaN in a weight, and what comes back to it."""
    assert interpreted("diverged") == {"scores": True, "loss": True, "moved": True}


def test_labels_that_are_no_class_are_seen() -> None:
    found = interpreted("bad_labels")
    assert found == {"negative": [False, True], "too large": [False, True]}


def test_linear_layers_are_compiled_to_what_is_fast() -> None:
    for found in interpreted("compiled_layers", interpreter="0"):
        assert found["matrix"] > 0
        assert found["sixteen"] > 0


# --- in the other process ------------------------------------------------------------------------


def _net(
    sizes: list[int], copies: int, rate: float, decay: float, *, following: bool = True
) -> tuple[Any, nn.Sequential]:
    from fedast.training.kernels.dense import Dense
    from fedast.training.kernels.layers import LayeredNet
    from fedast.training.kernels.net import Descent, Layout

    linear = [nn.Linear(i, o) for i, o in pairwise(sizes)]
    parts: list[nn.Module] = []
    for layer in linear:
        parts += [layer, nn.ReLU()]
    module = nn.Sequential(*parts[:-1])
    layers = [
        Dense(layer, copies, Descent(rate, decay), relu=layer is not linear[-1]) for layer in linear
    ]
    if following:
        for one, other in pairwise(layers):
            other.follow(one)
    return LayeredNet(layers, Layout.of(module)), module


def two_steps_each(sizes: list[int], samples: int) -> list[dict[str, float]]:
    return [_two_steps(sizes, samples, following) for following in (True, False)]


def _two_steps(sizes: list[int], samples: int, following: bool) -> dict[str, float]:
    from fedast.training.kernels import layers, loss

    vars(layers)["cross_entropy"] = lambda scores, labels, _: loss.by_kernel(scores, labels)
    copies, rate, decay = 3, 0.3, 0.01
    net, module = _net(sizes, copies, rate, decay, following=following)
    base = torch.cat([p.detach().flatten() for p in module.parameters()])
    start = torch.stack([base * (1 + copy / 2) for copy in range(copies)])
    net.load(start)
    inputs = torch.randn(copies, samples, sizes[0])
    labels = torch.randint(sizes[-1], (copies, samples))
    found = {"scores": 0.0, "losses": 0.0}
    wanted = start.double()
    module = module.double()
    for _ in range(2):
        scores = net.scores(inputs)
        losses = net.step(inputs, labels)
        for copy in range(copies):
            torch.nn.utils.vector_to_parameters(wanted[copy], module.parameters())
            outputs = module(inputs[copy].double())
            right = functional.cross_entropy(outputs, labels[copy])
            gradients = torch.autograd.grad(right, list(module.parameters()))
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            wanted[copy] -= rate * (flat + decay * wanted[copy])
            found["scores"] = max(found["scores"], far_off(scores[copy], outputs.detach()))
            found["losses"] = max(found["losses"], far_off(losses[copy], right.detach()))
    return {**found, "moved": far_off(net.read() - start, wanted - start)}


def gradient_of_inputs() -> float:
    from fedast.training.kernels.dense import Dense
    from fedast.training.kernels.net import Descent

    layer = nn.Linear(70, 50)
    dense = Dense(layer, 2, Descent(10.0, 0.1), relu=True)
    assert layer.bias is not None
    dense.load([p.detach().expand(2, *p.shape) for p in (layer.weight, layer.bias)])
    x = torch.randn(2, 20, 70, requires_grad=True)
    wanted = layer(x).relu()
    dy = torch.randn_like(wanted)
    (expected,) = torch.autograd.grad(wanted, x, dy)
    dense.forward(x.detach())
    return far_off(dense.backward(dy, wants_dx=True), expected)


def diverged() -> dict[str, bool]:
    from fedast.training.kernels import layers, loss

    vars(layers)["cross_entropy"] = lambda scores, labels, _: loss.by_kernel(scores, labels)
    net, module = _net([6, 5, 3], 1, 0.1, 0.0)
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    flat[0] = float("nan")
    net.load(flat[None])
    inputs, labels = torch.randn(1, 4, 6), torch.zeros(1, 4, dtype=torch.int64)
    scores, losses = net.scores(inputs), net.step(inputs, labels)
    moved = net.read()[0, 6:].isnan().any()  # others than the one that was NaN
    return {"scores": bool(scores.isnan().any()), "loss": bool(losses.isnan().all()),
            "moved": bool(moved)}  # fmt: skip


def bad_labels() -> dict[str, list[bool]]:
    from fedast.training.kernels.loss import by_kernel

    found = {}
    for name, label in (("negative", -1), ("too large", 3)):
        labels = torch.zeros(2, 4, dtype=torch.int64)
        labels[1, 2] = label
        losses, gradient = by_kernel(torch.randn(2, 4, 3), labels)
        assert torch.equal(losses.isnan(), gradient.isnan().flatten(1).any(dim=1))
        found[name] = losses.isnan().tolist()
    return found


def compiled_layers() -> list[dict[str, int]]:
    return [_compiled_layer(way) for way in ("forward", "backward")]


def _compiled_layer(way: str) -> dict[str, int]:
    from fedast.training.kernels import dense, dense_kernels

    tile = dict(dense.FORWARD if way == "forward" else dense.BACKWARD)
    options = {name: tile.pop(name) for name in ("num_warps", "num_stages")}
    pointers = dict.fromkeys(["x", "weight", "bias"], "*fp32")
    fixed = {"IN": 1600, "OUT": 384, "BS": 32, **tile}
    if way == "backward":
        pointers |= dict.fromkeys(["dy", "dx"], "*fp32")
        fixed |= {"WANTS_DX": True, "AFTER_RELU": True}
    else:
        pointers["y"] = "*fp32"
        fixed["RELU"] = True
    text = assembly(getattr(dense_kernels, way), pointers, fixed, options)
    matrix = text.count("wgmma.mma_async") + text.count("mma.sync")
    return {"matrix": matrix, "sixteen": sixteen_bytes(text)}


if __name__ == "__main__":
    answer(globals())
