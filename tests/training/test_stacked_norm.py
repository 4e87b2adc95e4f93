"""Normalisations of stacked copies by GPU kernels, against torch's own of every copy alone.

Here the kernels are run by Triton's interpreter, in another process. On a GPU, whole nets are
trained with them (``test_stacked_conv``, ``-m cuda``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn import functional

from fedast.training.kernels.stacked_norm import StackedNorms, plain, stacked_norms
from tests.training.interpreter import answer, assembly, far_off, needs_triton, run_interpreted

pytestmark = needs_triton
interpreted = partial(run_interpreted, __file__)

SHAPES: dict[str, tuple[int, ...]] = {
    "squares": (4, 6, 5, 5),
    "more pixels than a tile has columns": (2, 6, 40, 40),
    "more rows than a tile": (33, 3, 11, 12),
    "sequences": (3, 6, 17),
    "volumes": (2, 6, 3, 4, 5),
}
KINDS = {"batch": 0, "layer": 1, "groups": 3}


def test_outputs_statistics_and_gradients() -> None:
    for name, off in interpreted("all_norms", SHAPES, KINDS).items():
        assert off < 2e-6, name


def test_values_far_from_zero_keep_their_digits() -> None:
    """Wherever an outlier is: the first value, a whole sample. A mean of 1,000 itself is rounded by
    3e-5."""
    outputs, variances = zip(*interpreted("far_from_zero"), strict=True)
    assert max(outputs) < 1e-4
    assert max(variances) < 1e-6


def test_mapped_over_copies() -> None:
    found = interpreted("a_net")
    for what in ("loss", "gradients", "running statistics", "penalty", "inside", "frozen"):
        assert found[what] < 1e-5, what
    assert found["forward"] == found["backward"] == 2, "each is one kernel each way"


def test_kernels_are_compiled_to_what_is_fast() -> None:
    """No GPU is needed to compile for one: sixteen bytes at a time, nothing spilled."""
    for found in interpreted("all_compiled", interpreter="0"):
        assert found["sixteen"] > 0
        assert found["spilled"] == 0


def test_a_model_that_diverges_shows_it() -> None:
    """Infinite and missing values end as such, as they do with torch's own."""
    assert interpreted("diverged") == [True, True]


def test_other_normalisations_are_left_to_torch() -> None:
    x, weight = torch.randn(4, 6, 5, 5), torch.randn(6)
    mean, variance = torch.randn(6), torch.rand(6)
    layers: list[Callable[[], torch.Tensor]] = [
        lambda: functional.batch_norm(x, mean, variance, weight, weight),  # not in training
        lambda: functional.batch_norm(x, None, None, training=True),
        lambda: functional.batch_norm(x[..., 0, 0], None, None, weight, weight, training=True),
        lambda: functional.batch_norm(
            x.double(), None, None, weight.double(), weight.double(), training=True
        ),
        lambda: functional.group_norm(x, 2),
        lambda: functional.group_norm(x[..., 0], 2, weight, weight),
    ]
    for layer in layers:
        with StackedNorms():
            found = layer()
        assert torch.equal(found, layer())


def test_they_are_for_single_precision_on_a_gpu() -> None:
    assert not isinstance(stacked_norms(torch.zeros(1)), StackedNorms)


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_a_gpu_computes_what_the_interpreter_does() -> None:
    for off in all_norms(SHAPES, KINDS, "cuda").values():
        assert off < 1e-5
    for what, off in a_net("cuda").items():
        assert what in ("forward", "backward") or off < 1e-4


# --- in the other process -------------------------------------------------------------------------


def all_norms(
    shapes: dict[str, tuple[int, ...]], kinds: dict[str, int], device: str = "cpu"
) -> dict[str, float]:
    """The largest relative error of outputs, statistics and gradients."""
    from fedast.training.kernels import stacked_norm_kernels as kernels

    found = {}
    for name, shape in shapes.items():
        for kind, groups in kinds.items():
            x, dy = (
                torch.randn(2, *shape, device=device) * 3 + 7,
                torch.randn(2, *shape, device=device),
            )
            weight, bias = torch.randn(2, 2, shape[1], device=device)
            y, mean, variance = kernels.run_forward(x, weight, bias, groups, 1e-5)
            got = (
                y,
                mean,
                variance,
                *kernels.run_backward(dy, x, weight, mean, variance, groups, 1e-5),
            )
            alone = [_alone(groups, *each) for each in zip(x, weight, bias, dy, strict=True)]
            found[f"{name}, {kind}"] = max(
                far_off(one, torch.stack(other))
                for one, other in zip(got, zip(*alone, strict=True), strict=True)
            )
    return found


