"""Convolutions in half precision for Hopper GPUs: the CUDA C++ of ``hopper.cu`` and its fellows.

They are for 64 channels of outputs, as the CIFAR-10 net has them; everything else, and every other
GPU, takes the Triton kernels, which they agree with.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from functools import cache

import torch

from fedast.training.kernels.driver import Kernel, TensorMap, source_of, tensor_map

_log = logging.getLogger(__name__)

OUT = 64
"""Channels of outputs: the rows of a matrix unit's product."""
_PIXEL = 8 * OUT * 2
"""Bytes of a pixel of eight images."""
_MEMORY = 227 * 1024
"""Shared memory that one block may have; two that run together have half of it each."""
_SUMS = 168
"""Sums that a thread has room for in its 255 registers."""
_FIRST_SUMS = 132
"""The same where three blocks run together, with the weights that it holds."""
_ROWS = 4
"""At most so many rows of outputs are made by a block."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a convolution without padding: ``out_h`` x ``out_w`` are the outputs that are pooled."""

    height: int
    width: int
    ins: int
    size: int
    """Of the kernel, either way."""
    out_h: int
    out_w: int

    @property
    def rows(self) -> int:
        """Of outputs that a block makes: whole pairs."""
        return min(_SUMS // (4 * self.out_w) // 2 * 2, self.out_h, _ROWS)


def has(ins: int, outs: int, device: torch.device, *, unrolled: bool) -> bool:
    """Whether there are kernels for so many channels on this GPU. ``unrolled``: of a first layer,
    where they are all that a column of the kernel sees."""
    return (
        outs == OUT
        and ins == (16 if unrolled else OUT)
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device) == (9, 0)
        and _works(device.index or 0)
    )


@cache
def _works(device: int) -> bool:
    """Whether this torch can compile CUDA C++."""
    try:
        with torch.cuda.device(device):
            mark = torch.zeros(1, dtype=torch.int32, device="cuda")
            source = 'extern "C" __global__ void probe(int* mark) { *mark = 1; }'
            Kernel(source, "probe", 1, 0)(1, [mark])
            return bool(mark.item())
    except Exception as problem:  # whatever a torch that does this otherwise raises
        _log.warning("no kernels for Hopper, training is slower: %s", problem)
        return False


