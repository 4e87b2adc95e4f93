"""fedast beside other simulators on the same local training, on this machine's CPU.

    python benchmarks/peers.py [--models perceptron gpt] [--repeats 3] [--peers pfl flower]

Each peer gets a virtual environment of its own under .peers/ (made at first use)
and two processes of one thread each; so does fedast. All take turns, several
times, and the best of each counts, since machines wander. On a machine that others
use too, the processor's time per update says more; it is printed where it is known.
See peers/workload.py for what is trained.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import psutil
import torch

from fedast.tasks.dataset import Arrays
from fedast.tasks.task import Task, Training
from fedast.training.processes import ProcessTrainer
from fedast.training.trainer import DeviceTask, Job, SerialTrainer

HERE = Path(__file__).parent / "peers"
sys.path.insert(0, str(HERE))

from workload import BATCH, CLIENTS, RATE, WORKLOADS  # noqa: E402

ENVIRONMENTS = Path(".peers")
PACKAGES = {
    "pfl": ["pfl==0.6.0", "torch==2.13.0"],
    "flower": ["flwr[simulation]==1.41.0", "typer<0.21", "torch==2.13.0"],
}
CORES = 2
ROUNDS = 4
"""Of which the first warms up."""


Found: TypeAlias = tuple[str, float, float | None]
"""Whose it is, updates per second, and seconds of the processor per update."""
_Best: TypeAlias = tuple[float, float]
"""The most updates per second, and the fewest seconds of the processor per update."""


def environment(peer: str) -> Path:
    folder = ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        print(f"installing {' '.join(PACKAGES[peer])}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES[peer]], check=True)
        (folder / ".installed").touch()
    return python.absolute()


def run_pfl(name: str) -> Found:
    addresses = ",".join(f"localhost:{8700 + rank}" for rank in range(CORES))
    processes = [
        subprocess.Popen(
            [environment("pfl"), "run_pfl.py", name, str(ROUNDS)],
            cwd=HERE,
            env=os.environ
            | {
                "PFL_WORKER_ADDRESSES": addresses,
                "PFL_WORKER_RANK": str(rank),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(CORES)
    ]
    outputs = [process.communicate()[0] for process in processes]
    peer, speed, _ = _read(outputs[0])
    return peer, speed, sum(_read(output)[2] or 0.0 for output in outputs)


def run_flower(name: str) -> Found:
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [environment("flower"), HERE / "run_flower.py", name, str(ROUNDS)],
            cwd=home,
            env=os.environ | {"FLWR_HOME": home, "FLWR_TELEMETRY_ENABLED": "0"},
            capture_output=True,
            text=True,
        )
    return _read(done.stdout)


def _read(output: str) -> Found:
    found = json.loads(output.strip().splitlines()[-1])
    return found["peer"], found["updates_per_s"], found.get("cpu_s_per_update")


def workbench(name: str) -> DeviceTask:
    work = WORKLOADS[name]
    inputs, labels = work.data()
    task = Task(
        name=name,
        model=work.model,
        train=Arrays(inputs, labels),
        test=Arrays(inputs[:100], labels[:100]),
        partition=[np.arange(n * work.points, (n + 1) * work.points) for n in range(CLIENTS)],
        training=Training(local_steps=work.steps, batch_size=BATCH, client_lr=RATE),
    )
    return DeviceTask.build(task, 0, torch.device("cpu"))


def run_fedast(name: str) -> Found:
    torch.set_num_threads(1)
    device_task = workbench(name)
    trainer = ProcessTrainer({name: device_task}, 0, workers=CORES)
    try:
        base = device_task.model.read()
        jobs = [Job(n, n % CLIENTS, base) for n in range(WORKLOADS[name].cohort)]
        trainer.train(name, jobs[: 2 * CORES])
        before, began = _cpu_seconds(), time.perf_counter()
        trainer.train(name, jobs)
        seconds, cpu = time.perf_counter() - began, _cpu_seconds() - before
        return "fedast, processes", len(jobs) / seconds, cpu / len(jobs)
    finally:
        trainer.close()


def _cpu_seconds() -> float:
    """Of this process and its children."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children())]
    return float(sum(each.user + each.system for each in times))


def _plain(name: str, count: int) -> tuple[float, float]:
    torch.set_num_threads(1)
    device_task = workbench(name)
    trainer = SerialTrainer({name: device_task}, 0)
    jobs = [Job(n, n % CLIENTS, device_task.model.read()) for n in range(count)]
    trainer.train(name, jobs[:2])
    before, began = time.process_time(), time.perf_counter()
    trainer.train(name, jobs)
    return count / (time.perf_counter() - began), (time.process_time() - before) / count


def run_plain(name: str) -> Found:
    """fedast's serial trainer, a plain loop of autograd, in two separate processes."""
    with ProcessPoolExecutor(CORES) as pool:
        found = list(pool.map(_plain, [name] * CORES, [WORKLOADS[name].cohort // CORES] * CORES))
    speeds, cpu = zip(*found, strict=True)
    return "plain loop, two processes", sum(speeds), sum(cpu) / CORES


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}"


RUNNERS = {"pfl": run_pfl, "flower": run_flower, "plain": run_plain, "fedast": run_fedast}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=["perceptron", "lenet5"], choices=list(WORKLOADS)
    )
    parser.add_argument("--peers", nargs="+", default=list(RUNNERS), choices=list(RUNNERS))
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for peer in set(args.peers) & set(PACKAGES):
        environment(peer)
    for name in args.models:
        best: dict[str, _Best] = {}
        for _ in range(args.repeats):
            for peer in args.peers:
                label, speed, cpu = RUNNERS[peer](name)
                each = "" if cpu is None else f", {1e3 * cpu:.1f} ms of CPU each"
                print(f"{name}, {label}: {speed:.3g} updates/s{each}", file=sys.stderr, flush=True)
                before = best.get(label, (0.0, math.inf))
                best[label] = max(speed, before[0]), min(cpu or math.inf, before[1])
        if name == args.models[0]:
            print(f"| updates/s (CPU ms of each) | {' | '.join(best)} |")
            print("|---" + "|---:" * len(best) + "|")
        cells = [
            _short(speed) + ("" if math.isinf(cpu) else f" ({_short(1e3 * cpu)})")
            for speed, cpu in best.values()
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