def _alone(groups: int, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, weight, bias, dy = (tensor.double().requires_grad_() for tensor in given)
    if groups:
        y = functional.group_norm(x, groups, weight, bias)
        sets = x.reshape(len(x), groups, -1).flatten(2)
    else:
        y = functional.batch_norm(x, None, None, weight, bias, training=True)
        sets = x.transpose(0, 1).flatten(1)
    variance, mean = torch.var_mean(sets, dim=-1, correction=0)
    return (
        *(part.detach() for part in (y, mean, variance)),
        *torch.autograd.grad(y, (x, weight, bias), dy),
    )


def far_from_zero() -> list[tuple[float, float]]:
    from fedast.training.kernels import stacked_norm_kernels as kernels

    found = []
    for outlier in ((slice(None), 0, slice(None), 0, 0), (slice(None), 0)):
        x = torch.randn(1, 16, 2, 24, 24) + 1000
        x[outlier] = 0
        weight, bias = torch.ones(1, 2), torch.zeros(1, 2)
        for groups in (0, 1, 2):
            y, _, variance = kernels.run_forward(x, weight, bias, groups, 1e-5)
            one = [tensor[0].double() for tensor in (x, weight, bias)]
            wanted, _, wanted_variance = plain(one[0], one[1], one[2], groups, 1e-5)
            found.append((far_off(y[0], wanted), far_off(variance[0], wanted_variance)))
    return found


def a_net(device: str = "cpu") -> dict[str, float]:
    """Training steps of three copies with both kinds, with and without the kernels."""
    from fedast.training.kernels import stacked_norm_kernels as kernels

    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3),
        nn.GroupNorm(2, 6),
    ).to(device)
    own = {
        name: torch.stack([p.detach() * (1 + 0.1 * n) + 0.05 * n for n in range(3)])
        for name, p in net.named_parameters()
    }
    running = {
        name: torch.stack([b + 0.1 * n for n in range(3)])
        for name, b in net.named_buffers()
        if b.is_floating_point()
    }
    x = torch.randn(3, 4, 3, 9, 9, device=device)

    def loss(parameters: Any, buffers: Any, inputs: torch.Tensor) -> tuple[torch.Tensor, Any]:
        counters = {"1.num_batches_tracked": torch.zeros((), dtype=torch.int64, device=device)}
        state = {name: value.clone() for name, value in {**buffers, **counters}.items()}
        out = functional_call(net, {**parameters, **state}, (inputs,))
        return out.pow(3).mean(), {name: state[name] for name in buffers}

    def penalty(parameters: Any, buffers: Any, inputs: torch.Tensor) -> torch.Tensor:
        found = grad(lambda i: loss(parameters, buffers, i)[0])(inputs)
        return cast("torch.Tensor", found.pow(2).sum())

    def inside(weight: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Copies that map over parts of their own."""

        def score(part: torch.Tensor) -> torch.Tensor:
            return functional.group_norm(part, 3, weight, weight).pow(3).sum()

        return vmap(score)(torch.stack([inputs, inputs.square()])).sum()

    def frozen(parameters: Any, buffers: Any, inputs: torch.Tensor) -> torch.Tensor:
        shared = {name: p[0] for name, p in own.items() if name.startswith("1.")}
        return loss({**parameters, **shared}, buffers, inputs)[0]

    def everything() -> dict[str, Any]:
        gradients, (losses, after) = vmap(grad_and_value(loss, has_aux=True))(own, running, x)
        rest = {name: p for name, p in own.items() if not name.startswith("1.")}
        return {
            "loss": [losses],
            "gradients": list(gradients.values()),
            "running statistics": list(after.values()),
            "penalty": list(vmap(grad(penalty))(own, running, x).values()),
            "inside": [vmap(grad(inside))(own["4.weight"][:, :3], x)],
            "frozen": list(vmap(grad(frozen))(rest, running, x).values()),
        }

    wanted = everything()
    calls: dict[str, float] = {"forward": 0, "backward": 0}
    with StackedNorms():
        found = everything()
        before = kernels.run_forward, kernels.run_backward
        kernels.run_forward = _counted(before[0], "forward", calls)
        kernels.run_backward = _counted(before[1], "backward", calls)
        vmap(grad_and_value(loss, has_aux=True))(own, running, x)
        kernels.run_forward, kernels.run_backward = before
    off: dict[str, float] = {}
    for what, values in found.items():
        pairs = zip(values, wanted[what], strict=True)
        off[what] = max((far_off(one, other) for one, other in pairs), default=0.0)
    return {**off, **calls}


def _counted(function: Any, name: str, calls: dict[str, float]) -> Any:
    def counting(*given: Any) -> Any:
        calls[name] += 1
        return function(*given)

    return counting


def all_compiled() -> list[dict[str, int]]:
    """Of a first and a last layer of a ResNet-18, both kinds, forward and back."""
    from fedast.training.kernels import stacked_norm_kernels as kernels

    ways = {
        kernels.normalise: ["x", "weight", "bias", "y", "means", "variances"],
        kernels.gradients: [
            *("dy", "x", "weight", "means", "variances", "dx", "d_weight", "d_bias")
        ],
    }
    found = []
    for rows, pixels, batch in (
        (32, 1024, True),
        (32, 1024, False),
        (32, 16, True),
        (256, 16, False),
    ):
        tile = kernels._tile(rows, pixels)
        options = {"num_warps": tile.pop("num_warps")}
        fixed = {**tile, "BATCH": batch, "PIXELS": pixels, "eps": 1e-5}
        for kernel, pointers in ways.items():
            text = assembly(kernel, dict.fromkeys(pointers, "*fp32"), fixed, options)
            sixteen = re.findall(r"(?:ld|st)\.global\S*\.v4", text)
            found.append({"sixteen": len(sixteen), "spilled": text.count(".local")})
    return found


def diverged() -> list[bool]:
    found = []
    for value in (float("inf"), float("nan")):
        x = torch.randn(2, 3, 4, 5, 5)
        x[1, 0, 2, 3, 3] = value
        weight = torch.ones(2, 4)

        def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return functional.group_norm(x, 2, w, w)

        with StackedNorms():
            got = vmap(norm)(x, weight)
        found.append(torch.equal(got.isnan(), vmap(norm)(x, weight).isnan()))
    return found


if __name__ == "__main__":
    answer(globals())
