"""The kernels for Hopper against torch in double precision; see ``kernels/hopper.cu``."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton")

from fedast.training.kernels import hopper
from tests.training.interpreter import answer, far_off, run_interpreted

SHAPES = {
    "CIFAR-10's second": hopper.Shape(14, 14, 64, 5, 10, 10),
    "higher than wide": hopper.Shape(12, 10, 64, 3, 10, 8),
    "an odd row and column are left out": hopper.Shape(9, 9, 64, 3, 6, 6),
    "one pixel": hopper.Shape(6, 6, 64, 1, 6, 6),
    "wide": hopper.Shape(8, 24, 64, 5, 4, 20),
}
FIRST = {
    "CIFAR-10's first": hopper.Shape(32, 32, 3, 5, 28, 28),
    "grey": hopper.Shape(20, 24, 1, 16, 4, 8),
    "an odd row and column are left out": hopper.Shape(17, 24, 3, 4, 14, 20),
    "four channels": hopper.Shape(14, 16, 4, 3, 12, 14),
}
CUDA = torch.device("cuda")
interpreted = partial(run_interpreted, __file__)
COPIES_AND_SAMPLES = pytest.mark.parametrize(("copies", "samples"), [(3, 32), (2, 13), (1, 2)])


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).half().to(CUDA)


def _convolved(shape: hopper.Shape, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """(sample, channel, height, width) and (out, channel, high, broad) to outputs, in doubles."""
    return functional.conv2d(x.double(), weight.double())[:, :, : shape.out_h, : shape.out_w]


def _check_outputs(
    shape: hopper.Shape,
    wanted: list[torch.Tensor],
    y: torch.Tensor,
    place: torch.Tensor,
) -> None:
    """Against what comes before the pooling of each copy."""
    for copy, wide in enumerate(wanted):
        pooled, where = functional.max_pool2d(wide, 2, return_indices=True)
        pooled, where = pooled.permute(0, 2, 3, 1), where.permute(0, 2, 3, 1)
        torch.testing.assert_close(y[copy].double(), pooled.relu(), rtol=2e-3, atol=2e-3)
        corner = where // shape.out_w % 2 * 2 + where % 2
        corner[pooled <= 0] = 4
        assert (place[copy] == corner).double().mean() > 0.999  # but for rounding


def _blank(shape: hopper.Shape, copies: int, samples: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(
        (copies, samples, shape.out_h // 2, shape.out_w // 2, 64), -1.0, device=CUDA, dtype=dtype
    )


@pytest.mark.cuda
@pytest.mark.parametrize("name", SHAPES)
@COPIES_AND_SAMPLES
def test_outputs(name: str, copies: int, samples: int) -> None:
    shape = SHAPES[name]
    assert hopper.convolves(shape)
    x = _random(copies, samples, 64, shape.height, shape.width)
    weight = 0.05 * _random(copies, 64, 64, shape.size, shape.size, seed=1)
    bias = _random(copies, 64, seed=2).float()
    wanted = [
        _convolved(shape, x[n], weight[n]) + bias[n].double()[:, None, None] for n in range(copies)
    ]
    last = x.permute(0, 1, 3, 4, 2).contiguous()
    by = hopper.ordered(weight.permute(0, 1, 3, 4, 2).flatten(2, 3))
    for dtype in (torch.float32, torch.float16):
        y = _blank(shape, copies, samples, dtype)
        place = torch.full_like(y, 9, dtype=torch.uint8)
        saturated = torch.zeros(copies, dtype=torch.int32, device=CUDA)
        hopper.convolve(shape, last, by, bias, y, place, saturated)
        _check_outputs(shape, wanted, y, place)
        assert not saturated.any()


@pytest.mark.cuda
@pytest.mark.parametrize("name", FIRST)
@COPIES_AND_SAMPLES
def test_outputs_of_a_first_layer(name: str, copies: int, samples: int) -> None:
    shape = FIRST[name]
    assert hopper.convolves_first(shape)
    x = _random(copies, samples, shape.ins, shape.height, shape.width)
    weight = 0.3 * _random(copies, 64, shape.ins, shape.size, shape.size, seed=1)
    bias = _random(copies, 64, seed=2).float()
    wanted = [
        _convolved(shape, x[n], weight[n]) + bias[n].double()[:, None, None] for n in range(copies)
    ]
    columns = weight.new_zeros(copies, 64, shape.size, 16)  # for each, its rows and channels
    unrolled = weight.permute(0, 1, 4, 3, 2).flatten(3)
    columns[..., : unrolled.shape[3]] = unrolled
    for dtype in (torch.float32, torch.float16):
        y = _blank(shape, copies, samples, dtype)
        place = torch.full_like(y, 9, dtype=torch.uint8)
        saturated = torch.zeros(copies, dtype=torch.int32, device=CUDA)
        hopper.convolve_first(shape, x, hopper.ordered(columns), bias, y, place, saturated)
        _check_outputs(shape, wanted, y, place)
        assert not saturated.any()


@pytest.mark.cuda
def test_large_values_are_clipped_and_not_a_number_stays() -> None:
    shape = SHAPES["CIFAR-10's second"]
    x = _random(2, 8, 14, 14, 64).abs() + 1
    weight = torch.full((2, 64, 25, 64), 30.0, device=CUDA).half()
    weight[0] = 1e-3
    x[0, 5, 3, 3, 0] = float("nan")
    y = torch.zeros(2, 8, 5, 5, 64, device=CUDA)
    place = torch.zeros_like(y, dtype=torch.uint8)
    saturated = torch.zeros(2, dtype=torch.int32, device=CUDA)
    bias = torch.zeros(2, 64, device=CUDA)
    hopper.convolve(shape, x, hopper.ordered(weight), bias, y, place, saturated)
    assert saturated.tolist() == [0, 1]
    assert (y[1] == 65504).all()
    assert y[0, 5].isnan().any()
    assert not y[0, :5].isnan().any()
    assert (place[y.isnan()] == 4).all()


@pytest.mark.cuda
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "wide"])
@COPIES_AND_SAMPLES
def test_gradients_of_weights(name: str, copies: int, samples: int) -> None:
    shape = SHAPES[name]
    assert hopper.sums_weights(shape)
    x = _random(copies, samples, 64, shape.height, shape.width)
    weight = 0.05 * _random(copies, 64, 64, shape.size, shape.size, seed=1)
    wide = _random(copies, samples, 64, shape.out_h, shape.out_w, seed=2)
    shares = hopper.shares(shape, copies, samples)
    parts = torch.full((copies, shares, 64, shape.size, shape.size, 64), 7.0, device=CUDA)
    last, gradient = (each.permute(0, 1, 3, 4, 2).contiguous() for each in (x, wide))
    hopper.weights(shape, last, gradient, parts)
    for copy in range(copies):
        kernel = weight[copy].double().requires_grad_()
        y = _convolved(shape, x[copy], kernel)
        (wanted,) = torch.autograd.grad(y, kernel, wide[copy].double())
        found = parts[copy].sum(dim=0).double().permute(0, 3, 1, 2)
        assert (found - wanted).norm() <= 1e-4 * wanted.norm()


@pytest.mark.cuda
@pytest.mark.parametrize("name", [name for name, shape in FIRST.items() if name != "grey"])
@COPIES_AND_SAMPLES
def test_gradients_of_a_first_layer(name: str, copies: int, samples: int) -> None:
    shape = FIRST[name]
    assert hopper.sums_first_weights(shape)
    x = _random(copies, samples, shape.ins, shape.height, shape.width)
    weight = 0.3 * _random(copies, 64, shape.ins, shape.size, shape.size, seed=1)
    dy = _random(copies, samples, shape.out_h // 2, shape.out_w // 2, 64, seed=2)
    generator = torch.Generator().manual_seed(3)
    place = torch.randint(5, dy.shape, generator=generator).to(CUDA, torch.uint8)
    parts, sums = hopper.first_weights(shape, x, dy, place)
    found = parts.sum(dim=1)[:, :, 0].double()  # (copy, out, column, row and channel)
    assert not found[..., shape.ins * shape.size :].any()
    found = torch.unflatten(found[..., : shape.ins * shape.size], 3, (shape.size, shape.ins))
    for copy in range(copies):
        windows = torch.zeros(samples, 2, 2, *dy.shape[2:], device=CUDA, dtype=torch.float64)
        for corner in range(4):
            windows[:, corner // 2, corner % 2] = dy[copy] * (place[copy] == corner)
        wide = windows.permute(0, 5, 3, 1, 4, 2).reshape(samples, 64, shape.out_h, shape.out_w)
        kernel = weight[copy].double().requires_grad_()
        (wanted,) = torch.autograd.grad(_convolved(shape, x[copy], kernel), kernel, wide)
        off = found[copy].permute(0, 3, 2, 1) - wanted
        assert off.norm() <= 1e-4 * wanted.norm()
        total = wide.sum(dim=(0, 2, 3))
        assert (sums[copy].sum(dim=0) - total).norm() <= 1e-4 * total.norm()


@pytest.mark.parametrize(("taps", "k"), [(5, 16), (4, 64)])
def test_a_step_and_the_order_of_weights(taps: int, k: int) -> None:
    for name, off in interpreted("a_step", taps, k).items():
        assert off < 1e-6, name


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("name", ["convolve", "first", "weights", "first_weights"])
def test_it_compiles_to_what_is_fast(name: str, tmp_path: Path) -> None:
    """Sums stay in registers, and products do not wait for each other."""
    shape = FIRST["CIFAR-10's first"] if "first" in name else SHAPES["CIFAR-10's second"]
    (tmp_path / "kernel.cu").write_text(hopper.source_for(name, shape, torch.float16))
    done = subprocess.run(
        ["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas", "-v", "kernel.cu"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Potential Performance Loss" not in done.stderr
    spilled = int(done.stderr.split(" bytes spill stores")[0].rsplit(maxsplit=1)[-1])
    assert spilled <= 32, done.stderr


def a_step(taps: int, k: int) -> dict[str, float]:
    """One step of the weights, in Triton's interpreter: how far off each result is."""
    from fedast.training.kernels import convolution_kernels as kernels

    copies, shares, keep, rate = 2, 3, 0.9, 0.1
    parts, sums = torch.randn(copies, shares, 64, taps, k), torch.randn(copies, 5, 64)
    weight, bias = torch.randn(copies, 64, taps, k), torch.randn(copies, 64)
    stepped = weight * keep - parts.sum(dim=1) * rate
    wanted = {
        "weight": stepped,
        "bias": bias * keep - sums.sum(dim=1) * rate,
        "stored": stepped.half(),
        "ordered": hopper.ordered(stepped.half()),
    }
    stored = torch.zeros_like(weight, dtype=torch.float16)
    ordered = torch.zeros_like(wanted["ordered"])
    saturated = torch.zeros(copies, dtype=torch.int32)
    kernels.descend_ordered[(taps, copies)](
        parts, sums, weight, bias, stored, ordered, saturated, keep, rate, shares, 5,
        IN=k, OUT=64, TAPS=taps,
    )  # fmt: skip
    found = {"weight": weight, "bias": bias, "stored": stored, "ordered": ordered}
    return {name: far_off(found[name], wanted[name]) for name in wanted}


if __name__ == "__main__":
    answer(globals())
