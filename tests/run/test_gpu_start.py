"""A GPU is started while data is read, and only where a run is to use one."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from fedast.run.gpu_start import start_gpu


def test_a_run_on_the_cpu_starts_nothing() -> None:
    before = threading.active_count()
    assert start_gpu("cpu") is None
    if not torch.cuda.is_available():
        assert start_gpu("auto") is None
    assert threading.active_count() == before


@pytest.mark.cuda
def test_cuda_and_triton_are_ready() -> None:
    code = (
        "import torch, triton.runtime.cache as cache\n"
        "from fedast.run.gpu_start import start_gpu\n"
        "assert not torch.cuda.is_initialized()\n"
        "start_gpu('auto').join()\n"
        "assert torch.cuda.is_initialized()\n"
        "assert cache.triton_key.cache_info().currsize == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
