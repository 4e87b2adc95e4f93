"""Who gets how much: from what tasks ask for to complete ``TaskSpec``s."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from fedast.aggregation.settings import ADAPTIVE_RATE, Adaptive, ServerSide
from fedast.config.errors import ConfigError
from fedast.config.schema import (
    ActiveCap,
    AlgorithmConfig,
    AsyncConfig,
    Centralized,
    FedASTNoBuffer,
    FedBuff,
    SequentialFedAvg,
    Simulation,
    SyncST,
)
from fedast.core.apportion import largest_remainder
from fedast.core.protocol import TaskSpec
from fedast.records.run import ALL_TASKS
from fedast.tasks.metrics import METRICS
from fedast.tasks.task import Allocation, Goal, Training

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,59}")


class Outline(Protocol):
    """What planning needs of a task; a ``Task`` is one."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def training(self) -> Training: ...
    @property
    def goal(self) -> Goal: ...
    @property
    def allocation(self) -> Allocation: ...
    @property
    def server(self) -> ServerSide: ...


def active_cap(simulation: Simulation) -> int | None:
    """The cap on active clients, if the run has one."""
    match simulation.availability:
        case ActiveCap(cap=cap):
            return max(1, round(0.3 * simulation.clients)) if cap is None else cap
        case _:
            return None


def most_active(simulation: Simulation) -> int:
    """The most clients that can hold requests at a time."""
    return active_cap(simulation) or simulation.clients


USUAL_RATIO = 32.0
"""The paper's R/b."""


def ratio_of(algorithm: AsyncConfig, requests: int) -> float:
    """R/b of a task with so many requests and no buffer of its own.

    By default the paper's, but small enough for a buffer of at least 2: Realloc leaves every task
    R/b requests, so with b = 1 everywhere it could not move a single one.
    """
    if algorithm.ratio is not None:
        return algorithm.ratio
    return max(1.0, min(USUAL_RATIO, requests / 2))


def plan(
    tasks: Sequence[Outline], algorithm: AlgorithmConfig, simulation: Simulation
) -> list[TaskSpec]:
    """Check what tasks ask for against each other and fill in the rest."""
    _check(tasks, simulation)
    match algorithm:
        case SyncST(assignment="round-robin", selection="speed" | "loss"):
            raise ConfigError("algorithm.selection", "goes with random assignment only")
        case SyncST(selection="speed" | "loss") if active_cap(simulation) is None:
            raise ConfigError(
                "algorithm.selection",
                "needs simulation.availability active_cap: elsewhere all who can take part do",
            )
        case SequentialFedAvg() if simulation.until != "each":
            raise ConfigError(
                "simulation.until", 'must be "each": the next task begins when one has ended'
            )
        case _:
            pass
    requests = [1] * len(tasks)
    buffers = [1] * len(tasks)
    if isinstance(algorithm, AsyncConfig):
        requests, buffers = _allocate(tasks, algorithm, simulation)
        _check_combining(tasks, buffers)
    elif isinstance(algorithm, Centralized):
        _check_combining(tasks, [1] * len(tasks))
    elif algorithm.first_k != "all":
        _check_combining(tasks, [algorithm.first_k] * len(tasks))
    return [
        TaskSpec(
            name=task.name,
            active_requests=r,
            buffer_size=b,
            min_buffer_size=task.server.combining.min_updates,
            share=task.allocation.share,
            target=task.goal.target,
            higher_is_better=METRICS[task.metric].higher_is_better,
            max_rounds=task.goal.max_rounds,
            evaluate_every=task.goal.evaluate_every or _evaluate_every(algorithm, task.goal, r),
            server_lr=task.training.server_lr or _server_rate(algorithm, task),
            client_lr=task.training.client_lr,
            local_steps=task.training.local_steps,
            batch_size=task.training.batch_size,
        )
        for task, r, b in zip(tasks, requests, buffers, strict=True)
    ]


