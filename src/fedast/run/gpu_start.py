"""A GPU starts while PyTorch is imported and data is read.

It takes a second in which nobody need do anything: the driver makes a context, Triton computes a
hash of its library (500 MB), and kernels and libraries of PyTorch are loaded when they are first
used. Threads see to that. They import nothing: threads that import the same packages can wait for
each other, which Python takes for an error.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Final, Literal, TypeAlias

from fedast.run.compute import Device, pick_device

Part: TypeAlias = Literal["driver", "triton", "pytorch"]

_begun: Final[dict[Part, Thread]] = {}
"""Each part begins once in a process."""


def start_driver(device: Device) -> None:
    """Begin with what can be done before PyTorch is imported, if a run on ``device`` may use a
    GPU."""
    if device == "cpu" or not _pytorch_knows_cuda():
        return
    with suppress(OSError):  # there is no GPU
        _begin("driver", partial(_make_context, ctypes.CDLL("libcuda.so.1")))


def start_gpu(device: Device) -> None:
    """Begin with the rest, if a run on ``device`` uses a GPU."""
    if pick_device(device) != "cuda":
        return
    with suppress(ImportError):
        from triton.runtime.cache import triton_key

        _begin("triton", triton_key)  # it remembers what it has computed
    _begin("pytorch", partial(use_pytorch, "cuda"))


def wait_for_gpu() -> None:
    """Before it is used: what these threads do would spoil graphs, or be done a second time."""
    for thread in _begun.values():
        thread.join()


def _pytorch_knows_cuda() -> bool:
    """By its files: it is not imported yet."""
    torch = find_spec("torch")
    folders = [] if torch is None else torch.submodule_search_locations or []
    return any((Path(folder) / "lib" / "libtorch_cuda.so").exists() for folder in folders)


def _begin(part: Part, work: Callable[[], object]) -> None:
    def quietly() -> None:
        with suppress(Exception):  # the run will meet it, too, and say what it means
            work()

    if part not in _begun:
        _begun[part] = Thread(target=quietly, name=f"GPU start: {part}")
        _begun[part].start()


def _make_context(driver: ctypes.CDLL) -> None:
    """The context that PyTorch will find, if there is a GPU."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as PyTorch would
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def use_pytorch(device: str) -> None:
    """Once what nearly every run does: an operation's kernels are loaded at its first use."""
    import torch
    from torch.nn.functional import conv2d, cross_entropy, linear, relu

    def zeros(*shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    kernel, weight = zeros(4, 3, 3, 3).requires_grad_(), zeros(10, 144).requires_grad_()
    images, labels = zeros(8, 3, 8, 8, dtype=torch.uint8), zeros(8, dtype=torch.int64)
    chosen = torch.arange(4, device=device)
    inputs = (images[chosen].float() - zeros(3, 1, 1)) / 2
    outputs = linear(relu(conv2d(inputs, kernel)).flatten(1), weight)
    gradients = torch.autograd.grad(cross_entropy(outputs, labels[chosen]), (kernel, weight))
    right = (outputs.argmax(dim=1) == labels.index_select(0, chosen)).sum()
    mean = torch.stack(torch._foreach_div([gradients[1]] * 2, 2.0)).mean(dim=0)
    float(mean.norm() + right + labels.min() + labels.max())
