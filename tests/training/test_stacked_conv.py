"""Convolutions of stacked copies by GPU kernels, against torch's own of every copy alone.

Here the kernels are run by Triton's interpreter, which must be asked for before Triton is
imported: another process does that. On a GPU, whole nets are trained with them (``-m cuda``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedast.config.schema import Compute
from fedast.run.compute import arithmetic
from fedast.tasks.dataset import Arrays
from fedast.tasks.models import resnet18, two_groups
from fedast.tasks.task import Task, Training
from fedast.training.batched import BatchedTrainer
from fedast.training.kernels.stacked_conv import StackedConvolutions, stacked_convolutions
from fedast.training.trainer import DeviceTask, Job, SerialTrainer
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

SHAPES = {
    "a first layer": (3, 3, 20, (9, 8), (3, 3), (1, 1), (1, 1)),
    "strided, odd sides": (2, 18, 5, (7, 6), (3, 3), (2, 2), (1, 1)),
    "single pixels": (2, 20, 70, (4, 5), (1, 1), (1, 1), (0, 0)),
    "single pixels, strided": (2, 20, 33, (6, 7), (1, 1), (2, 2), (0, 0)),
    "directions that differ": (5, 4, 3, (5, 6), (5, 3), (2, 1), (2, 0)),
    "one channel": (2, 1, 3, (8, 8), (3, 3), (1, 1), (0, 0)),
    "a wide window": (2, 5, 4, (9, 9), (7, 7), (2, 2), (3, 3)),
    "patches": (17, 3, 6, (8, 8), (4, 4), (4, 4), (0, 0)),
    "pixels left out": (2, 3, 3, (9, 9), (2, 2), (3, 3), (1, 1)),
    "even tiles": (16, 32, 64, (4, 4), (3, 3), (2, 2), (1, 1)),
    "many channels": (2, 70, 66, (3, 4), (3, 3), (1, 1), (1, 1)),
}
"""Samples, channels in and out, the image, and the window's size, stride and padding."""


def test_outputs_and_gradients() -> None:
    for name, off in interpreted("all_shapes", SHAPES).items():
        assert max(off) < 1e-6, name


def test_half_precision() -> None:
    """Operands in fp16, gradients scaled up and back; copies with values too large are marked."""
    some = ("a first layer", "strided, odd sides", "single pixels", "one channel", "even tiles")
    found = interpreted("all_shapes", {name: SHAPES[name] for name in some}, "cpu", True)
    for name, off in found.items():
        assert max(off) < 2e-3, name
        assert max(off) > 1e-5, name  # it is in fp16 indeed
    assert interpreted("too_large") == [[0, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_a_sum_in_shares_is_the_same_every_time() -> None:
    off, shares, same = interpreted("in_shares")
    assert off < 1e-6
    assert shares > 1
    assert same


FROZEN: dict[str, list[str]] = {
    "nothing": [],
    "the first layer": ["0.weight", "0.bias"],
    "the second layer": ["2.weight", "2.bias"],
}


def test_mapped_over_copies() -> None:
    """Weights that are frozen are shared; the images' gradient is not asked for."""
    found = interpreted("all_maps", FROZEN, [1, 3])
    for frozen, copies in product(FROZEN, (1, 3)):
        case = f"{frozen}, {copies}"
        layers = 0 if copies == 1 else 2 if frozen == "nothing" else 1
        assert found[case]["off"] < 1e-5, case
        assert found[case]["convolve"] == found[case]["weight_gradient"] == layers, case
        assert found[case]["input_gradient"] == (layers == 2), case


def test_second_derivatives_and_mappings_inside() -> None:
    found = interpreted("second_derivatives")
    assert found["penalty"] < 1e-5
    assert found["inside"] < 1e-5


def test_other_convolutions_are_left_to_torch() -> None:
    x, weight = torch.randn(2, 4, 6, 6), torch.randn(4, 2, 3, 3)
    layers: list[Callable[[], torch.Tensor]] = [
        lambda: torch.conv2d(x, weight, groups=2),
        lambda: torch.conv2d(x, weight.repeat(1, 2, 1, 1), dilation=2),
        lambda: torch.conv2d(x, weight.repeat(1, 2, 1, 1), padding="same"),
        lambda: torch.conv2d(x[0], weight.repeat(1, 2, 1, 1)),
        lambda: torch.conv2d(x.double(), weight.double().repeat(1, 2, 1, 1)),
    ]
    for layer in layers:
        with StackedConvolutions():
            found = layer()
        assert torch.equal(found, layer())


def test_they_are_for_single_precision_on_a_gpu() -> None:
    assert not isinstance(stacked_convolutions(torch.zeros(1)), StackedConvolutions)


def test_kernels_are_compiled_to_what_is_fast() -> None:
    """No GPU is needed to compile for one: matrix units, fed sixteen bytes at a time."""
    kernels = [
        [what, half] for what in ("forward", "backward", "weights") for half in (False, True)
    ]
    for found in interpreted("all_compiled", kernels, interpreter="0"):
        assert found["matrix"] > 0
        assert found["sixteen"] > 0
        assert found["single"] == 0


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.fixture
def full_precision() -> Iterator[None]:
    with arithmetic(Compute(device="cuda", precision="fp32")):
        yield


@pytest.mark.cuda
@pytest.mark.usefixtures("full_precision")
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, two_groups])
@pytest.mark.parametrize("clients", [[2], [0, 1, 2, 1, 0]])
def test_a_resnet_on_a_gpu(norm: Any, clients: list[int]) -> None:
    draws = torch.Generator().manual_seed(1)
    train = Arrays(
        torch.randn(48, 3, 32, 32, generator=draws), torch.randint(5, (48,), generator=draws)
    )
    task = Task(
        name="t",
        model=lambda: resnet18(5, norm=norm, width=8),
        train=train,
        test=train,
        partition=[np.arange(16 * n, 16 * n + 16) for n in range(3)],
        training=Training(local_steps=1, batch_size=12, client_lr=0.02, weight_decay=1e-3),
    )
    device_task = DeviceTask.build(task, 3, torch.device("cuda"))
    base = device_task.model.read()
    jobs = [Job(number, client, base) for number, client in enumerate(clients)]
    trainer = BatchedTrainer({"t": device_task}, 3)
    assert not trainer.alone
    serial = SerialTrainer({"t": device_task}, 3).train("t", jobs)
    off = []
    for found, wanted in zip(trainer.train("t", jobs), serial, strict=True):
        torch.testing.assert_close(found.loss, wanted.loss, rtol=1e-3, atol=1e-6)
        off.append(far_off(found.delta, wanted.delta))
    # Normalisations amplify rounding, as in test_trainers. A ReLU that it flips changes much more:
    # torch's own update of such a net is up to 8e-3 off that in double precision then.
    assert np.median(off) < 2e-3
    assert max(off) < 2e-2


