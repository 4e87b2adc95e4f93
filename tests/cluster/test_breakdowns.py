"""What breaks a whole cluster, or a command on it: heads, drivers, memory, disks."""

from __future__ import annotations

import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.conftest import Commands

pytestmark = pytest.mark.cluster

TASK = """
    import time
    from pathlib import Path

    import numpy as np
    import torch
    from torch import nn
    from fedast import Goal, Task, Training

    class Net(nn.Module):
        def __init__(self, width, hog):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))
            self.hog = hog

        def forward(self, x):
            marker = Path(self.hog or ".")
            if self.hog and self.training and not marker.exists():
                marker.touch()
                kept = [bytearray(b"1" * 2**28) for _ in range(12)]  # 3 GiB
                time.sleep(20)
            return self.layers(x)

    def make(clients, seed, *, rounds=40, width=64, hog=""):
        draw = np.random.default_rng(seed)
        values = draw.normal(size=(400, 8)).astype(np.float32)
        labels = (values[:, 0] > 0).astype(np.int64)
        return Task(
            name="small", model=lambda: Net(width, hog), train=(values, labels),
            test=(values, labels), partition=np.array_split(np.arange(400), clients),
            training=Training(local_steps=20, batch_size=16, client_lr=0.05),
            goal=Goal(max_rounds=rounds, evaluate_every=4),
        )
"""

RUN = """
    seed = 1
    path = ["."]
    algorithm = {{ name = "fedast-s", requests = 8, ratio = 4 }}
    simulation = {{ clients = 20 }}
    compute = {{ device = "cpu", workers = 1, trainer = {trainer} }}
    tasks = [{{ use = "small_task:make", options = {options} }}]
"""
ON_RAY = '{ name = "ray" }'
SAME = ("events.jsonl", "curves.csv", "models/small.safetensors")


def configure(folder: Path, options: str = "{}", trainer: str = ON_RAY, name: str = "run") -> None:
    (folder / "small_task.py").write_text(textwrap.dedent(TASK))
    text = textwrap.dedent(RUN).format(options=options, trainer=trainer)
    (folder / f"{name}.toml").write_text(text)


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SAME}


def wait_for(found: Callable[[], bool], process: Any, seconds: float = 120) -> None:
    limit = time.monotonic() + seconds
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)


def expected(fedast: Commands, options: str = "{}") -> dict[str, bytes]:
    """Of the same run with processes of this machine, undisturbed."""
    configure(fedast.folder, options, '"processes"', "alone")
    done = fedast("run", "alone.toml", "--out", "alone", "--events", "--set", "compute.workers=2")
    assert done.returncode == 0, done.stderr
    return files(fedast.folder / "alone")


@pytest.mark.parametrize("fault", ["head", "driver"])
def test_a_run_goes_on_after_its_head_or_driver_is_gone(
    fault: str, another_cluster: Any, fedast: Commands
) -> None:
    configure(fedast.folder, "{ rounds = 400 }")
    nodes = another_cluster()
    fedast.use(nodes)
    out = fedast.folder / "out"
    process = fedast.begin("run", "run.toml", "--out", "out", "--events", "--checkpoint-every", "4")
    wait_for(lambda: any((out / "checkpoints").glob("*.json")), process)
    if fault == "driver":
        process.kill()
        process.communicate()
    else:
        nodes.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        process.communicate(timeout=200)
        assert process.returncode != 0
        nodes.shutdown()
        fedast.use(another_cluster())
    assert not (out / "result.json").exists()
    limit = time.monotonic() + 120
    while (done := fedast("run", "--resume", "out")).returncode == 2 and time.monotonic() < limit:
        assert "another fedast command is using" in done.stderr
    assert done.returncode == 0, done.stderr
    assert "continuing from simulated time" in done.stdout + done.stderr
    assert files(out) == expected(fedast, "{ rounds = 400 }")


