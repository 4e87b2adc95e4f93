"""How fast runs are on Ray, as ratios that are measured in one call.

    python benchmarks/cluster.py                  # on two cores
    python benchmarks/cluster.py --workers 16     # on sixteen

- One run (the net of CIFAR-10 on random data of its shape): updates per second with the trainer
  ``ray``, with the trainer ``processes``, and in independent processes that only train.
- Many runs (64 short ones): runs per second with ``--on ray``, and in independent processes that
  each do their part of them one after another.
- The wire: bytes on the loopback interface for each update and each version, between two nodes of a
  Ray on this machine, beside the size of the tensors. As root it uses a network of its own, so that
  nothing else is counted.

Everything is measured in fresh processes, in turn, several times; ratios are of medians. The ratio
by processor time counts all of Ray's processes, and is steadier where others use the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedast import Compute, Goal, Simulation, simulate
from fedast.tasks.task import Task

CLIENTS, SEED = 100, 1
SHORT = {
    "tasks": [{"use": "digits-mlp", "target": 0.99}],
    "algorithm": {"name": "fedast-s", "requests": 16, "ratio": 4},
    "compute": {"device": "cpu", "trainer": "serial", "workers": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=("run", "runs", "wire"), action="append")
    parser.add_argument(
        "--net", default="cifar10", help="mnist, fashion-mnist, cifar10, shakespeare"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement of a run")
    parser.add_argument("--times", type=int, default=3, help="how often each is measured")
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--time", type=float, default=40.0, help="simulated time of a short run")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        found = CHILDREN[options.child](options)
        print("\n" + json.dumps(found), flush=True)
        os._exit(0)  # (Ray takes its time to end)
    parts = options.only or ["run", "runs", "wire"]
    cores = len(os.sched_getaffinity(0))
    print(f"{options.workers} workers on {cores} cores")
    if "run" in parts:
        one_run(options)
    if "runs" in parts:
        many_runs(options)
    if "wire" in parts:
        wire()


def child(name: str, rate: float = 0.0, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    arguments = [a for a in sys.argv[1:] if a not in ("--child",)]
    done = subprocess.run(
        [*prefix, sys.executable, __file__, *arguments, "--child", name, "--rate", str(rate)],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{name} failed: {done.stdout[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def in_turn(kinds: list[str], times: int, rate: float = 0.0) -> dict[str, dict[str, float]]:
    """The median of each number of each kind."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for number in range(times):
        for kind in kinds:
            one = child(kind, rate)
            found[kind].append(one)
            print(
                f"  {number + 1}: {kind:20} {one['rate']:8.2f} /s, "
                f"processor {1e3 * one['cpu']:8.1f} ms each",
                flush=True,
            )
    digests = {one["digest"] for ones in found.values() for one in ones if "digest" in one}
    if digests:
        print(f"  all runs ended with the same model: {len(digests) == 1}")
    return {
        kind: {key: statistics.median(one[key] for one in ones) for key in ("rate", "cpu")}
        for kind, ones in found.items()
    }


def compare(found: dict[str, dict[str, float]], mine: str, other: str) -> None:
    speed = found[mine]["rate"] / found[other]["rate"]
    cost = found[other]["cpu"] / found[mine]["cpu"]
    print(f"  {mine} / {other}: {speed:.3f}; by processor time {cost:.3f}", flush=True)


# One run.


def one_run(options: argparse.Namespace) -> None:
    print(f"One run of {options.net}'s net, updates per second:")
    first = child("independent")["rate"]  # also how long the others shall be
    found = in_turn(["independent", "processes", "ray"], options.times, first)
    compare(found, "ray", "independent")
    compare(found, "ray", "processes")


def net(name: str) -> Task:
    import torch

    from fedast.run.bench import paper_shapes

    task = next(task for task in paper_shapes() if task.name == name)
    return replace(task, test=task.train.batch(torch.arange(200)), goal=Goal(max_rounds=1))