@pytest.mark.cuda
@pytest.mark.usefixtures("full_precision")
def test_a_gpu_computes_what_the_interpreter_does() -> None:
    for output, of_input, of_weight in all_shapes(SHAPES, "cuda").values():
        assert max(output, of_input, of_weight) < 1e-5


# --- in the other process -------------------------------------------------------------------------


def all_shapes(
    shapes: dict[str, Any], device: str = "cpu", half: bool = False
) -> dict[str, list[float]]:
    """Relative errors of the output, the input's gradient and the weight's gradient."""
    from fedast.training.kernels import stacked_conv_launch as launch

    torch.backends.cudnn.allow_tf32 = half
    marks = torch.zeros(2, dtype=torch.int32, device=device) if half else None
    found = {}
    for name, (samples, ins, outs, sides, *how) in shapes.items():
        window = launch.Window(*(tuple(pair) for pair in how))
        x = torch.randn(2, samples, ins, *sides, device=device)
        weight = torch.randn(2, outs, ins, *window.size, device=device)
        y = launch.convolve(x, weight, window, marks)
        dy = torch.randn_like(y)
        got = (
            y,
            launch.input_gradient(dy, weight, window, tuple(sides), marks),
            launch.weight_gradient(x, dy, window, marks),
        )
        wanted = [_alone(*each, window) for each in zip(x, weight, dy, strict=True)]
        found[name] = [
            far_off(one, torch.stack(other))
            for one, other in zip(got, zip(*wanted, strict=True), strict=True)
        ]
    return found


def _alone(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, window: Any) -> Any:
    x, weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = torch.conv2d(x, weight, None, window.stride, window.padding)
    return y.detach(), *torch.autograd.grad(y, (x, weight), dy.double())


def too_large() -> list[list[int]]:
    """Marks of three copies: of values that fit, of a large pixel, weight and gradient; and of a
    large gradient where fp16 is not asked for."""
    from fedast.training.kernels import stacked_conv_launch as launch

    window = launch.Window((3, 3), (1, 1), (1, 1))
    found = []
    for large in ("nothing", "x", "weight", "dy", "exact"):
        torch.backends.cudnn.allow_tf32 = large != "exact"
        x, weight = torch.randn(3, 2, 4, 5, 5), torch.randn(3, 6, 4, 3, 3)
        dy = torch.randn(3, 2, 6, 5, 5)
        if large == "x":
            x[1, 1, 2, 3, 3] = -1e5
        if large == "weight":
            weight[1, 5, 3, 2, 2] = 7e4
        if large in ("dy", "exact"):
            dy[2, 1, 0, 4, 4] = 65.0  # gradients are stored 1,024 times as large
        marks = torch.zeros(3, dtype=torch.int32)
        launch.convolve(x, weight, window, marks)
        launch.input_gradient(dy, weight, window, (5, 5), marks)
        launch.weight_gradient(x, dy, window, marks)
        found.append(marks.tolist())
    return found


