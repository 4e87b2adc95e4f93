"""How much longer than their median honest updates are, over whole runs of the paper's tasks.

Simulates training with honest clients only (labels by Dirichlet, 0.1), shows every update to the
federation's adaptive norm bound in the order of aggregation, and prints the largest ratio of an
update's norm to the median at that moment, the largest first move relative to the model's own norm,
and how many updates a bound of so many medians would have refused. The default of
``federation.norm_factor`` comes from this table.

    python benchmarks/honest_norms.py --tasks mnist,fashion-mnist --algorithms fedast-d --seeds 1
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fedast.config.load import parse
from fedast.config.resolve import resolve
from fedast.federation.norms import NormBounds
from fedast.learner.models import ServerModels
from fedast.run.build import build_tasks
from fedast.run.simulate import simulate

FACTORS = (5.0, 10.0, 20.0, 50.0)


class Seen:
    """What honest clients sent in one run, by task."""

    def __init__(self) -> None:
        self.bounds = {factor: NormBounds("adaptive", factor) for factor in FACTORS}
        self.refused = dict.fromkeys(FACTORS, 0)
        self.updates = 0
        self.ratio = 0.0
        self.first = 0.0
        """The longest of the first three clients' moves, relative to the model."""

    def update(self, task: str, client: int, norm: float, own: float) -> None:
        self.updates += 1
        typical = self.bounds[FACTORS[0]].median(task)
        if typical is None:
            self.first = max(self.first, norm / own)
        elif typical > 0:
            self.ratio = max(self.ratio, norm / typical)
        for factor, bounds in self.bounds.items():
            bound = bounds.bound(task, own, 1000)
            self.refused[factor] += bound is not None and norm > bound.limit
            bounds.heard(task, client, norm)


def watch(seen: dict[str, Seen]) -> None:
    step = ServerModels.step

    def watched(self: ServerModels, task: str, requests: Any, updates: Any, weights: Any) -> None:
        training = self.device_tasks[task].task.training
        store = self.stores[task]
        own = max(1.0, float(store[store.newest].norm())) / (
            training.client_lr * training.local_steps
        )
        for request, update in zip(requests, updates, strict=True):
            seen[task].update(task, request.client, float(update.delta.norm()), own)
        step(self, task, requests, updates, weights)

    ServerModels.step = watched  # type: ignore[method-assign]


def run(
    task: str, algorithm: str, seed: int, most: int, clients: int, extra: Sequence[str]
) -> Seen:
    table: dict[str, Any] = {
        "seed": seed,
        "algorithm": {"name": algorithm},
        "simulation": {"clients": clients},
        "tasks": [{"use": task}],
    }
    for given in extra:
        key, value = given.split("=")
        table["tasks"][0][key] = float(value) if value.replace(".", "").isdigit() else value
    config = resolve(parse(table))
    seen = {task: Seen()}
    before = ServerModels.step
    watch(seen)
    try:
        simulate(
            build_tasks(config), config.algorithm, config.simulation,
            seed=seed, compute=config.compute, noted=True,
            stop=lambda: seen[task].updates >= most,
        )  # fmt: skip
    finally:
        ServerModels.step = before  # type: ignore[method-assign]
    return seen[task]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="digits-mlp,digits-cnn,synthetic")
    parser.add_argument("--algorithms", default="fedast-d,fedbuff,sync-st")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=10**9, help="end a run after so many")
    parser.add_argument(
        "--set", action="append", default=[], help="a key of the task, as KEY=VALUE"
    )
    given = parser.parse_args()
    head = " | ".join(f"refused at {factor:g}" for factor in FACTORS)
    print(f"| task | algorithm | updates | largest / median | first move / model | {head} |")
    print("|---|---|" + "---:|" * (3 + len(FACTORS)))
    for task in given.tasks.split(","):
        for algorithm in given.algorithms.split(","):
            for seed in range(1, given.seeds + 1):
                seen = run(task, algorithm, seed, given.updates, given.clients, given.set)
                refused = " | ".join(str(count) for count in seen.refused.values())
                print(
                    f"| {task} | {algorithm} | {seen.updates} | {seen.ratio:.1f} "
                    f"| {seen.first:.3f} | {refused} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