def _check(tasks: Sequence[Outline], simulation: Simulation) -> None:
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"tasks.{name}.name", "two tasks have this name; give one another")
    cap = active_cap(simulation)
    if cap is not None and cap > simulation.clients:
        raise ConfigError(
            "simulation.availability.cap",
            f"is {cap}, but there are only {simulation.clients} clients; lower it",
        )
    for task in tasks:
        key, goal = f"tasks.{task.name}", task.goal
        if not _NAME.fullmatch(task.name) or task.name == ALL_TASKS:
            raise ConfigError(
                f"{key}.name", "use letters, digits, spaces and . _ - (at most 60), not 'all tasks'"
            )
        if goal.target is not None and task.metric == "accuracy" and not 0 < goal.target <= 1:
            raise ConfigError(
                f"{key}.target", f"an accuracy is a fraction between 0 and 1, got {goal.target}"
            )
        if goal.leave_time is not None and goal.leave_time <= goal.join_time:
            raise ConfigError(f"{key}.leave_time", "must be later than join_time")
        limits = [limit for limit in (goal.max_time, simulation.max_time) if limit is not None]
        if limits and goal.join_time >= min(limits):
            raise ConfigError(
                f"{key}.join_time", f"must be earlier than its time limit, {min(limits)}"
            )
        if simulation.until == "all" and goal.target is None:
            raise ConfigError(f"{key}.target", 'is missing; simulation.until = "all" needs one')
        if simulation.until == "time" and not limits and goal.max_rounds is None:
            raise ConfigError(
                "simulation.max_time", 'is missing; simulation.until = "time" needs a limit'
            )
    if all(task.goal.join_time > 0 for task in tasks):
        raise ConfigError("tasks", "at least one task must be there from the start (join_time 0)")


def _allocate(
    tasks: Sequence[Outline], algorithm: AsyncConfig, simulation: Simulation
) -> tuple[list[int], list[int]]:
    """R and b of every task. Tasks that join later take their R from those of the start."""
    first = [task for task in tasks if task.goal.join_time == 0]
    asked = [task.allocation.requests for task in first]
    total = _total_requests(asked, algorithm, simulation)
    if total < len(tasks):
        raise ConfigError(
            "algorithm.requests",
            f"is {total}, but {len(tasks)} tasks need at least one each; raise it",
        )
    if all(asked) and sum(filter(None, asked)) != total:
        raise ConfigError(
            "algorithm.requests",
            f"is {total}, but the tasks ask for {sum(filter(None, asked))}; leave one of both out",
        )
    open_places = [task for task in first if task.allocation.requests is None]
    rest = total - sum(filter(None, asked))
    if rest < len(open_places):
        raise ConfigError(
            "algorithm.requests",
            f"is {total}, which leaves {rest} for {len(open_places)} tasks without requests of "
            "their own; raise it",
        )
    by_share = algorithm.initial == "shares"
    weights = [task.allocation.share if by_share else 1.0 for task in open_places]
    shares = dict(
        zip(
            [task.name for task in open_places],
            largest_remainder(rest, weights),
            strict=True,
        )
    )
    requests, buffers = [], []
    for task in tasks:
        r = task.allocation.requests or shares.get(task.name) or max(1, total // len(tasks))
        if task.goal.join_time > 0 and r > total - len(tasks) + 1:
            raise ConfigError(
                f"tasks.{task.name}.requests", f"is {r}: too much of the {total} of all; lower it"
            )
        least = task.server.combining.min_updates
        b = task.allocation.buffer or max(least, round(r / ratio_of(algorithm, r)))
        if isinstance(algorithm, FedASTNoBuffer):
            b = 1
        elif b > r:
            raise ConfigError(
                f"tasks.{task.name}.buffer",
                f"is {b}, but the task has only {r} active requests; lower it or raise requests",
            )
        requests.append(r)
        buffers.append(b)
    return requests, buffers


def _total_requests(
    asked: Sequence[int | None], algorithm: AsyncConfig, simulation: Simulation
) -> int:
    if algorithm.requests is not None:
        return algorithm.requests
    if all(asked):
        return sum(filter(None, asked))
    cap = active_cap(simulation)
    # 1.28 requests per active client is the paper's 384 over 300.
    usual = round(1.28 * (cap if cap is not None else 0.3 * simulation.clients))
    if isinstance(algorithm, FedBuff) and algorithm.idle:
        usual = min(usual, most_active(simulation))
    return max(len(asked), usual)


def _server_rate(algorithm: AlgorithmConfig, task: Outline) -> float:
    # The algorithm's rate scales updates; an adaptive step's length is the rate itself.
    return ADAPTIVE_RATE if isinstance(task.server.step, Adaptive) else algorithm.server_lr


def _check_combining(tasks: Sequence[Outline], updates: Sequence[int]) -> None:
    """A rule that cuts nothing off would be the mean by another name."""
    for task, count in zip(tasks, updates, strict=True):
        how = task.server.combining
        if count < how.min_updates:
            raise ConfigError(
                f"tasks.{task.name}.combining",
                f"{how.rule} needs at least {how.min_updates} updates per round to cut any off, "
                f"here are {count}; take more, or the mean",
            )


def _evaluate_every(algorithm: AlgorithmConfig, goal: Goal, requests: int) -> int:
    if algorithm.synchronous:
        return algorithm.evaluate_every
    usual = goal.evaluate_hint or algorithm.evaluate_every
    if isinstance(algorithm, FedASTNoBuffer):
        return max(1, round(usual * requests / (algorithm.ratio or USUAL_RATIO)))
    return usual
