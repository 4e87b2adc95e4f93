"""Synchronous rounds: what every synchronous algorithm does between its assignments.

Theory of operation. A round begins when nothing is collected and nothing is
evaluated any more: the algorithm's ``Assignment`` splits clients over the open
tasks, and each gets the newest model of its task. Each task takes its first k
updates and gives up the rest; a client that was given up works on until it is
done, and only then turns to its next request. When every task has its k, all
models step and are evaluated, and the next round begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never, final

from fedast.core.ledger import Ledger
from fedast.core.progress import Progress
from fedast.core.protocol import (
    Accept,
    ClientId,
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
    RequestId,
    RequestLost,
    Started,
    TaskAdded,
    TaskName,
    TaskSpec,
    TasksStopped,
    TaskStatus,
    UpdateArrived,
    VariancesMeasured,
)
from fedast.core.streams import Stream
from fedast.core.task_table import TaskTable


@dataclass(frozen=True, slots=True)
class Returned:
    """An update that counted: what an assignment may learn from."""

    client: ClientId
    task: TaskName
    work_time: float
    loss: float | None


class Assignment(Protocol):
    """Who trains what: the one thing in which synchronous algorithms differ."""

    @property
    def wants_loss(self) -> bool: ...

    def assign(
        self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream
    ) -> Sequence[Sequence[ClientId]]:
        """The clients of each task in the next round; empty groups if there are none."""
        ...

    def waits_for_all(self) -> bool:
        """Whether the round that was just assigned waits for every update."""
        ...

    def learn(self, returned: Sequence[Returned]) -> None:
        """The updates that counted in the round that has just ended."""
        ...


@final
class Rounds:
    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        pool: Pool,
        stream: Stream,
        assignment: Assignment,
        *,
        first_k: int | None = 30,
        free_on_cancel: bool = True,
        free_stragglers: bool = False,
    ) -> None:
        self._pool = pool
        self._stream = stream
        self._assignment = assignment
        self._first_k = first_k
        self._free_on_cancel = free_on_cancel
        self._free_stragglers = free_stragglers
        self._ledger = Ledger()
        self._tasks = TaskTable(tasks)
        self._collected: dict[TaskName, list[RequestId]] = {spec.name: [] for spec in tasks}
        self._returned: list[Returned] = []
        self._needed: int | None = None
        """Updates that end a task's collection in this round; None: all."""
        self._collecting: set[TaskName] = set()
        """Tasks that still wait for updates in this round."""
        self._judging: set[TaskName] = set()
        """Tasks whose evaluation the next round waits for."""
        self._started = False

    @property
    def variance_window(self) -> int:
        return 0

    @property
    def wants_loss(self) -> bool:
        return self._assignment.wants_loss

    @property
    def unfinished(self) -> tuple[TaskName, ...]:
        return self._tasks.unfinished

    def status(self) -> list[TaskStatus]:
        found = []
        for task in self._tasks:
            name = task.spec.name
            in_flight = self._ledger.in_flight(name)
            found.append(
                task.status(
                    in_flight,
                    active_requests=in_flight,
                    buffer_size=self._needed or 0,
                    buffered=len(self._collected[name]),
                )
            )
        return found

    def handle(self, event: Event) -> list[Command]:
        if self._started is isinstance(event, Started):
            raise IllegalEvent("Started comes once, before every other event")
        commands: list[Command] = []
        match event:
            case UpdateArrived():
                self._arrived(event, commands)
            case RequestLost():
                self._lost(event, commands)
            case Evaluated():
                self._evaluated(event, commands)
            case TaskAdded():
                self._added(event.spec, commands)
            case TasksStopped():
                self._stopped(event, commands)
            case PoolChanged():
                pass
            case Started():
                self._started = True
                for task in self._tasks:
                    self._evaluate(task, commands)
            case VariancesMeasured():
                raise IllegalEvent("synchronous rounds never ask for variances")
            case _:
                assert_never(event)
        if not self._collecting and not self._judging:
            self._begin_round(commands)
        return commands

    # --- one round ------------------------------------------------------------------

    def _begin_round(self, commands: list[Command]) -> None:
        """Send the next round's requests; with no clients, wait for the pool to change."""
        tasks = self._tasks.open
        if not tasks:
            return
        groups = self._assignment.assign([task.spec for task in tasks], self._pool, self._stream)
        self._needed = None if self._assignment.waits_for_all() else self._first_k
        for task, members in zip(tasks, groups, strict=True):
            for client in members:
                request = self._ledger.open(task.spec.name, client, task.round)
                commands.append(Dispatch(request.id, task.spec.name, client, request.version))
            if members:
                self._collecting.add(task.spec.name)

    def _arrived(self, event: UpdateArrived, commands: list[Command]) -> None:
        request = self._ledger.complete(event.request)
        if isinstance(request, IgnoreReason):
            commands.append(Ignore(event.request, request))
            return
        staleness = self._tasks[request.task].round - request.version
        commands.append(
            Accept(request.id, request.task, request.client, request.version, staleness)
        )
        self._collected[request.task].append(request.id)
        self._returned.append(Returned(request.client, request.task, event.work_time, event.loss))
        self._collect(request.task, commands)

    def _lost(self, event: RequestLost, commands: list[Command]) -> None:
        request = self._ledger.drop(event.request)
        if request is None:
            return
        reason = DropReason.INVALID if event.invalid else DropReason.LOST
        commands.append(Drop(request.id, request.task, reason))
        self._collect(request.task, commands)

    def _collect(self, name: TaskName, commands: list[Command]) -> None:
        """Close a task's collection if it has its k or nothing more can come."""
        enough = self._needed is not None and len(self._collected[name]) >= self._needed
        if enough or self._ledger.in_flight(name) == 0:
            commands.extend(
                Drop(request.id, name, DropReason.STRAGGLER, self._free_stragglers)
                for request in self._ledger.drop_all(name)
            )
            self._leave_round(name, commands)

    def _leave_round(self, name: TaskName, commands: list[Command]) -> None:
        if name not in self._collecting:
            return
        self._collecting.remove(name)
        if self._collecting:
            return
        self._assignment.learn(self._returned)
        self._returned = []
        for other, requests in self._collected.items():
            if requests:
                task = self._tasks[other]
                commands.extend(task.advance(requests))
                requests.clear()
                if task.asked == task.round:
                    self._judging.add(other)

    # --- evaluation, tasks that come and go -------------------------------------------

    def _evaluate(self, task: Progress, commands: list[Command]) -> None:
        commands.append(task.evaluate())
        self._judging.add(task.spec.name)

    def _evaluated(self, event: Evaluated, commands: list[Command]) -> None:
        task = self._tasks[event.task]
        task.check(event)
        reason = task.judge(event)
        if event.round == task.round:
            self._judging.discard(event.task)
        if reason is not None:
            commands.append(task.finish(reason))
            self._withdraw((event.task,), commands)

    def _added(self, spec: TaskSpec, commands: list[Command]) -> None:
        task = self._tasks.add(spec)
        self._collected[spec.name] = []
        self._evaluate(task, commands)

    def _stopped(self, event: TasksStopped, commands: list[Command]) -> None:
        commands.extend(self._tasks.stop(event.tasks, event.reason))
        self._withdraw(event.tasks, commands)

    def _withdraw(self, names: Sequence[TaskName], commands: list[Command]) -> None:
        """Tasks that end give up what they hold, all of them before the round can end."""
        for name in names:
            self._give_up(name, commands)
        for name in names:
            self._leave_round(name, commands)

    def _give_up(self, name: TaskName, commands: list[Command]) -> None:
        commands.extend(
            Drop(request.id, name, DropReason.CANCELLED, self._free_on_cancel)
            for request in self._ledger.drop_all(name)
        )
        commands.extend(
            Drop(request_id, name, DropReason.CANCELLED) for request_id in self._collected[name]
        )
        self._collected[name].clear()
        self._judging.discard(name)