def independent(options: argparse.Namespace) -> dict[str, float]:
    """Processes that do nothing but train, each on its own."""
    task = net(options.net)
    context = multiprocessing.get_context("fork")
    start, counts = context.Barrier(options.workers), context.SimpleQueue()

    def work() -> None:
        import torch

        from fedast.training.lean import LeanTrainer
        from fedast.training.processes import keep_memory
        from fedast.training.trainer import DeviceTask, Job

        torch.set_num_threads(1)
        keep_memory()
        device_tasks = {task.name: DeviceTask.build(task, SEED, torch.device("cpu"))}
        trainer = LeanTrainer(device_tasks, SEED)
        base = device_tasks[task.name].model.read()
        for request in range(2):
            trainer.train(task.name, [Job(request, request, base)])
        start.wait()
        began, used, count = time.monotonic(), time.process_time(), 0
        while time.monotonic() - began < options.seconds:
            trainer.train(task.name, [Job(count, count % len(task.partition), base)])
            count += 1
        spent = time.process_time() - used
        counts.put((count / (time.monotonic() - began), count, spent))

    processes = [context.Process(target=work) for _ in range(options.workers)]
    for process in processes:
        process.start()
    rates, updates, spent = zip(*(counts.get() for _ in processes), strict=True)
    for process in processes:
        process.join()
    return {"rate": sum(rates), "cpu": sum(spent) / sum(updates)}


class Clock:
    """Time and processor time of a run, from a fifth of its updates on: workers start before."""

    def __init__(self, rounds: int) -> None:
        self._first, self._last = rounds // 5, rounds
        self._round = self._count = 0
        self._marks: list[tuple[float, float, int]] = []

    def commanded(self, now: float, command: Any) -> None:
        if type(command).__name__ == "Aggregate":
            self._round += 1
            self._count += len(command.requests)
            if self._round in (self._first, self._last):
                self._marks.append((time.monotonic(), processor_time(), self._count))

    def started(self, now: float, request: int, client: int) -> None:
        pass

    def evaluated(self, now: float, event: Any) -> None:
        pass

    def found(self) -> dict[str, float]:
        (began, used, before), (ended, more, count) = self._marks
        return {
            "rate": (count - before) / (ended - began),
            "cpu": (more - used) / (count - before),
        }


def processor_time() -> float:
    """Of this process and all that it started, Ray's own processes among them."""
    import psutil

    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def whole_run(options: argparse.Namespace, trainer: Any) -> dict[str, Any]:
    from fedast import FedASTStatic

    requests, buffer = 6 * options.workers, options.workers
    rounds = max(10, int(1.25 * options.seconds * options.rate / buffer))
    task = replace(net(options.net), goal=Goal(max_rounds=rounds, evaluate_every=10**6))
    clock = Clock(rounds)
    outcome = simulate(
        [task],
        FedASTStatic(requests=requests, ratio=6),
        simulation=Simulation(clients=len(task.partition)),
        seed=SEED,
        compute=Compute(device="cpu", trainer=trainer, workers=options.workers),
        watch=[lambda algorithm, metrics: clock],
        noted=True,
    )
    state = outcome.models[task.name].state_dict()
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values()))
    return {**clock.found(), "digest": digest.hexdigest()[:16]}


def processes(options: argparse.Namespace) -> dict[str, Any]:
    return whole_run(options, {"name": "processes"})


def ray(options: argparse.Namespace) -> dict[str, Any]:
    own_ray(options.workers)
    return whole_run(options, {"name": "ray", "actors": options.workers})


def own_ray(cores: int) -> None:
    from fedast.training.ray_connection import require_ray

    require_ray()
    # 15 by default: others on the machine come first.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    import ray

    ray.init(
        address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False,
        logging_level="error",
    )  # fmt: skip


# Many runs.


