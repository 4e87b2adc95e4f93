"""Convolution, ReLU and 2x2 max pooling of all copies in one kernel, and the backward pass.

Images have their channels last, so that a kernel row's pixels are contiguous in
memory, and channels are padded to multiples of four (with zeros, which stay
zeros), so that several are read at a time. Images of few channels are unrolled
first: to each pixel belongs all that a column of the kernel sees from there down, so
that the kernel is one pixel high and has that many channels. A program makes a
tile of outputs of one copy: rows are pixels, including all four of a pooling window,
columns are channels. Only the pooled values, and which of the four pixels each came
from, are written; a window whose largest value is not positive is marked as dead.

The backward pass spreads the gradient over the pixels again. The gradient of the
images is made of the pixels that each of them has a part in, and that of the weights
is a product of images and gradient. The first block needs only the latter, which
takes the windows' gradient as it is.

In half precision, activations, gradients and a copy of the weights are stored
in it; sums and the weights that are stepped stay in single precision. fp16 has
as many digits as TF32 but a smaller range, so gradients are stored scaled up and
values that are too large are clipped; a copy in which that happened is marked.
"""

from __future__ import annotations

from typing import Any, final

import torch
import triton
from torch import nn

from fedast.training.kernels import convolution_kernels as kernels
from fedast.training.kernels import hopper
from fedast.training.kernels.net import Descent, Precision, gradient_scale

CONVOLVE: dict[str, int] = {"BM": 128, "BK": 64, "num_warps": 4, "num_stages": 3}
CONVOLVE_SHORT: dict[str, int] = {"BM": 128, "BK": 32, "num_warps": 4, "num_stages": 3}
CONVOLVE_UNROLLED: dict[str, int] = {"BM": 256, "BK": 16, "num_warps": 4, "num_stages": 4}
IMAGES: dict[str, int] = {"BM": 128, "BK": 64, "num_warps": 4, "num_stages": 3}
WEIGHTS: dict[str, int] = {"BM": 64, "BK": 128, "num_warps": 4, "num_stages": 3}
FIRST_WEIGHTS: dict[str, int] = {"BM": 16, "BK": 128, "num_warps": 4, "num_stages": 3}
"""Tiles, as measured on an H200 with the nets of the paper."""

PROGRAMS = 512
"""At least this many at a time keep a large GPU busy."""

FEW = 4
"""Images of so many channels are unrolled."""

_LARGEST = torch.finfo(torch.float16).max

_STORED = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def _block(size: int) -> int:
    """The next power of two, at least the 16 that a matrix unit takes."""
    return max(16, int(triton.next_power_of_2(size)))


def _large(x: torch.Tensor) -> bool:
    """Whether a place within one copy does not fit into 32 bits."""
    return x[0].numel() >= 1 << 31


def _padded(channels: int, to: int) -> int:
    return int(triton.cdiv(channels, to)) * to


