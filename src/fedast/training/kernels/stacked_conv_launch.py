"""Convolutions of many copies, each with its own weights, and their gradients, by GPU kernels.

The matrix units take TF32 only from rows whose terms are contiguous in memory, so tensors are
turned first, which costs little beside the products. The forward pass and the gradient of the
input sum over channels: images have them last there. The gradient of the weights sums over pixels
and samples: images have their samples last there, and a step of the sum is samples of one pixel,
whatever the place in the kernel. No tensor of unfolded windows is made.

In half precision the turned tensors are in fp16, which has as many digits as TF32 but a smaller
range: gradients are scaled up, values that are too large are clipped, and copies in which that
happened are marked. Sums and outputs stay in single precision.

Every sum has a fixed order, so results are the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
import triton

from fedast.training.kernels import stacked_conv_kernels as kernels
from fedast.training.kernels.net import gradient_scale

Tile: TypeAlias = dict[str, int]
"""The size of a program's part (BM, BN), of a step of its sum (BK), and how it is run."""

PROGRAMS = 1024
"""At least this many at a time keep a large GPU busy."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a convolution slides over its images; all are (vertical, horizontal)."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def out(self, height: int, width: int) -> tuple[int, int]:
        """The size of the output."""
        (size_h, size_w), (stride_h, stride_w), (pad_h, pad_w) = (
            self.size, self.stride, self.padding
        )  # fmt: skip
        return (
            (height + 2 * pad_h - size_h) // stride_h + 1,
            (width + 2 * pad_w - size_w) // stride_w + 1,
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        return *self.size, *self.stride, *self.padding


SCALE = gradient_scale(torch.float16)


def _precision(marks: torch.Tensor | None) -> str:
    """Of products: in fp16 if there are marks to be set, but never if TF32 is ruled out."""
    if not torch.backends.cudnn.allow_tf32:
        return "ieee"
    return "tf32" if marks is None else "fp16"


def _of_dot(precision: str) -> str:
    """What Triton is told; operands in fp16 say it themselves."""
    return "ieee" if precision == "ieee" else "tf32"


def _block(size: int, most: int) -> int:
    """The next power of two, at least the 16 that a matrix unit takes."""
    return min(most, max(16, int(triton.next_power_of_2(size))))


def _even(channels_in: int, channels_out: int, tile: Tile) -> bool:
    return channels_in % tile["BK"] == 0 and channels_out % tile["BN"] == 0


def convolve_tile(channels_in: int, channels_out: int, precision: str) -> Tile:
    if precision == "ieee":  # without matrix units
        tile = {"BM": 64, "BN": _block(channels_out, 64), "BK": 16, "num_warps": 4, "num_stages": 2}
    else:
        tile = {"BM": 128, "BN": _block(channels_out, 128)}
        tile |= {"BK": 64 if precision == "fp16" and channels_in > 32 else 32}
        tile |= {"num_warps": 4, "num_stages": 3}
    if channels_in <= 16:
        tile["BK"] = 16 if channels_in > 4 else 32
    return tile


def weights_tile(channels_out: int, columns: int, samples: int, precision: str) -> Tile:
    """For a gradient of ``channels_out`` rows; a step must divide the number of samples."""
    whole = 32 if samples % 32 == 0 else 16
    if precision == "ieee":
        return {
            "BM": _block(channels_out, 64), "BN": _block(columns, 64), "BK": 16,
            "num_warps": 4, "num_stages": 2,
        }  # fmt: skip
    tile = {"BM": _block(channels_out, 128), "BN": _block(columns, 128), "BK": whole}
    return tile | {"num_warps": 4, "num_stages": 3}


def turned(
    x: torch.Tensor,
    rows: int,
    columns: int,
    wide: int = 0,
    shares: int = 1,
    marks: torch.Tensor | None = None,
    scale: float = 1.0,
) -> torch.Tensor:
    """Matrices of rows x columns, one after another in memory, transposed, scaled, and filled up
    with zeros to ``wide`` rows before; those of several shares are summed. With ``marks``, a copy's
    each, in fp16."""
    wide = max(rows, wide)
    batch = x.numel() // (shares * rows * columns)
    y = x.new_empty(batch, columns, wide, dtype=x.dtype if marks is None else torch.float16)
    narrow, short = _block(columns, 64), _block(wide, 64)
    tiles = triton.cdiv(columns, narrow)
    kernels.turn[(batch * tiles, triton.cdiv(wide, short))](
        x, y, y if marks is None else marks, batch, rows, columns, wide, shares, tiles,
        batch if marks is None else batch // len(marks), scale,
        LIMIT=marks is not None, BR=short, BC=narrow,
    )  # fmt: skip
    return y


def _last(
    x: torch.Tensor,
    channels: int,
    pixels: int,
    marks: torch.Tensor | None,
    scale: float = 1.0,
) -> torch.Tensor:
    """Channels after pixels, ready for a product."""
    if marks is None and (channels == 1 or pixels == 1):
        return x
    return turned(x, channels, pixels, marks=marks, scale=scale)


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    window: Window,
    marks: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """(copy, sample, channel, height, width) and (copy, out, in, height, width) to the output."""
    copies, samples, ins, height, width = x.shape
    outs, taps = weight.shape[1], weight[0, 0, 0].numel()
    out_h, out_w = window.out(height, width)
    precision = _precision(marks)
    marks = marks if precision == "fp16" else None
    tile = tile or convolve_tile(ins, outs, precision)
    y = x.new_empty(copies, samples, outs, out_h, out_w)
    programs = triton.cdiv(samples * out_h * out_w, tile["BM"]) * triton.cdiv(outs, tile["BN"])
    kernels.convolve[(programs, copies, 1)](
        _last(x, ins, height * width, marks), _last(weight, ins, taps, marks), y,
        samples, height, width, ins, out_h * out_w, outs, out_w, *window.numbers, 1.0,
        BACK=False, STRIDED=False, FLAT=ins if ins < 16 and taps > 1 else 0,
        EVEN=_even(ins, outs, tile), PRECISION=_of_dot(precision), **tile,
    )  # fmt: skip
    return y


def input_gradient(
    dy: torch.Tensor,
    weight: torch.Tensor,
    window: Window,
    shape: tuple[int, int],
    marks: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """``shape``: height and width of the input."""
    copies, samples, outs, out_h, out_w = dy.shape
    ins, taps = weight.shape[2], weight[0, 0, 0].numel()
    height, width = shape
    rows, columns = (
        triton.cdiv(side, step) for side, step in zip(shape, window.stride, strict=True)
    )
    precision = _precision(marks)
    marks = marks if precision == "fp16" else None
    scale = 1.0 if marks is None else SCALE
    tile = tile or convolve_tile(outs, ins, precision)
    # With a stride, pixels that the convolution treats alike are together first: stores to every
    # other pixel would take four times as long as all the rest.
    (down, along), shape_of_all = window.stride, (copies, samples, ins, rows, columns)
    dx = dy.new_empty(down * along, *shape_of_all)
    programs = triton.cdiv(samples * rows * columns, tile["BM"]) * triton.cdiv(ins, tile["BN"])
    kernels.convolve[(programs, copies, down * along)](
        turned(dy, outs, out_h * out_w, marks=marks, scale=scale),
        turned(weight, outs, ins * taps, marks=marks), dx, samples, out_h, out_w, outs,
        rows * columns, ins, columns, *window.numbers, 1.0 / scale,
        BACK=True, STRIDED=max(window.stride) > 1, FLAT=0,
        EVEN=_even(outs, ins, tile), PRECISION=_of_dot(precision), **tile,
    )  # fmt: skip
    if down * along == 1:
        return dx[0]
    mixed = dx.view(down, along, *shape_of_all).permute(2, 3, 4, 5, 0, 6, 1)
    whole = mixed.reshape(copies, samples, ins, rows * down, columns * along)
    return whole[..., :height, :width]


def weight_gradient(
    x: torch.Tensor,
    dy: torch.Tensor,
    window: Window,
    marks: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> torch.Tensor:
    copies, samples, ins, height, width = x.shape
    outs, out_h, out_w = dy.shape[2:]
    taps = window.size[0] * window.size[1]
    filled = triton.cdiv(samples, 16) * 16
    precision = _precision(marks)
    marks = marks if precision == "fp16" else None
    scale = 1.0 if marks is None else SCALE
    tile = tile or weights_tile(outs, taps * ins, filled, precision)
    programs = triton.cdiv(outs, tile["BM"]) * triton.cdiv(taps * ins, tile["BN"])
    steps = out_h * out_w * filled // tile["BK"]
    # Enough programs to fill a large GPU, but none with few steps to sum.
    shares = max(1, min(triton.cdiv(PROGRAMS, programs * copies), steps // 16))
    share_steps = triton.cdiv(steps, shares)
    shares = triton.cdiv(steps, share_steps)
    parts = x.new_empty(shares, copies, outs, taps, ins)
    kernels.weights[(programs, copies, shares)](
        turned(x, samples, ins * height * width, filled, marks=marks),
        turned(dy, samples, outs * out_h * out_w, filled, marks=marks, scale=scale),
        parts, filled, height, width, ins, out_h, out_w, outs, *window.numbers, share_steps,
        1.0 / scale, EVEN=outs % tile["BM"] == 0, PRECISION=_of_dot(precision), **tile,
    )  # fmt: skip
    found = parts if shares == 1 and taps == 1 else turned(parts, taps, ins, shares=shares)
    return found.view(copies, outs, ins, *window.size)