def many_runs(options: argparse.Namespace) -> None:
    print(f"{options.runs} short runs, runs per second:")
    found = in_turn(["independent-runs", "ray-runs"], options.times)
    compare(found, "ray-runs", "independent-runs")


def configs(options: argparse.Namespace) -> list[Any]:
    from fedast.config.load import parse
    from fedast.config.resolve import resolve

    simulation = {"clients": 20, "max_time": options.time}
    return [
        resolve(parse({**SHORT, "seed": seed, "simulation": simulation}), Path())
        for seed in range(options.runs)
    ]


def independent_runs(options: argparse.Namespace) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        workers = [
            context.Process(target=some_runs, args=(options, number, folder))
            for number in range(options.workers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(list(Path(folder).glob("*/result.json"))) == options.runs
        spent = os.times().children_user + os.times().children_system
        return {"rate": options.runs / (time.monotonic() - began), "cpu": spent / options.runs}


def some_runs(options: argparse.Namespace, number: int, folder: str) -> None:
    from fedast.run.execute import execute

    mine = list(enumerate(configs(options)))[number :: options.workers]
    for seed, config in mine:
        execute(config, Path(folder) / str(seed))


def ray_runs(options: argparse.Namespace) -> dict[str, float]:
    from fedast.run.batch import BatchRun
    from fedast.run.on_ray import Ray

    own_ray(options.workers)
    used = processor_time()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        runs = [
            BatchRun(str(seed), config, Path(folder) / str(seed))
            for seed, config in enumerate(configs(options))
        ]
        Ray().build()(runs, jobs=options.workers)
        assert len(list(Path(folder).glob("*/result.json"))) == options.runs
        spent = processor_time() - used
        return {"rate": options.runs / (time.monotonic() - began), "cpu": spent / options.runs}


# The wire.


def wire() -> None:
    alone = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    prefix = ("unshare", "-n") if alone.returncode == 0 else ()
    found = child("bytes", prefix=prefix)
    print("The wire between two nodes, bytes:")
    for name in ("update", "version"):
        sent, size = found[name], found["size"]
        print(f"  {name:8} {sent:12,.0f}  tensor {size:12,.0f}  ratio {sent / size:.4f}")
    if not prefix:
        print("  (with whatever else used the loopback interface)")


def received() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    raise SystemExit("there is no loopback interface")


def bytes_sent(options: argparse.Namespace) -> dict[str, float]:
    import torch

    from fedast.training.ray_connection import require_ray
    from fedast.training.ray_trainer import RayTrainer
    from fedast.training.trainer import DeviceTask, Job

    subprocess.run(["ip", "link", "set", "lo", "up"], check=False, capture_output=True)
    require_ray()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    task = net(options.net)
    device_tasks = {task.name: DeviceTask.build(task, SEED, torch.device("cpu"))}
    trainer = RayTrainer(device_tasks, SEED, actors=1)
    base = device_tasks[task.name].model.read()
    count = 64

    def sent(versions: int, first: int) -> float:
        bases = [base + 1e-6 * (first + n) for n in range(versions)]
        jobs = [Job(first + n, n % 100, bases[n % versions]) for n in range(count)]
        before, began = received(), time.monotonic()
        trainer.train(task.name, jobs)
        return received() - before - idle * (time.monotonic() - began)

    idle = 0.0
    sent(1, 0)
    before, began = received(), time.monotonic()
    time.sleep(5)
    idle = (received() - before) / (time.monotonic() - began)
    one, many = sent(1, 1000), sent(count, 2000)
    version = (many - one) / (count - 1)
    trainer.close()
    size = base.numel() * base.element_size()
    update = (one - version) / count
    ray.shutdown()
    nodes.shutdown()
    return {"update": update, "version": version, "size": size}


CHILDREN = {
    "independent": independent,
    "processes": processes,
    "ray": ray,
    "independent-runs": independent_runs,
    "ray-runs": ray_runs,
    "bytes": bytes_sent,
}

if __name__ == "__main__":
    main()