@final
class _Block:
    """One convolution with its ReLU and pooling."""

    def __init__(
        self,
        layer: nn.Conv2d,
        saturated: torch.Tensor,
        descent: Descent,
        precision: Precision,
        *,
        first: bool,
        last: bool,
    ) -> None:
        """``saturated`` has a mark for each copy, which is set when a value is clipped."""
        copies = len(saturated)
        self._saturated = saturated
        self._keep = 1.0 - descent.rate * descent.decay
        self._copies = copies
        size = int(layer.kernel_size[0])
        self._given = layer.weight.shape
        self.unrolled = first and layer.in_channels <= FEW
        self.size = size
        self._high = 1 if self.unrolled else size
        self._channels = layer.in_channels * (size if self.unrolled else 1)
        self.ins = _padded(self._channels, 8 if self.unrolled else 4)
        self.outs = _padded(layer.out_channels, 4)
        self._precision = "ieee" if precision == "fp32" else "tf32"
        self._limit = precision == "fp16"
        self.stored = _STORED[precision]
        self.gradient_scale = gradient_scale(self.stored)
        """Gradients between blocks are multiplied by this."""
        self._rate = descent.rate / self.gradient_scale
        self._first, self._last = first, last
        new = layer.weight.new_zeros
        shape = (copies, self.outs, self._high, self.size, self.ins)
        self._weight = new(shape)
        self._bias = new((copies, self.outs))
        half = self.stored != self._weight.dtype
        self._copy = new(shape, dtype=self.stored) if half else self._weight
        # In single precision, matrix units take the weights in one order only.
        turn = not half and not first
        self._turned = new((copies, self.ins, *shape[2:4], self.outs)) if turn else None
        device = layer.weight.device
        ordered = self._limit and hopper.has(self.ins, self.outs, device, unrolled=self.unrolled)
        self._ordered = torch.zeros_like(self._copy) if ordered else None
        """A copy in the order of Hopper's kernels."""
        self._x = self._y = self._place = self._weight
        self._raw: torch.Tensor | None = None
        """Images that are unrolled only when their gradients are made."""

    def load(self, given: list[torch.Tensor]) -> None:
        order = (0, 1, 4, 3, 2) if self.unrolled else (0, 1, 3, 4, 2)
        self._used()[:] = given[0].permute(order).reshape(self._used().shape)
        self._bias[:, : self._given[0]] = given[1]
        bounded = self._weight
        if self._limit:
            bounded = bounded.clamp(-_LARGEST, _LARGEST)
            self._saturated |= (self._weight.abs() > _LARGEST).flatten(1).any(dim=1)
        self._copy.copy_(bounded)
        if self._turned is not None:
            self._turned.copy_(bounded.permute(0, 4, 2, 3, 1))
        if self._ordered is not None:
            self._ordered.copy_(hopper.ordered(bounded.flatten(2, 3)).view_as(bounded))

    def read(self) -> list[torch.Tensor]:
        outs, ins = self._given[:2]
        weight = self._used()
        if self.unrolled:  # from (copy, out, 1, column, row and channel)
            weight = torch.unflatten(weight[:, :, 0], 3, (self.size, ins)).transpose(2, 3)
        return [weight.permute(0, 1, 4, 2, 3), self._bias[:, :outs]]

    def _used(self) -> torch.Tensor:
        """The weights without what fills them up."""
        return self._weight[:, : self._given[0], :, :, : self._channels]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(copy, sample, height, width, channel) to the same, pooled; images that are to be
        unrolled come with their channel first."""
        samples = x.shape[1]
        height, width = x.shape[3:5] if self.unrolled else x.shape[2:4]
        pooled_h, pooled_w = ((side - self.size + 1) // 2 for side in (height, width))
        self._y = x.new_empty(
            (self._copies, samples, pooled_h, pooled_w, self.outs),
            dtype=torch.float32 if self._last else self.stored,
        )
        self._place = torch.empty_like(self._y, dtype=torch.uint8)
        if self._on_hopper(x):
            return self._y
        x = self._x = self._unrolled(x) if self.unrolled else x
        k = self._high * self.size * self.ins
        tile = CONVOLVE if k > 512 else CONVOLVE_SHORT if k > 128 else CONVOLVE_UNROLLED
        rows = 4 * samples * pooled_h * pooled_w
        kernels.convolve[(triton.cdiv(rows, tile["BM"]), self._copies)](
            x, self._copy, self._bias, self._y, self._place, self._saturated, samples,
            OUT_H=pooled_h, OUT_W=pooled_w, BN=_block(self.outs), PRECISION=self._precision,
            LIMIT=self._limit, LARGE=_large(x), **self._shape(), **tile,
        )  # fmt: skip
        return self._y

    def _unrolled(self, x: torch.Tensor) -> torch.Tensor:
        """From each pixel down, what a column of the kernel sees."""
        copies, samples, channels, height, width = x.shape
        x = x.contiguous()
        out_h = height - self.size + 1
        columns = x.new_empty((copies, samples, out_h, width, self.ins), dtype=self.stored)
        pixels, tile = columns.numel() // self.ins, 256
        kernels.unroll[(triton.cdiv(pixels, tile),)](
            x, columns, pixels, channels * height * width, height * width,
            OUT_H=out_h, WIDTH=width, CHANNELS=channels, SIZE=self.size, IN=self.ins,
            BM=tile, BN=_block(self.ins),
        )  # fmt: skip
        return columns

    def _on_hopper(self, x: torch.Tensor) -> bool:
        """Have the outputs made by a kernel for such a GPU, if there is one for their shape."""
        if self._ordered is None:
            return False
        x = x.to(self.stored).contiguous()
        done = hopper.try_convolve(
            self.size, x, self._ordered, self._bias, self._y, self._place, self._saturated,
            raw=self.unrolled,
        )  # fmt: skip
        if self.unrolled:
            self._raw = x if done else None
        else:
            self._x = x
        return done

    def backward(self, dy: torch.Tensor) -> torch.Tensor:
        """The gradient of the images, unless they are the net's own inputs; gradients come and go
        scaled up, except that the last block gets its own unscaled."""
        scale = self.gradient_scale if self._last else 1.0
        if self._first:
            self._descend(*self._first_gradients(dy, scale))
            return dy
        samples, pooled_h, pooled_w = dy.shape[1:4]
        block = 32
        wide = self._x.new_empty((self._copies, samples, 2 * pooled_h, 2 * pooled_w, self.outs))
        tiles = triton.cdiv(samples * pooled_h * pooled_w, block)
        sums = self._bias.new_empty(self._copies, tiles, self.outs)
        kernels.spread[(tiles, self._copies)](
            dy, self._place, wide, sums, self._saturated, scale, samples,
            OUT_H=pooled_h, OUT_W=pooled_w, OUT=self.outs, BM=block, BN=_block(self.outs),
            LIMIT=self._limit, LARGE=_large(wide),
        )  # fmt: skip
        dx = self._images(wide)
        self._descend(self._gradients(wide), sums)
        return dx

    def forget(self) -> None:
        self._x = self._y = self._place = self._weight
        self._raw = None

    def _shape(self) -> dict[str, Any]:
        return {
            "HEIGHT": self._x.shape[2], "WIDTH": self._x.shape[3], "IN": self.ins,
            "OUT": self.outs, "HIGH": self._high, "BROAD": self.size,
        }  # fmt: skip

    def _images(self, wide: torch.Tensor) -> torch.Tensor:
        samples, height, width = self._x.shape[1:4]
        dx = torch.empty_like(self._x)
        tile = IMAGES | {"BK": min(IMAGES["BK"], _block(self.outs))}
        rows = tile.pop("BM")
        # A patch of so many samples that its pixels are few: then many need the same of the kernel.
        together = min(32, max(4, int(triton.next_power_of_2(samples))))
        tall = 1 << ((rows // together).bit_length() - 1) // 2
        broad = rows // together // tall
        patches = triton.cdiv(height, tall) * triton.cdiv(width, broad)
        kernels.images[(patches * triton.cdiv(samples, together), self._copies)](
            wide, self._copy if self._turned is None else self._turned, dx, self._saturated,
            samples, OUT_H=wide.shape[2], OUT_W=wide.shape[3], TURNED=self._turned is not None,
            BS=together, BH=tall, BW=broad, BN=_block(self.ins), PRECISION=self._precision,
            LIMIT=self._limit, LARGE=_large(wide) or _large(dx), **self._shape(), **tile,
        )  # fmt: skip
        return dx

    def _gradients(self, wide: torch.Tensor) -> torch.Tensor:
        """The gradients of the weights, in parts that are to be summed: (copy, part, ...)."""
        if self._ordered is not None:
            parts = hopper.try_weights(self.size, self._x, wide)
            if parts is not None:
                return parts
        tile, grid, share, parts = self._shares(WEIGHTS, wide[0, ..., 0].numel())
        kernels.weights[grid](
            self._x, wide, parts, wide.shape[1], share, OUT_H=wide.shape[2], OUT_W=wide.shape[3],
            BN=_block(self.outs), PRECISION=self._precision,
            LARGE=_large(self._x) or _large(wide), **self._shape(), **tile,
        )  # fmt: skip
        return parts

    def _first_gradients(self, dy: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of a first block, with those of the bias."""
        if self._raw is not None:
            found = None
            if not self._last:
                found = hopper.try_first_weights(self.size, self._raw, dy, self._place)
            if found is not None:
                return found
            self._x, self._raw = self._unrolled(self._raw), None
        tile, grid, share, parts = self._shares(FIRST_WEIGHTS, dy[0, ..., 0].numel())
        sums = self._bias.new_empty(*parts.shape[:2], self.outs)
        kernels.first_weights[grid](
            self._x, dy, self._place, parts, sums, self._saturated, scale, dy.shape[1], share,
            OUT_H=dy.shape[2], OUT_W=dy.shape[3], BN=_block(self.outs), PRECISION=self._precision,
            LIMIT=self._limit, LARGE=_large(self._x), **self._shape(), **tile,
        )  # fmt: skip
        return parts, sums

    def _shares(
        self, tile: dict[str, int], rows: int
    ) -> tuple[dict[str, int], tuple[int, int, int], int, torch.Tensor]:
        """Shares of the rows for programs that sum over them: tile, grid, rows of a share, and
        where to put the sums."""
        k = self._weight[0, 0].numel()
        tile = tile | {"BK": min(tile["BK"], _block(k))}
        tiles = triton.cdiv(k, tile["BK"])
        # Enough programs to fill a large GPU, but none with less than a few tiles to sum.
        shares = min(triton.cdiv(PROGRAMS, tiles * self._copies), triton.cdiv(rows, 4 * tile["BM"]))
        share = triton.cdiv(rows, shares * tile["BM"]) * tile["BM"]
        shares = triton.cdiv(rows, share)
        parts = self._weight.new_empty(self._copies, shares, *self._weight.shape[1:])
        return tile, (tiles, self._copies, shares), share, parts

    def _descend(self, parts: torch.Tensor, sums: torch.Tensor) -> None:
        numbers = self._keep, self._rate, parts.shape[1], sums.shape[1]
        taps = self._high * self.size
        if self._ordered is not None:
            kernels.descend_ordered[(taps, self._copies)](
                parts, sums, self._weight, self._bias, self._copy, self._ordered,
                self._saturated, *numbers, IN=self.ins, OUT=self.outs, TAPS=taps,
            )  # fmt: skip
            return
        count = self._weight[0].numel()
        kernels.descend[(triton.cdiv(count, 1024), self._copies)](
            parts, sums, self._weight, self._bias, self._copy,
            self._copy if self._turned is None else self._turned, self._saturated, *numbers,
            IN=self.ins, OUT=self.outs, TAPS=taps,
            HALF=self._copy is not self._weight, TURN=self._turned is not None,
            LIMIT=self._limit, BLOCK=1024, BN=_block(self.outs),
        )  # fmt: skip


