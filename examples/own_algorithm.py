"""An asynchronous algorithm of your own, from Python and from a file.

FedAsync (Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", 2019) for several tasks: there
is no buffer, every update steps its task's model at once and counts less the staler it is.

python examples/own_algorithm.py
fedast run examples/own-algorithm.toml
"""

from __future__ import annotations

from collections.abc import Sequence

from fedast.core.ledger import Ledger
from fedast.core.progress import Progress
from fedast.core.protocol import (
    Accept,
    Command,
    Dispatch,
    Drop,
    DropReason,
    Evaluated,
    Event,
    Ignore,
    IgnoreReason,
    IllegalEvent,
    Pool,
    PoolChanged,
    RequestLost,
    Started,
    TaskAdded,
    TaskName,
    TaskSpec,
    TasksStopped,
    TaskStatus,
    UpdateArrived,
    VariancesMeasured,
)  # fmt: skip
from fedast.core.streams import Stream
from fedast.core.task_table import TaskTable


class FedAsync:
    """FedAsync: every update steps its task's model at once, the less the staler it is."""

    variance_window = 0
    wants_loss = False

    def __init__(
        self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream, *, exponent: float = 0.5
    ) -> None:
        self._pool, self._stream, self._exponent = pool, stream, exponent
        self._ledger, self._tasks = Ledger(), TaskTable(tasks)
        self._started = False

    @property
    def unfinished(self) -> tuple[TaskName, ...]:
        return self._tasks.unfinished

    def status(self) -> list[TaskStatus]:
        flying = self._ledger.in_flight
        return [
            task.status(flying(task.spec.name), active_requests=task.spec.active_requests)
            for task in self._tasks
        ]

    def handle(self, event: Event) -> list[Command]:
        if self._started is isinstance(event, Started):
            raise IllegalEvent("Started comes once, before every other event")
        self._started = True
        commands: list[Command] = []
        match event:
            case Started():
                commands += [task.evaluate() for task in self._tasks]
            case UpdateArrived():
                request = self._ledger.complete(event.request)
                if isinstance(request, IgnoreReason):
                    return [Ignore(event.request, request)]
                task = self._tasks[request.task]
                age = task.round - request.version
                commands.append(
                    Accept(request.id, request.task, request.client, request.version, age)
                )
                commands += task.advance([request.id], [(1 + age) ** -self._exponent])
            case RequestLost():
                lost = self._ledger.drop(event.request)
                if lost is not None:
                    commands.append(Drop(lost.id, lost.task, DropReason.LOST))
            case Evaluated():
                task = self._tasks[event.task]
                task.check(event)
                reason = task.judge(event)
                if reason is not None:
                    commands.append(task.finish(reason))
            case TaskAdded():
                commands.append(self._tasks.add(event.spec).evaluate())
            case TasksStopped():
                commands += self._tasks.stop(event.tasks, event.reason)
            case VariancesMeasured():
                raise IllegalEvent("nobody asked for variances")
            case PoolChanged():
                pass
        for task in self._tasks:
            self._balance(task, commands)
        return commands

    def _balance(self, task: Progress, commands: list[Command]) -> None:
        """Keep an open task's requests out; give up those of a task that has ended."""
        name = task.spec.name
        if not task.open:
            given_up = self._ledger.drop_all(name)
            commands += [Drop(request.id, name, DropReason.CANCELLED) for request in given_up]
        while task.open and self._ledger.in_flight(name) < task.spec.active_requests:
            client = self._pool.draw(self._stream, self._ledger.holders)
            if client is None:
                break
            request = self._ledger.open(name, client, task.round)
            commands.append(Dispatch(request.id, name, client, task.round))


if __name__ == "__main__":
    from own_tasks import diabetes, manual

    from fedast import Simulation, simulate

    world = Simulation(clients=30, max_time=100.0)
    outcome = simulate([diabetes(30, seed=1), manual(30, seed=1)], FedAsync, world, seed=1)
    for name, result in outcome.result.tasks.items():
        print(f"{name}: {result.metric} {result.final:.3f}, {result.finish_reason}")
