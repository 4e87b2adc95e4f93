"""A GPU's first half second needs no attention: it passes while data is read."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread

import torch

from fedast.run.compute import Device, pick_device


def start_gpu(device: Device) -> Thread | None:
    """Have CUDA started, and Triton ready to look up kernels, if a run is to use a GPU. The thread
    is to be joined before graphs are captured."""
    if device == "cpu" or pick_device(device) != "cuda":
        return None
    thread = Thread(target=_start, name="GPU start")
    thread.start()
    return thread


def _start() -> None:
    with suppress(Exception):  # the run will meet it, too, and say what it means
        torch.zeros(1, device="cuda")
        from triton.runtime.cache import triton_key

        triton_key()  # a hash of all of Triton, which it remembers