@final
class ConvPools:
    """Blocks of convolution, ReLU and 2x2 max pooling, one after another, at the start of a net:
    nobody wants the gradient of their inputs."""

    def __init__(
        self,
        layers: list[nn.Conv2d],
        copies: int,
        descent: Descent,
        precision: Precision,
        *,
        channels_last: bool = False,
    ) -> None:
        """``channels_last``: so they stay, in the outputs and in what comes back for them."""
        marks = layers[0].weight.new_zeros(copies, dtype=torch.int32)
        self.saturated = marks if precision == "fp16" else None
        self._blocks = [
            _Block(
                layer, marks, descent, precision,
                first=layer is layers[0], last=layer is layers[-1],
            )
            for layer in layers
        ]  # fmt: skip
        self._channels_last = channels_last
        self._outs = layers[-1].out_channels
        self.parameters = 2 * len(layers)

    @property
    def takes(self) -> torch.dtype:
        """The type that inputs are turned into."""
        return self._blocks[0].stored

    def load(self, given: list[torch.Tensor]) -> None:
        if self.saturated is not None:
            self.saturated.zero_()
        for number, block in enumerate(self._blocks):
            block.load(given[2 * number : 2 * number + 2])

    def read(self) -> list[torch.Tensor]:
        return [part for block in self._blocks for part in block.read()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self._blocks[0]
        if not first.unrolled:
            x = _channels_last(x, first.ins, first.stored)
        for block in self._blocks:
            x = block.forward(x)
        x = x[..., : self._outs]
        return x if self._channels_last else x.permute(0, 1, 4, 2, 3).contiguous()

    def backward(self, dy: torch.Tensor, wants_dx: bool) -> torch.Tensor:
        assert not wants_dx
        wide = self._blocks[-1].outs
        if self._channels_last and wide == self._outs:
            dy = dy.contiguous()
        else:
            dy = dy.permute(0, 1, 4, 2, 3) if self._channels_last else dy
            dy = _channels_last(dy, wide, dy.dtype)
        for block in reversed(self._blocks):
            dy = block.backward(dy)
        return dy

    def forget(self) -> None:
        for block in self._blocks:
            block.forget()


def _channels_last(x: torch.Tensor, wide: int, stored: torch.dtype) -> torch.Tensor:
    """(copy, sample, channel, height, width) to channels last, filled up to ``wide``."""
    channels, last = x.shape[2], x.permute(0, 1, 3, 4, 2)
    shape = last.shape[:-1]
    y = (x.new_empty if wide == channels else x.new_zeros)((*shape, wide), dtype=stored)
    y[..., :channels] = last
    return y
