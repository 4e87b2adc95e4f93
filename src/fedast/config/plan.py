"""Who gets how much: from what tasks ask for to complete ``TaskSpec``s."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedast.aggregation.server_optimizers import ADAPTIVE_LR
from fedast.aggregation.settings import ServerSide
from fedast.algorithms.options import AlgorithmOptions, AsyncOptions
from fedast.config.schema import Simulation
from fedast.core.apportion import largest_remainder
from fedast.core.protocol import TaskSpec
from fedast.parts.errors import ConfigError
from fedast.records.run import ALL_TASKS
from fedast.tasks.metrics import Accuracy
from fedast.tasks.task import Task

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,59}")


def plan(
    tasks: Sequence[Task], algorithm: AlgorithmOptions, simulation: Simulation
) -> list[TaskSpec]:
    """Check what tasks ask for against each other and fill in the rest. It needs no data."""
    _check(tasks, simulation)
    algorithm.check(active_cap=simulation.active_cap, until=simulation.until)
    requests = [1] * len(tasks)
    buffers = [1] * len(tasks)
    if isinstance(algorithm, AsyncOptions):
        requests, buffers = _allocate(tasks, algorithm, simulation)
    _check_aggregators(tasks, [algorithm.updates_per_round(b) for b in buffers])
    return [
        TaskSpec(
            name=task.name,
            active_requests=r,
            buffer_size=b,
            min_buffer_size=task.server.aggregator.min_updates,
            share=task.allocation.share,
            target=task.goal.target,
            higher_is_better=task.metric.higher_is_better,
            max_rounds=task.goal.max_rounds,
            evaluate_every=task.goal.evaluate_every
            or algorithm.evaluation_period(task.goal.evaluate_hint, r),
            server_lr=task.training.server_lr or _server_lr(algorithm, task),
            client_lr=task.training.client_lr,
            local_steps=task.training.local_steps,
            batch_size=task.training.batch_size,
        )
        for task, r, b in zip(tasks, requests, buffers, strict=True)
    ]


def complete_server(side: ServerSide, spec: TaskSpec) -> ServerSide:
    """With what depends on the task's plan filled in."""
    optimizer = side.optimizer.complete(spec.active_requests / spec.buffer_size)
    return side if optimizer == side.optimizer else side.model_copy(update={"optimizer": optimizer})


def _check(tasks: Sequence[Task], simulation: Simulation) -> None:
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"tasks.{name}.name", "two tasks have this name; rename one of them")
    cap = simulation.active_cap
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
        if (
            goal.target is not None
            and isinstance(task.metric, Accuracy)
            and not 0 < goal.target <= 1
        ):
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
        raise ConfigError("tasks", "at least one task must start with the run (join_time 0)")


def _allocate(
    tasks: Sequence[Task], algorithm: AsyncOptions, simulation: Simulation
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
            f"is {total}, but the tasks ask for {sum(filter(None, asked))}; leave one of them out",
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
                f"tasks.{task.name}.requests",
                f"is {r}: too many of all {total}; lower it",
            )
        least = task.server.aggregator.min_updates
        b = task.allocation.buffer or max(least, round(r / algorithm.ratio_for(r)))
        if not algorithm.buffered:
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
    asked: Sequence[int | None], algorithm: AsyncOptions, simulation: Simulation
) -> int:
    if algorithm.requests is not None:
        return algorithm.requests
    if all(asked):
        return sum(filter(None, asked))
    usual = algorithm.usual_requests(simulation.active_cap, simulation.clients)
    return max(len(asked), usual)


def _server_lr(algorithm: AlgorithmOptions, task: Task) -> float:
    # The algorithm's rate scales updates; an adaptive optimizer's step is the rate itself.
    return ADAPTIVE_LR if task.server.optimizer.adaptive else algorithm.server_lr


def _check_aggregators(tasks: Sequence[Task], updates: Sequence[int | None]) -> None:
    """An aggregator that leaves nothing out would be the mean under another name."""
    for task, count in zip(tasks, updates, strict=True):
        how = task.server.aggregator
        if count is not None and count < how.min_updates:
            raise ConfigError(
                f"tasks.{task.name}.aggregator",
                f"{how.name} needs at least {how.min_updates} updates per round to cut any off, "
                f"here are {count}; take more, or the mean",
            )
