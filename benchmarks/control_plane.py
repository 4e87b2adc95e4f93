"""Speed and memory of control plane and simulator, with training switched off.

    python benchmarks/control_plane.py [--updates 1000000]

Each case runs in a process of its own, so that its memory is its own. The goal
is at least 30,000 updates/s on one core and less than 1 GiB for a million
clients, and a cost per update that does not grow with the number of clients or
of requests in flight.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

from fedast.algorithms.asynchronous import Asynchronous
from fedast.algorithms.rounds import Returned
from fedast.algorithms.sync_bayes_st import BayesianOptimisation
from fedast.core.protocol import TaskSpec
from fedast.core.streams import Stream
from fedast.learner.protocol import NoLearning
from fedast.records.metrics import RunMetrics
from fedast.sim.availability import ActiveCapPool, AlwaysPool
from fedast.sim.delays import ShiftedExponentialDelay, Speeds, Timing
from fedast.sim.simulator import Simulator

TASKS = 4
CASES = (  # clients, active requests
    (10_000, 10_000),
    (100_000, 10_000),
    (1_000_000, 10_000),
    (1_000_000, 1_000),
    (1_000_000, 100_000),
)


def measure(clients: int, requests: int, updates: int, dynamic: bool) -> dict[str, float]:
    specs = [
        TaskSpec(
            name=f"task-{number}",
            active_requests=requests // TASKS,
            buffer_size=max(1, requests // TASKS // 32),
            evaluate_every=4,
        )
        for number in range(TASKS)
    ]
    began = time.perf_counter()
    pool = AlwaysPool(clients)
    run_metrics = RunMetrics(specs)
    simulator = Simulator(
        Asynchronous(specs, pool, Stream.of(1, "control"), dynamic=dynamic),
        NoLearning(),
        pool,
        ShiftedExponentialDelay(),
        Speeds(clients, (1.3, 1.0, 0.7), (0.25, 0.5, 0.25), seed=1),
        {spec.name: Timing(spec.name, steps=27, step_cost=0.2) for spec in specs},
        run_metrics,
        seed=1,
    )
    ready = 0.0

    def enough() -> bool:
        nonlocal ready
        if not ready:  # the first requests are out; from here on it is updates
            ready = time.perf_counter()
        return run_metrics.updates >= updates

    simulator.run(stop=enough)
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "setup_s": ready - began,
        "updates_per_s": run_metrics.updates / (done - ready),
        "microseconds": 1e6 * (done - ready) / run_metrics.updates,
        "peak_mib": peak,
    }


def measure_bayes(clients: int = 1000, tasks: int = 6, rounds: int = 300) -> float:
    """Seconds of one Sync-Bayes-ST decision after so many rounds."""
    specs = [TaskSpec(f"task-{number}") for number in range(tasks)]
    pool, stream = ActiveCapPool(clients, 300), Stream.of(1, "control")
    rule = BayesianOptimisation(history=rounds)
    seconds = 0.0
    for _ in range(rounds + 1):
        began = time.perf_counter()
        groups = rule.assign(specs, pool, stream)
        seconds = time.perf_counter() - began
        rule.learn(
            [
                Returned(client, spec.name, 1.0 + stream.exponential(), None)
                for spec, group in zip(specs, groups, strict=True)
                for client in group[:30]
            ]
        )
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--case", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        clients, requests = options.case
        print(json.dumps(measure(clients, requests, options.updates, dynamic=True)))
        return
    print(f"FedAST(D), {TASKS} tasks, {options.updates:,} updates, training switched off")
    print(f"{'clients':>10} {'requests':>9} {'updates/s':>10} {'µs/update':>10} {'peak MiB':>9}")
    for clients, requests in CASES:
        command = [sys.executable, __file__, "--updates", str(options.updates)]
        command += ["--case", str(clients), str(requests)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        print(
            f"{clients:>10,} {requests:>9,} {found['updates_per_s']:>10,.0f} "
            f"{found['microseconds']:>10.1f} {found['peak_mib']:>9.0f}",
            flush=True,
        )
    print(
        f"A Sync-Bayes-ST decision with 1,000 clients, 6 tasks and 300 past rounds: "
        f"{measure_bayes():.2f} s"
    )


if __name__ == "__main__":
    main()