def test_runs_go_on_after_their_head_is_gone(another_cluster: Any, fedast: Commands) -> None:
    configure(fedast.folder, "{ rounds = 600 }", '"serial"')
    nodes = another_cluster()
    fedast.use(nodes)
    command = ("compare", "run.toml", "--seeds", "4", "--jobs", "2", "--on", "ray", "--out", "out",
               "--checkpoint-every", "4")  # fmt: skip
    process = fedast.begin(*command)
    out = fedast.folder / "out"
    wait_for(lambda: len(list(out.rglob("result.json"))) > 0, process)
    nodes.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    process.communicate(timeout=200)
    assert process.returncode != 0
    nodes.shutdown()
    there = {path: path.stat().st_mtime_ns for path in out.rglob("*/result.json")}
    assert 0 < len(there) < 4
    fedast.use(another_cluster())
    limit = time.monotonic() + 120
    again = ("compare", "--resume", "--out", "out", "--on", "ray")
    while (done := fedast(*again)).returncode == 2 and time.monotonic() < limit:
        assert "another fedast command is using" in done.stderr
    assert done.returncode == 0, done.stderr
    assert len(list(out.rglob("curves.csv"))) >= 4
    assert all(path.stat().st_mtime_ns == when for path, when in there.items()), "not repeated"
    local = fedast("compare", "run.toml", "--seeds", "4", "--jobs", "2", "--out", "local")
    assert local.returncode == 0, local.stderr
    curves = {path.relative_to(out): path.read_bytes() for path in out.rglob("curves.csv")}
    assert curves == {
        path.relative_to(fedast.folder / "local"): path.read_bytes()
        for path in (fedast.folder / "local").rglob("curves.csv")
    }


@pytest.mark.parametrize("trainer", [ON_RAY, '"serial"'])
def test_memory_runs_out_in_a_worker(
    trainer: str, another_cluster: Any, fedast: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()
    if memory.available < 8 * 2**30:
        pytest.skip("too little memory to run out of some")
    most = (memory.total - memory.available + 1.5 * 2**30) / memory.total
    monitor = {"RAY_memory_usage_threshold": f"{most:.4f}", "RAY_memory_monitor_refresh_ms": "50"}
    for name, value in monitor.items():
        monkeypatch.setenv(name, value)
    fedast.use(another_cluster())
    hog = str(fedast.folder / "hogged")
    configure(fedast.folder, f'{{ hog = "{hog}" }}', trainer)
    if trainer == ON_RAY:
        done = fedast("run", "run.toml", "--out", "out", "--events")
    else:
        done = fedast("compare", "run.toml", "--seeds", "1", "--on", "ray", "--events",
                      "--out", "out")  # fmt: skip
        assert "its node ran out of memory; it is begun again" in done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(hog).exists()
    (curves,) = (fedast.folder / "out").rglob("curves.csv")
    alone = expected(fedast)
    assert curves.read_bytes() == alone["curves.csv"] or trainer != ON_RAY
    if trainer == ON_RAY:
        assert files(fedast.folder / "out") == alone


def test_there_is_no_disk_for_spilling(another_cluster: Any, fedast: Commands) -> None:
    options = "{ width = 600000, rounds = 10 }"  # a model of 26 MB
    configure(fedast.folder, options)
    full = {"local_fs_capacity_threshold": 0.001, "local_fs_monitor_interval_ms": 100}
    fedast.use(another_cluster(_system_config=full))
    command = ("run", "run.toml", "--out", "out", "--events", "--checkpoint-every", "1")
    done = fedast(*command)
    assert done.returncode not in (0, -signal.SIGKILL)
    assert "Ray's object store is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (fedast.folder / "out" / "result.json").exists()
    fedast.use(another_cluster(object_store_memory=10**9))
    done = fedast("run", "--resume", "out")
    assert done.returncode == 0, done.stderr
    assert files(fedast.folder / "out") == expected(fedast, options)