def in_shares() -> tuple[float, int, bool]:
    from fedast.training.kernels import stacked_conv_launch as launch

    torch.backends.cudnn.allow_tf32 = False
    window = launch.Window((3, 3), (1, 1), (1, 1))
    x, dy = torch.randn(2, 3, 2, 9, 9), torch.randn(2, 3, 4, 9, 9)
    shares = []
    turned = launch.turned

    def noted(*given: Any, **more: Any) -> torch.Tensor:
        shares.append(more.get("shares", 1))
        return turned(*given, **more)

    launch.turned = noted
    first, second = (launch.weight_gradient(x, dy, window) for _ in range(2))
    weight = torch.zeros(2, 4, 2, 3, 3)
    wanted = torch.stack([_alone(*each, window)[2] for each in zip(x, weight, dy, strict=True)])
    return far_off(first, wanted), max(shares), torch.equal(first, second)


def all_maps(frozen: dict[str, list[str]], sizes: list[int]) -> dict[str, dict[str, float]]:
    return {f"{name}, {n}": mapped(names, n) for name, names in frozen.items() for n in sizes}


def mapped(frozen: list[str], copies: int) -> dict[str, float]:
    from fedast.training.kernels import stacked_conv_launch as launch

    torch.backends.cudnn.allow_tf32 = False
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3, 2), nn.Flatten()
    )
    named = {name: p.detach() for name, p in net.named_parameters()}
    shared = {name: named[name] for name in frozen}
    own = {
        name: torch.stack([p * (1 + 0.2 * copy) for copy in range(copies)])
        for name, p in named.items()
        if name not in frozen
    }
    x = torch.randn(copies, 3, 3, 7, 6)

    def loss(parameters: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        return (
            cast("torch.Tensor", functional_call(net, {**parameters, **shared}, (inputs,)))
            .pow(2)
            .sum()
        )

    calls: dict[str, float] = dict.fromkeys(("convolve", "input_gradient", "weight_gradient"), 0)
    before = {name: getattr(launch, name) for name in calls}
    for name, function in before.items():
        setattr(launch, name, _counted(function, name, calls))
    with StackedConvolutions():
        found = vmap(grad(loss))(own, x)
    for name, function in before.items():
        setattr(launch, name, function)
    wanted = [
        grad(loss)({name: p[copy] for name, p in own.items()}, x[copy]) for copy in range(copies)
    ]
    off = max(far_off(found[name], torch.stack([each[name] for each in wanted])) for name in own)
    return {**calls, "off": off}


def second_derivatives() -> dict[str, float]:
    """Of a penalty on a gradient; and of copies that map over parts of their own."""
    torch.backends.cudnn.allow_tf32 = False
    weight, x = torch.randn(2, 4, 3, 3, 3), torch.randn(2, 2, 3, 6, 6)

    def score(w: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(inputs, w, None, 2, 1).pow(3).sum()

    def penalty(w: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        of_inputs: torch.Tensor = grad(score, argnums=1)(w, inputs)
        return of_inputs.pow(2).sum()

    def inside(w: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        both = torch.stack([w, 2 * w])
        return vmap(score, in_dims=(0, None))(both, inputs).sum()

    found = {}
    for name, function in (("penalty", penalty), ("inside", inside)):
        wanted = torch.stack([grad(function)(w, i) for w, i in zip(weight, x, strict=True)])
        with StackedConvolutions():
            found[name] = far_off(vmap(grad(function))(weight, x), wanted)
    return found


def _counted(function: Any, name: str, calls: dict[str, float]) -> Any:
    def counting(*given: Any) -> Any:
        calls[name] += 1
        return function(*given)

    return counting


def all_compiled(which: list[tuple[str, bool]]) -> list[dict[str, int]]:
    return [compiled(what, half) for what, half in which]


def compiled(what: str, half: bool) -> dict[str, int]:
    from fedast.training.kernels import stacked_conv_kernels as kernels
    from fedast.training.kernels import stacked_conv_launch as launch

    precision = "fp16" if half else "tf32"
    if what == "weights":
        kernel, pointers, even = kernels.weights, ["x", "dy", "parts"], ["samples", "ins"]
        tile = launch.weights_tile(128, 1152, 32, precision)
        fixed: dict[str, float | str] = {}
    else:
        kernel, pointers = kernels.convolve, ["x", "weight", "y"]
        even = ["ins", "outs", "out_pixels"]
        tile = launch.convolve_tile(128, 128, precision)
        fixed = {"BACK": what == "backward", "STRIDED": False, "FLAT": 0}
    options = {name: tile.pop(name) for name in ("num_warps", "num_stages")}
    fixed |= {**tile, "EVEN": True, "PRECISION": "tf32", "scale": 1.0}
    *operands, output = pointers
    types = {**dict.fromkeys(operands, "*fp16" if half else "*fp32"), output: "*fp32"}
    text = assembly(kernel, types, fixed, options, even)
    return {
        "matrix": text.count("wgmma.mma_async"),
        "sixteen": sixteen_bytes(text),
        "single": len(re.findall(r"ld\.global|cp\.async\.ca|st\.global\.b32", text)),
    }


if __name__ == "__main__":
    answer(globals())
