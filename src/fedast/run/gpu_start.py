"""A GPU's first half second needs no attention: it passes while data is read."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread

import torch

from fedast.config.schema import Compute
from fedast.run.compute import pick_device


def start_gpu(compute: Compute) -> Thread | None:
    """Have CUDA started, and Triton ready to look up kernels, if a run is to use a GPU."""
    if compute.device == "cpu" or pick_device(compute.device) != "cuda":
        return None
    thread = Thread(target=_start, name="GPU start")
    thread.start()
    return thread


def _start() -> None:
    with suppress(Exception):  # the run will meet it, too, and say what it means
        torch.zeros(1, device="cuda")
        from triton.runtime.cache import triton_key

        triton_key()  # a hash of all of Triton, which it remembers
