"""Asynchronous, buffered training: what FedAST and FedBuff have in common.

Theory of operation. Each task keeps a target of R requests at clients. Every update goes into
the task's buffer; when b are there, their mean steps the model and a new round begins. After each
update the task sends K in {0, 1, 2} new requests, which holds the number in flight at R or moves
it there gradually. With an allocation rule, every ``period * tasks * sum(R)`` updates the targets
are set anew from the measured variances (``Realloc``) and b follows. A task that ends hands its
requests to the rest.

What holds after every event: the targets of the open tasks sum to the same total; no more
requests than that are in flight; a buffer that has just been added to is shorter than b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias, assert_never, final

from fedast.algorithms.allocation import AllocationRule, sqrt_variance
from fedast.algorithms.async_progress import AsyncProgress
from fedast.algorithms.selection import Selection, draw
from fedast.algorithms.staleness import Weight
from fedast.core.apportion import apportion
from fedast.core.ledger import Ledger
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
    MeasureVariances,
    Pool,
    PoolChanged,
    Reallocate,
    ReallocCause,
    RequestLost,
    Started,
    StopReason,
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

Weigh: TypeAlias = Callable[[AsyncProgress, ClientId, int], float]
"""How much an update counts: of its task as it is on its arrival, its client and its staleness."""


@final
class Asynchronous:
    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        pool: Pool,
        stream: Stream,
        *,
        dynamic: bool = True,
        buffered: bool = True,
        allocation_rule: AllocationRule = sqrt_variance,
        variance_window: int = 8,
        period: float = 0.75,
        weight: Weight | None = None,
        weigh: Weigh | None = None,
        selection: Selection | None = None,
        max_staleness: int | None = None,
        free_on_cancel: bool = True,
        capped_start: bool = False,
    ) -> None:
        """``weight`` is of an update's staleness, ``weigh`` of its task and client too, and times
        it. ``capped_start``: the pool's rules hold for the initial send too, which in the paper's
        experiments may go to more clients than can be active later."""
        self._pool = pool
        self._stream = stream
        self._capped_start = capped_start
        self._buffered = buffered
        self._dynamic = dynamic
        self._allocation_rule = allocation_rule
        self._window = variance_window
        self._period = period
        self._weight = weight
        self._weigh = weigh
        self._selection = selection
        self._max_staleness = max_staleness
        self._free_on_cancel = free_on_cancel
        self._ledger = Ledger()
        self._table = TaskTable(tasks)
        self._tasks = {task.spec.name: AsyncProgress(task, buffered) for task in self._table}
        self._open = list(self._tasks.values())
        self._total = sum(state.target for state in self._open)
        self._since_realloc = 0
        self._asking: AsyncProgress | None = None
        """The state whose arrival waits for the variances; no other event is legal then."""
        self._started = False

    @property
    def variance_window(self) -> int:
        return self._window if self._dynamic else 0

    @property
    def wants_loss(self) -> bool:
        return self._selection is not None and self._selection.wants_loss

    @property
    def unfinished(self) -> tuple[TaskName, ...]:
        return self._table.unfinished

    def status(self) -> list[TaskStatus]:
        return [
            state.progress.status(
                self._ledger.in_flight(state.name),
                active_requests=state.target if state.progress.open else 0,
                buffer_size=state.buffer_size,
                buffered=len(state.buffer),
            )
            for state in self._tasks.values()
        ]

    def handle(self, event: Event) -> list[Command]:
        if self._started is isinstance(event, Started):
            raise IllegalEvent("Started comes once, before every other event")
        if (self._asking is not None) is not isinstance(event, VariancesMeasured):
            raise IllegalEvent("VariancesMeasured answers MeasureVariances, at once")
        match event:
            case UpdateArrived():
                return self._arrived(event)
            case RequestLost():
                return self._lost(event)
            case Evaluated():
                return self._evaluated(event)
            case VariancesMeasured():
                return self._measured(event.variances)
            case TaskAdded():
                return self._added(event.spec)
            case TasksStopped():
                return self._stopped(event)
            case PoolChanged():
                return self._pool_changed()
            case Started():
                return self._start()
            case _:
                assert_never(event)

    # --- the way of a request -------------------------------------------------

    def _start(self) -> list[Command]:
        self._started = True
        commands: list[Command] = []
        # Task by task in turns, so that no task is first in every client's queue.
        holders: Collection[ClientId] = self._ledger.holders if self._capped_start else ()
        for turn in range(max((state.target for state in self._open), default=0)):
            for state in self._open:
                if turn < state.target:
                    self._send(state, commands, holders)
        commands.extend(state.progress.evaluate() for state in self._open)
        return commands

    def _arrived(self, event: UpdateArrived) -> list[Command]:
        request = self._ledger.complete(event.request)
        if isinstance(request, IgnoreReason):
            return [Ignore(event.request, request)]
        if self._selection is not None:
            self._selection.learn(request.client, request.task, event.work_time, event.loss)
        state = self._tasks[request.task]
        staleness = state.progress.round - request.version
        counted = self._max_staleness is None or staleness <= self._max_staleness
        commands: list[Command] = [
            Accept(request.id, request.task, request.client, request.version, staleness, counted)
        ]
        if not counted:
            commands.append(Drop(request.id, request.task, DropReason.STALE))
        else:
            state.buffer.append(request.id)
            if self._weight is not None or self._weigh is not None:
                factor = 1.0 if self._weight is None else self._weight(staleness)
                if self._weigh is not None:
                    factor *= self._weigh(state, request.client, staleness)
                state.weights.append(factor)
            state.updates += 1
            self._since_realloc += 1
            if self._realloc_due():
                self._asking = state
                commands.append(MeasureVariances(tuple(other.name for other in self._open)))
                return commands
        self._after_arrival(state, commands)
        return commands

    def _after_arrival(self, state: AsyncProgress, commands: list[Command]) -> None:
        """What follows an arrival: step the model if the buffer is full, then refill."""
        if len(state.buffer) >= state.buffer_size:
            commands.extend(state.progress.advance(state.buffer, state.weights or None))
            state.buffer.clear()
            state.weights.clear()
            if not state.progress.open:
                self._retire([state], ReallocCause.HANDOVER, commands)
        self._refill(state, commands)

    def _refill(self, state: AsyncProgress, commands: list[Command]) -> None:
        """Send K new requests of a task that may have room, then see that no task starves."""
        self._top_up(state, commands)
        self._offer(commands)

    def _top_up(self, state: AsyncProgress, commands: list[Command]) -> None:
        """K = max(0, min(2, R - n, sum R - sum n)) requests, as far as the pool gives clients."""
        ledger = self._ledger
        if state.progress.open:
            missing = state.target - ledger.in_flight(state.progress.spec.name)
            for _ in range(min(2, missing, self._total - ledger.total_in_flight)):
                self._send(state, commands, ledger.holders)

    def _offer(self, commands: list[Command]) -> None:
        """One request for every task that has nothing in flight, while there is room."""
        ledger = self._ledger
        if ledger.total_in_flight < self._total:
            for state in self._open:
                if ledger.in_flight(state.name) == 0 and ledger.total_in_flight < self._total:
                    self._send(state, commands, ledger.holders)

    def _send(
        self, state: AsyncProgress, commands: list[Command], holders: Collection[ClientId]
    ) -> None:
        if self._selection is not None:
            client = draw(self._selection, state.name, self._pool, self._stream, holders)
        else:
            client = self._pool.draw(self._stream, holders)
        if client is not None:
            request = self._ledger.open(state.name, client, state.progress.round)
            commands.append(Dispatch(request.id, state.name, client, request.version))

    def _lost(self, event: RequestLost) -> list[Command]:
        request = self._ledger.drop(event.request)
        if request is None:
            return []
        reason = DropReason.INVALID if event.invalid else DropReason.LOST
        commands: list[Command] = [Drop(request.id, request.task, reason)]
        self._refill(self._tasks[request.task], commands)
        return commands

    def _pool_changed(self) -> list[Command]:
        """Clients came: every open task may make up for skipped picks, as after an update."""
        commands: list[Command] = []
        for state in self._open:
            self._top_up(state, commands)
        return commands

    # --- evaluation and the end of a task ---------------------------------------

    def _evaluated(self, event: Evaluated) -> list[Command]:
        task = self._table[event.task]
        task.check(event)
        commands: list[Command] = []
        reason = task.judge(event)
        if reason is not None:
            commands.append(task.finish(reason))
            self._retire([self._tasks[event.task]], ReallocCause.HANDOVER, commands)
            self._offer(commands)
        return commands

    def _stopped(self, event: TasksStopped) -> list[Command]:
        commands = self._table.stop(event.tasks, event.reason)
        removed = event.reason is StopReason.REMOVED
        cause = ReallocCause.REMOVE if removed else ReallocCause.HANDOVER
        self._retire([self._tasks[name] for name in event.tasks], cause, commands)
        self._offer(commands)
        return commands

    def _retire(
        self, states: Sequence[AsyncProgress], cause: ReallocCause, commands: list[Command]
    ) -> None:
        """Take tasks out of the allocation: drop what they hold, hand over their targets."""
        leaving = [state for state in states if state in self._open]
        for state in leaving:
            self._open.remove(state)
            commands.extend(
                Drop(request.id, state.name, DropReason.CANCELLED, self._free_on_cancel)
                for request in self._ledger.drop_all(state.name)
            )
            commands.extend(
                Drop(request_id, state.name, DropReason.CANCELLED) for request_id in state.buffer
            )
            state.buffer.clear()
            state.weights.clear()
        if leaving and self._open:
            weights = [float(state.target) for state in self._open]
            self._retarget(self._total, weights, [state.min_requests for state in self._open])
            commands.append(self._reallocated(cause))

    # --- allocation ---------------------------------------------------------------

    def _added(self, spec: TaskSpec) -> list[Command]:
        if self._open and not 1 <= spec.active_requests <= self._total - len(self._open):
            raise IllegalEvent(
                f"task {spec.name!r} asks for {spec.active_requests} of {self._total} active "
                f"requests; {len(self._open)} other tasks need one each"
            )
        state = AsyncProgress(self._table.add(spec), self._buffered)
        if self._open:
            weights = [float(other.target) for other in self._open]
            floors = [other.min_requests for other in self._open]
            self._retarget(self._total - state.target, weights, floors)
        else:
            state.retarget(self._total)
        self._tasks[spec.name] = state
        self._open.append(state)
        commands: list[Command] = [self._reallocated(ReallocCause.ADD), state.progress.evaluate()]
        self._offer(commands)
        return commands

    def _realloc_due(self) -> bool:
        return (
            self._dynamic
            and self._since_realloc >= self._period * len(self._open) * self._total
            and len(self._open) > 1
            and all(state.updates >= self._window for state in self._open)
        )

    def _measured(self, variances: Mapping[TaskName, float]) -> list[Command]:
        if variances.keys() != {state.name for state in self._open}:
            raise IllegalEvent("variances are for other tasks than those asked for")
        asking = self._asking
        assert asking is not None  # handle() admits this event in no other state
        self._asking = None
        self._since_realloc = 0
        commands: list[Command] = []
        values = [variances[state.name] for state in self._open]
        # A task that is diverging has no variance to speak of; its evaluation will end it,
        # and until then the allocation stays.
        if all(math.isfinite(value) and value >= 0.0 for value in values):
            weights = [
                self._allocation_rule(value, state.progress.spec)
                for value, state in zip(values, self._open, strict=True)
            ]
            least = [state.min_after_realloc for state in self._open]
            if sum(least) > self._total:  # at least what their aggregation needs
                least = [state.min_requests for state in self._open]
            self._retarget(self._total, weights, least)
            commands.append(self._reallocated(ReallocCause.PERIOD, dict(variances)))
        self._after_arrival(asking, commands)
        return commands

    def _retarget(self, total: int, weights: Sequence[float], least: Sequence[int]) -> None:
        for state, target in zip(self._open, apportion(total, weights, least), strict=True):
            state.retarget(target)

    def _reallocated(
        self, cause: ReallocCause, variances: Mapping[TaskName, float] | None = None
    ) -> Reallocate:
        return Reallocate(
            cause,
            targets={state.name: state.target for state in self._open},
            buffers={state.name: state.buffer_size for state in self._open},
            variances=variances,
        )
