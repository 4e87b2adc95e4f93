"""Who takes part, and who gains by it, where speed goes with data.

Slow clients have mostly the first classes, fast ones the last. For every speed group: how often a
client was asked and how much its updates counted, beside clients of the middle group, and the
accuracy on test data with that group's classes.

python examples/slow_clients.py
python examples/slow_clients.py fashion-mnist --clients 1000 --time 300 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fedast import (
    AlgorithmOptions,
    Compute,
    FedASTPlus,
    FedASTStatic,
    FedBuff,
    Outcome,
    Simulation,
    SpeedGroups,
    Task,
    simulate,
)
from fedast.core.protocol import Aggregate, Command, Dispatch, Evaluated
from fedast.sim.delays import Speeds
from fedast.tasks.options import TASKS, build_task

METHODS: dict[str, AlgorithmOptions] = {
    "FedAST-plus": FedASTPlus(),
    "FedAST-plus, no momentum": FedASTPlus(momentum=0.0, reference=40.0),
    "FedAST-plus, stale updates count in full": FedASTPlus(slope=0.0),
    "FedAST-plus, any idle client": FedASTPlus(fair=False),
    "FedAST(S)": FedASTStatic(),
    "FedBuff": FedBuff(),
}


class Participation:
    """An observer that counts requests to each client, and the weights of its updates."""

    def __init__(self) -> None:
        self.asked: dict[int, float] = defaultdict(float)
        self.weights: dict[int, float] = defaultdict(float)
        self._clients: dict[int, int] = {}

    def commanded(self, now: float, command: Command) -> None:
        if isinstance(command, Dispatch):
            self.asked[command.client] += 1
            self._clients[command.request] = command.client
        elif isinstance(command, Aggregate):
            for place, request in enumerate(command.requests):
                weight = 1.0 if command.weights is None else command.weights[place]
                self.weights[self._clients.pop(request)] += weight

    def started(self, now: float, request: int, client: int) -> None: ...

    def evaluated(self, now: float, event: Evaluated) -> None: ...


def sorted_by_speed(task: Task, groups: Sequence[np.ndarray]) -> tuple[Task, list[np.ndarray]]:
    """The task with its clients exchanged, those with the first classes into the first group; and
    how often each class is in each group's data."""
    labels = task.train.labels.numpy()
    order = np.argsort([labels[part].mean() for part in task.partition], kind="stable")
    parts = list(task.partition)
    for client, place in zip(np.concatenate(groups), order, strict=True):
        parts[client] = task.partition[place]
    task = replace(task, partition=parts)
    classes = int(labels.max()) + 1
    shares = []
    for members in groups:
        held = np.concatenate([parts[client] for client in members])
        shares.append(np.bincount(labels[held], minlength=classes) / len(held))
    return task, shares


@torch.no_grad()
def accuracy_by_class(model: torch.nn.Module, task: Task) -> np.ndarray:
    inputs, labels = task.test.batch(torch.arange(len(task.test)))
    right = (model(inputs).argmax(dim=1) == labels).double()
    return np.array([right[labels == label].mean() for label in range(int(labels.max()) + 1)])


def run(
    tasks: Sequence[Task], options: AlgorithmOptions, world: Simulation, seed: int, compute: Compute
) -> tuple[Outcome, Participation]:
    taken = Participation()
    watch = [lambda algorithm, metrics: taken]
    return simulate(tasks, options, world, seed=seed, compute=compute, watch=watch), taken


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=["digits-mlp"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--time", type=float, default=30.0)
    parser.add_argument("--speeds", type=float, nargs=3, default=[1.3, 1.0, 0.7])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--precision", choices=["fp32", "fp16"], default="fp32")
    given = parser.parse_args(arguments)

    speeds = SpeedGroups(factors=tuple(given.speeds), shares=(0.25, 0.5, 0.25))
    world = Simulation(clients=given.clients, speeds=speeds, until="time", max_time=given.time)
    print("method; seed; requests and weights, slow and fast beside middle; accuracy by group")
    for seed in given.seeds:
        drawn = Speeds(given.clients, speeds.factors, speeds.shares, seed)
        everyone = np.arange(given.clients)
        speed = np.array([drawn.of(client) for client in everyone])
        groups = [everyone[speed == factor] for factor in speeds.factors]
        built = [
            build_task(TASKS.parse(use, "use"), given.clients, seed, use) for use in given.tasks
        ]
        made = [sorted_by_speed(task, groups) for task in built]
        for method, options in METHODS.items():
            tasks = [task for task, _ in made]
            outcome, taken = run(tasks, options, world, seed, Compute(precision=given.precision))
            cells = []
            for table in (taken.asked, taken.weights):
                slow, middle, fast = (np.mean([table[c] for c in members]) for members in groups)
                cells.append(f"{slow / middle:.2f} {fast / middle:.2f}")
            for task, shares in made:
                by_class = accuracy_by_class(outcome.models[task.name], task)
                found = " ".join(f"{share @ by_class:.3f}" for share in shares)
                cells.append(f"{task.name} {found}")
            print("; ".join([method, str(seed), *cells]), flush=True)


if __name__ == "__main__":
    main()
