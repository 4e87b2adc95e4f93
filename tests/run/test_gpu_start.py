"""A GPU is started while data is read, and only where a run is to use one."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedast.config.load import load
from fedast.config.schema import Compute, RunConfig
from fedast.run import gpu_start
from fedast.run.execute import execute
from fedast.run.gpu_start import start_driver, start_gpu, use_pytorch, wait_for_gpu
from fedast.tasks.data.cache import DataError
from fedast.tasks.task import Task

QUICK = Path(__file__).parents[2] / "examples" / "quickstart.toml"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> dict[str, threading.Thread]:
    """What has begun, in a process in which nothing had."""
    nothing: dict[str, threading.Thread] = {}
    monkeypatch.setattr(gpu_start, "_begun", nothing)
    return nothing


def test_a_run_on_the_cpu_starts_nothing(begun: dict[str, threading.Thread]) -> None:
    start_driver("cpu")
    start_gpu("cpu")
    if not torch.cuda.is_available():
        start_gpu("auto")
    assert not begun


def test_pytorch_is_not_imported_to_find_out_whether_it_knows_gpus() -> None:
    code = (
        "import sys\n"
        "from fedast.run.gpu_start import start_driver, wait_for_gpu\n"
        "start_driver('auto')\n"
        "wait_for_gpu()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("code", [0, 100])  # 100: CUDA_ERROR_NO_DEVICE
def test_a_driver_makes_a_context_if_it_has_a_gpu(
    code: int, monkeypatch: pytest.MonkeyPatch, begun: dict[str, threading.Thread]
) -> None:
    calls = []

    class Driver:
        """Written down instead of done."""

        def __getattr__(self, name: str) -> Callable[..., int]:
            def call(*arguments: object) -> int:
                calls.append(name)
                return code

            return call

    monkeypatch.setattr(gpu_start, "_pytorch_knows_cuda", lambda: True)
    monkeypatch.setattr("ctypes.CDLL", lambda name: Driver())
    start_driver("auto")
    start_driver("cuda")  # once is enough
    wait_for_gpu()
    all_of_it = ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    assert calls == (all_of_it if code == 0 else all_of_it[:1])
    assert list(begun) == ["driver"]


def test_without_a_driver_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, begun: dict[str, threading.Thread]
) -> None:
    """As where PyTorch knows GPUs and the machine has none."""

    def missing(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(gpu_start, "_pytorch_knows_cuda", lambda: True)
    monkeypatch.setattr("ctypes.CDLL", missing)
    start_driver("auto")
    assert not begun


def test_errors_are_left_to_the_run(
    monkeypatch: pytest.MonkeyPatch, begun: dict[str, threading.Thread]
) -> None:
    def fails(device: str) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(gpu_start, "pick_device", lambda device: "cuda")
    monkeypatch.setattr(gpu_start, "use_pytorch", fails)
    start_gpu("auto")
    wait_for_gpu()
    assert "pytorch" in begun


def test_the_operations_that_are_tried_are_right() -> None:
    use_pytorch("cpu")  # in the thread their errors are left to the run


def test_a_run_that_cannot_begin_leaves_nothing_under_way(
    monkeypatch: pytest.MonkeyPatch, begun: dict[str, threading.Thread]
) -> None:
    """Another run of the process may capture graphs next."""

    def missing(config: RunConfig) -> list[Task]:
        begun["driver"] = threading.Thread(target=time.sleep, args=(0.3,))
        begun["driver"].start()
        raise DataError("mnist: not in the cache")

    monkeypatch.setattr("fedast.run.execute.build_tasks", missing)
    config = load(QUICK).model_copy(update={"compute": Compute(device="cpu")})
    with pytest.raises(DataError):
        execute(config)
    assert not begun["driver"].is_alive()


@pytest.mark.cuda
def test_cuda_and_triton_are_ready() -> None:
    code = (
        "from fedast.run.gpu_start import start_driver, start_gpu, wait_for_gpu\n"
        "start_driver('auto')\n"
        "import torch, triton.runtime.cache as cache\n"
        "assert not torch.cuda.is_initialized()\n"
        "start_gpu('auto')\n"
        "wait_for_gpu()\n"
        "assert torch.cuda.is_initialized()\n"
        "assert cache.triton_key.cache_info().currsize == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