def ordered(weight: torch.Tensor) -> torch.Tensor:
    """Weights (copy, row, position, k) in the order in which threads hold them: of a product's 64
    rows and sixteen k, a thread has two rows and two pairs of k."""
    copies, _, taps, k = weight.shape
    split = weight.reshape(copies, 4, 8, 2, taps, k // 16, 2, 4, 2)
    return split.permute(0, 4, 5, 1, 2, 7, 6, 3, 8).reshape(copies, -1)


# --- what a block of a net asks for -----------------------------------------------------------
# Images are (copy, sample, height, width, channel) or, if they are ``raw``, those of a first layer,
# (copy, sample, channel, height, width). Without a kernel for their shape, nothing is done.


def try_convolve(
    size: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    y: torch.Tensor,
    place: torch.Tensor,
    saturated: torch.Tensor,
    *,
    raw: bool,
) -> bool:
    """Pooled outputs, into ``y``, with the place that each came from."""
    shape = _shape(size, x, 2 * y.shape[2], 2 * y.shape[3], raw=raw)
    fits, make = (convolves_first, convolve_first) if raw else (convolves, convolve)
    if not fits(shape):
        return False
    make(shape, x, weight, bias, y, place, saturated)
    return True


def try_weights(size: int, x: torch.Tensor, wide: torch.Tensor) -> torch.Tensor | None:
    """The gradients of the weights, in parts (copy, part, ...), from that of the outputs."""
    shape = _shape(size, x, wide.shape[2], wide.shape[3], raw=False)
    if not sums_weights(shape):
        return None
    copies, samples = x.shape[:2]
    many = shares(shape, copies, samples)
    parts = wide.new_empty(copies, many, OUT, size, size, OUT, dtype=torch.float32)
    weights(shape, x, wide, parts)
    return parts


def try_first_weights(
    size: int, x: torch.Tensor, dy: torch.Tensor, place: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The same of a first layer, with those of the bias, from that of the pooled outputs."""
    shape = _shape(size, x, 2 * dy.shape[2], 2 * dy.shape[3], raw=True)
    return first_weights(shape, x, dy, place) if sums_first_weights(shape) else None


def _shape(size: int, x: torch.Tensor, out_h: int, out_w: int, *, raw: bool) -> Shape:
    one, two, three = x.shape[2:]
    height, width, ins = (two, three, one) if raw else (one, two, three)
    return Shape(height, width, ins, size, out_h, out_w)


# --- a first layer ----------------------------------------------------------------------------


def convolves_first(shape: Shape) -> bool:
    """Whether there is a kernel for a first layer's outputs."""
    return shape.width % 8 == 0 and _strip(shape) >= 8 and _first_memory(shape, 4) <= _MEMORY


def convolve_first(
    shape: Shape,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    y: torch.Tensor,
    place: torch.Tensor,
    saturated: torch.Tensor,
) -> None:
    """``x``: images as they are (copy, sample, channel, height, width)."""
    copies, samples = x.shape[:2]
    kernel = _kernel("first", shape, y.dtype, 128, _first_memory(shape, y.element_size()))
    blocks = copies * -(-samples // 8) * (shape.out_h // _first_rows(shape))
    kernel(blocks, [x, weight, bias, y, place, saturated, samples])


def _strip(shape: Shape) -> int:
    """How many outputs are made side by side: whole pairs."""
    most = (_FIRST_SUMS - 4 * shape.size) // 8
    fit = (n for n in range(most, 0, -1) if n % 2 == 0 and shape.out_w % n == 0)
    return next(fit, 0)


def _first_rows(shape: Shape) -> int:
    """Of outputs that a block makes: half of them, if these are whole pairs."""
    return shape.out_h // 2 if shape.out_h % 4 == 0 else shape.out_h


def _first_memory(shape: Shape, size: int) -> int:
    """``size``: of a pooled value."""
    lines = 2 * 4 * shape.width * 128
    return _raw_memory(shape) + lines + _pooled_memory(2, _strip(shape), size) + 8


def _raw_memory(shape: Shape) -> int:
    return 8 * (shape.ins * (_first_rows(shape) + shape.size - 1) * shape.width * 2 + 16)


def sums_first_weights(shape: Shape) -> bool:
    """Whether there is a kernel for the gradients of a first layer's weights and bias."""
    return (
        shape.width % 8 == 0
        and shape.ins * shape.size < 16
        and _first_weights_memory(shape) <= _MEMORY
    )


def first_weights(
    shape: Shape, x: torch.Tensor, dy: torch.Tensor, place: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients in parts (copy, part, ...), from that of the pooled outputs."""
    copies, samples = x.shape[:2]
    shares = -(-samples // 8) * (shape.out_h // _first_rows(shape))
    parts = dy.new_empty(copies, shares, OUT, 1, shape.size, 16, dtype=torch.float32)
    sums = dy.new_empty(copies, shares, OUT, dtype=torch.float32)
    kernel = _kernel("first_weights", shape, dy.dtype, 128, _first_weights_memory(shape))
    kernel(copies * shares, [x, _rows_of(dy), place, parts, sums, samples])
    return parts, sums


def _first_weights_memory(shape: Shape) -> int:
    return shape.out_w * _PIXEL + 4 * shape.width * 128 + _raw_memory(shape) + 2 * 8


# --- 64 channels of inputs --------------------------------------------------------------------


def convolves(shape: Shape) -> bool:
    """Whether there is a kernel for the outputs."""
    return shape.rows > 0 and _convolve_memory(shape) <= _MEMORY


def convolve(
    shape: Shape,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    y: torch.Tensor,
    place: torch.Tensor,
    saturated: torch.Tensor,
) -> None:
    """``x``: (copy, sample, height, width, channel)."""
    copies, samples = x.shape[:2]
    kernel = _kernel("convolve", shape, y.dtype, 128, _convolve_memory(shape))
    blocks = copies * -(-samples // 8) * -(-shape.out_h // shape.rows)
    kernel(blocks, [_rows_of(x), weight, bias, y, place, saturated, samples])


def _convolve_memory(shape: Shape) -> int:
    pixels = (shape.rows + shape.size - 1) * shape.width * _PIXEL
    return max(pixels, _pooled_memory(shape.rows, shape.out_w, 4)) + 8 * shape.size


def sums_weights(shape: Shape) -> bool:
    """Whether there is a kernel for the gradient of the weights."""
    return shape.size * 32 <= _SUMS and _weights_memory(shape) <= _MEMORY


def weights(shape: Shape, x: torch.Tensor, wide: torch.Tensor, parts: torch.Tensor) -> None:
    """The gradients in parts (copy, part, ...), one for each share of the images."""
    copies, samples = x.shape[:2]
    shares, groups = parts.shape[1], -(-samples // 8)
    kernel = _kernel("weights", shape, parts.dtype, 256, _weights_memory(shape))
    blocks = -(-shape.size // 2) * copies * shares
    share = -(-groups // shares)
    kernel(blocks, [_rows_of(x), _rows_of(wide), parts, samples, copies, share])


def shares(shape: Shape, copies: int, samples: int) -> int:
    """Into how many parts the images are divided, so that there are blocks for all processors."""
    groups = -(-samples // 8)
    wanted = min(groups, max(1, 264 // (shape.size * copies)))
    return -(-groups // -(-groups // wanted))


def _weights_memory(shape: Shape) -> int:
    stages = 3 * (3 * shape.width + 2 * shape.out_w) * _PIXEL + 3 * 8
    return max(stages, shape.size * 32 * 128 * 4)


def _rows_of(x: torch.Tensor) -> TensorMap:
    """Rows of pixels of eight images: [pixel][image][channel]."""
    return tensor_map(x, order=(0, 2, 3, 1, 4), box=(1, 1, x.shape[3], 8, OUT))


# --- their source -----------------------------------------------------------------------------


def _pooled_memory(rows: int, columns: int, size: int) -> int:
    """As ``Pooled`` in the source has it."""
    windows = rows // 2 * (columns // 2) * OUT
    return 8 * (windows * (size + 1) + 32)


def _kernel(name: str, shape: Shape, dtype: torch.dtype, threads: int, memory: int) -> Kernel:
    return _loaded(name, shape, dtype, threads, memory, torch.cuda.current_device())


@cache
def _loaded(
    name: str, shape: Shape, dtype: torch.dtype, threads: int, memory: int, device: int
) -> Kernel:
    """``device``: kernels are loaded for each."""
    return Kernel(source_for(name, shape, dtype), name, threads, memory)


def source_for(name: str, shape: Shape, dtype: torch.dtype) -> str:
    """The source of a kernel for one shape and the type that its results are stored as."""
    defines: dict[str, object] = {key.upper(): value for key, value in asdict(shape).items()}
    columns = {
        "convolve": 8 * shape.out_w,
        "first": 8 * _strip(shape),
        "weights": OUT,
        "first_weights": 8 * shape.size,
    }[name]
    gradient = name.endswith("weights")
    if name != "weights":
        defines["ROWS"] = shape.rows if name == "convolve" else _first_rows(shape)
    if not gradient:
        defines["COLUMNS"] = columns // 8
        defines["VALUE"] = "float" if dtype == torch.float32 else "u16"
    lines = [f"#define {key} {value}" for key, value in defines.items()]
    product = _product(columns, turned=gradient)
    files = ["hopper", *(["hopper_raw"] if name.startswith("first") else []), f"hopper_{name}"]
    return "\n".join([*lines, product, *(source_of(f"{file}.cu") for file in files)])


def _product(columns: int, *, turned: bool) -> str:
    """The function that adds a product of 64 rows and this many columns to a thread's sums.
    ``turned``: consecutive numbers of the second operand are of one row, not of one column."""
    count = columns // 2
    sums = ", ".join(f"%{n}" for n in range(count))
    ours = ", ".join(f"%{n}" for n in range(count, count + 4))
    outputs = ", ".join(f'"+f"(d[{n}])' for n in range(count))
    return f"""
__device__ __forceinline__ void multiply(float* d, uint4 a, unsigned long long b) {{
  asm volatile("{{.reg .pred p; setp.ne.b32 p, 1, 0; "
               "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 "
               "{{{sums}}}, {{{ours}}}, %{count + 4}, p, 1, 1, {int(turned)};}}"
               : {outputs} : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}}
"""
