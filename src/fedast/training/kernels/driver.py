"""CUDA C++ at run time: compiled once, loaded and launched through the CUDA driver's own interface.

Kernels that Triton cannot express are in ``.cu`` files beside this one. What a shape needs is
defined at the top of the source, which is compiled when it is first used and kept where Triton
keeps its kernels.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TypeAlias, final

import torch
from triton.runtime.cache import get_cache_manager

_DYNAMIC_SHARED_MEMORY = 8
_FLOAT16, _SWIZZLE_128, _L2_256 = 6, 3, 3
"""Of the driver's enumerations."""


class TensorMap(ctypes.Structure):
    """How the copy engine finds its way in a tensor: ``CUtensorMap``, opaque, in 64-byte steps."""

    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


Argument: TypeAlias = torch.Tensor | TensorMap | int


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    result = getattr(_driver(), name)(*arguments)
    if result != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()}")


def tensor_map(x: torch.Tensor, order: Sequence[int], box: Sequence[int]) -> TensorMap:
    """For boxes of a half-precision tensor, with its axes in this order, which in shared memory
    are swizzled by 128 bytes. What is outside of the tensor is zero."""
    rank = len(order)
    axes = list(reversed(order))
    assert x.dtype == torch.float16
    assert x.stride(axes[0]) == 1
    sizes = (ctypes.c_uint64 * rank)(*(x.shape[axis] for axis in axes))
    strides = (ctypes.c_uint64 * (rank - 1))(*(2 * x.stride(axis) for axis in axes[1:]))
    boxes = (ctypes.c_uint32 * rank)(*reversed(box))
    steps = (ctypes.c_uint32 * rank)(*[1] * rank)
    room = (ctypes.c_uint8 * (ctypes.sizeof(TensorMap) + 64))()  # it must begin at such a step
    start = -ctypes.addressof(room) % 64
    made = TensorMap.from_buffer(room, start)
    _call(
        "cuTensorMapEncodeTiled", ctypes.byref(made), _FLOAT16, rank, ctypes.c_void_p(x.data_ptr()),
        sizes, strides, boxes, steps, 0, _SWIZZLE_128, _L2_256, 0,
    )  # fmt: skip
    return made


@final
class Kernel:
    def __init__(self, source: str, name: str, threads: int, memory: int) -> None:
        """``memory``: bytes of shared memory. The thread must have used CUDA before."""
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuModuleLoadData", ctypes.byref(module), _binary(source, name))
        _call("cuModuleGetFunction", ctypes.byref(self._function), module, name.encode())
        _call("cuFuncSetAttribute", self._function, _DYNAMIC_SHARED_MEMORY, memory)
        self._threads, self._memory = threads, memory

    def __call__(self, blocks: int, arguments: Sequence[Argument]) -> None:
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _call(
            "cuLaunchKernel", self._function, blocks, 1, 1, self._threads, 1, 1, self._memory,
            stream, pointers, None,
        )  # fmt: skip


def _value(argument: Argument) -> TensorMap | ctypes.c_void_p | ctypes.c_int:
    match argument:
        case torch.Tensor():
            return ctypes.c_void_p(argument.data_ptr())
        case TensorMap():
            return argument
        case int():
            return ctypes.c_int(argument)


@cache
def source_of(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text()


def _binary(source: str, name: str) -> bytes:
    """What a source is compiled to, from the cache if it is there."""
    key = hashlib.sha256(f"{torch.version.cuda}\n{source}".encode()).hexdigest()
    kept = get_cache_manager(key)
    file = kept.get_file("kernel.cubin")
    if file is None:
        from torch.cuda._utils import _nvrtc_compile  # there is no public one

        binary, _ = _nvrtc_compile(source, name, "90a")
        file = kept.put(binary, "kernel.cubin", binary=True)
    return Path(file).read_bytes()
