"""Settings that have an effect, but defeat their own purpose."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedast.algorithms.async_progress import least_requests
from fedast.algorithms.centralized import Centralized
from fedast.algorithms.fedast import FedASTDynamic
from fedast.algorithms.fedast_plus import FedASTPlus
from fedast.algorithms.fedbuff import FedBuff
from fedast.algorithms.options import AlgorithmOptions, SyncOptions
from fedast.algorithms.sequential_fedavg import SequentialFedAvg
from fedast.algorithms.sync_bayes_st import SyncBayesST
from fedast.algorithms.sync_st import SyncST
from fedast.algorithms.sync_ucb_st import SyncUCBST
from fedast.config.plan import plan
from fedast.config.schema import Simulation
from fedast.core.protocol import TaskSpec
from fedast.sim.availability import ActiveCap, Bernoulli
from fedast.tasks.task import Task


def cautions(
    tasks: Sequence[Task], algorithm: AlgorithmOptions, simulation: Simulation
) -> list[tuple[str, str]]:
    """Keys and what to know about them."""
    if isinstance(algorithm, FedASTDynamic):
        return _cannot_move(tasks, plan(tasks, algorithm, simulation))
    if isinstance(algorithm, FedBuff | FedASTPlus) and algorithm.idle:
        total = _in_all(tasks, plan(tasks, algorithm, simulation))
        return _more_than_clients(algorithm.name, total, simulation.most_active)
    if not isinstance(algorithm, SyncOptions) or isinstance(algorithm, Centralized):
        return []
    return _waits_for_all(tasks, algorithm, simulation)


def cautions_of_data(task: Task) -> list[tuple[str, str]]:
    """Keys of a task that has its data, and what to know about them."""
    most = max(map(len, task.partition), default=0)
    if not task.trainable or task.training.batch_size <= most:
        return []
    return [
        (
            "batch_size",
            f"is {task.training.batch_size}, but no client has more than {most} samples: every "
            "batch repeats some of them; lower it",
        )
    ]


def _cannot_move(tasks: Sequence[Task], specs: Sequence[TaskSpec]) -> list[tuple[str, str]]:
    """Realloc leaves every task R/b requests; together these may be all there are."""
    least, total = sum(map(least_requests, specs)), _in_all(tasks, specs)
    if len(tasks) == 1 or least < total:
        return []
    return [
        (
            "algorithm.name",
            "fedast-d works like fedast-s here while all tasks train: Realloc leaves each of them "
            f"R/b requests, in sum {least} of {total}, and has none to move; lower ratio (or raise "
            "requests, or the tasks' buffers)",
        )
    ]


def _in_all(tasks: Sequence[Task], specs: Sequence[TaskSpec]) -> int:
    """The requests of all tasks; a task that joins later takes its requests from these."""
    return sum(
        spec.active_requests
        for task, spec in zip(tasks, specs, strict=True)
        if task.goal.join_time == 0
    )


def _more_than_clients(name: str, total: int, most: int) -> list[tuple[str, str]]:
    """Each request needs an idle client, so there can be no more requests than clients."""
    if total <= most:
        return []
    return [
        (
            "algorithm.requests",
            f"is {total}, but {name} asks idle clients only and at most {most} can be active; "
            f"no more than {most} requests will be out at a time",
        )
    ]


def _waits_for_all(
    tasks: Sequence[Task], algorithm: SyncOptions, simulation: Simulation
) -> list[tuple[str, str]]:
    """With k clients or fewer in a round, waiting for the first k updates is waiting for all."""
    k = algorithm.first_k
    if k == "all":
        return []
    sizes = clients_per_round(tasks, algorithm, simulation)
    short = {task.name: size for task, size in zip(tasks, sizes, strict=True) if size <= k}
    if not short:
        return []
    names = "every task" if len(short) == len(tasks) > 1 else ", ".join(short)
    fewest = f"{min(short.values()):.3g}"
    return [
        (
            "algorithm.first_k",
            f"is {k}, but with {fewest} clients a round for {names} it waits for the slowest of "
            'them; lower it, or say "all"',
        )
    ]


def clients_per_round(
    tasks: Sequence[Task], algorithm: SyncOptions, simulation: Simulation
) -> list[float]:
    """Clients per task and round while all tasks train: the fewest, or the expected number."""
    count = simulation.availability.clients_per_round(simulation.clients)
    match algorithm:
        case SequentialFedAvg():
            return [count] * len(tasks)
        case SyncST(split="round-robin"):
            return [count / len(tasks)] * len(tasks)
        case SyncBayesST(extra=extra) | SyncUCBST(extra=extra):
            # These leave a few of the available clients out, where there are no more.
            spare = min(float(extra), max(0.0, count - len(tasks)))
            if isinstance(simulation.availability, ActiveCap):
                count = min(count + extra, float(simulation.clients))
            count -= spare
        case _:
            pass
    total = sum(task.allocation.share for task in tasks)
    shares = [count * task.allocation.share / total for task in tasks]
    if isinstance(simulation.availability, Bernoulli):
        return shares
    return [float(math.floor(share + 1e-9)) for share in shares]
