"""FedAST: Federated Asynchronous Simultaneous Training.

Askin, Sharma, Joe-Wong, Joshi: "FedAST: Federated Asynchronous Simultaneous
Training", UAI 2024 (Algorithms 2 and 3).

The rule. Each task m keeps R_m requests at uniformly random clients. Every
update goes into the task's buffer; when b_m are there, their mean steps the
model and a new round begins. After each update the task sends K in {0, 1, 2}
new requests, which holds the number in flight at R_m or moves it there
gradually. With the dynamic option, every ``period * tasks * sum(R)`` updates
the targets R_m are set in proportion to the square root of the measured
variance of the task's updates (``Realloc``), and b_m follows so that R_m / b_m
stays near what it was at the start (``buffer_size_for``). A task that ends hands
its requests to the rest.

What holds after every event: the targets of the open tasks sum to the same
total; no more requests than that are in flight; a buffer that has just been
added to is shorter than b_m. Options: ``dynamic`` False is FedAST(S), True is
FedAST(D); ``buffered`` False is FedAST-NoBuffer, where b_m stays 1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import assert_never, final

from fedast.algorithms.allocation import AllocationRule, plain
from fedast.algorithms.selection import Selection, draw
from fedast.algorithms.staleness import Weight
from fedast.core.apportion import apportion
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
    MeasureVariances,
    Pool,
    PoolChanged,
    Reallocate,
    ReallocCause,
    RequestId,
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

RATIO_LIMIT = 37
"""The R/b up to which the paper finds a fixed ratio to work."""


def buffer_size_for(requests: int, ratio: float, minimum: int = 1) -> int:
    """b for R active requests: the size nearest to the ratio R/b that a task started with.

    One more where rounding would take R/b above the paper's limit although the
    task started within it; never below the task's own minimum.
    """
    size = max(1, round(requests / ratio))
    if requests / size > RATIO_LIMIT >= ratio:
        size += 1
    return max(minimum, size)


def least_requests(spec: TaskSpec) -> int:
    """What Realloc leaves a task at least: one place's worth of requests, R/b, and as many as its
    smallest buffer has places."""
    worth = math.ceil(spec.active_requests / spec.buffer_size - 1e-9)
    return max(1, spec.min_buffer_size, worth)


@final
class _Lane:
    """One task's part of the server: its target, its buffer, its progress."""

    __slots__ = ("buffer", "buffer_size", "progress", "ratio", "target", "updates", "weights")

    def __init__(self, spec: TaskSpec, buffered: bool) -> None:
        self.progress = Progress(spec)
        self.target = spec.active_requests
        self.buffer_size = spec.buffer_size if buffered else 1
        self.ratio = spec.active_requests / spec.buffer_size if buffered else None
        self.buffer: list[RequestId] = []
        self.weights: list[float] = []
        """Of the updates in the buffer, if staleness is weighted."""
        self.updates = 0

    @property
    def name(self) -> TaskName:
        return self.progress.spec.name

    @property
    def floor(self) -> int:
        """Requests that fill the smallest buffer the task may have."""
        return 1 if self.ratio is None else self.progress.spec.min_buffer_size

    @property
    def least(self) -> int:
        return 1 if self.ratio is None else least_requests(self.progress.spec)

    def retarget(self, target: int) -> None:
        self.target = target
        if self.ratio is not None:
            minimum = self.progress.spec.min_buffer_size
            self.buffer_size = buffer_size_for(target, self.ratio, minimum)


@final
class FedAST:
    def __init__(
        self,
        tasks: Sequence[TaskSpec],
        pool: Pool,
        stream: Stream,
        *,
        dynamic: bool = True,
        buffered: bool = True,
        weighting: AllocationRule = plain,
        variance_window: int = 8,
        period: float = 0.75,
        weight: Weight | None = None,
        selection: Selection | None = None,
        max_staleness: int | None = None,
        free_on_cancel: bool = True,
        capped_start: bool = False,
    ) -> None:
        """``capped_start``: the pool's rules hold for the initial send too, which in the paper's
        experiments may go to more clients than can be active later."""
        self._pool = pool
        self._stream = stream
        self._capped_start = capped_start
        self._buffered = buffered
        self._dynamic = dynamic
        self._weigh = weighting
        self._window = variance_window
        self._period = period
        self._weight = weight
        self._selection = selection
        self._max_staleness = max_staleness
        self._free_on_cancel = free_on_cancel
        self._ledger = Ledger()
        self._lanes = {spec.name: _Lane(spec, buffered) for spec in tasks}
        self._open = list(self._lanes.values())
        self._total = sum(lane.target for lane in self._open)
        self._since_realloc = 0
        self._asking: _Lane | None = None
        """The lane whose arrival waits for the variances; no other event is legal then."""
        self._started = False

    @property
    def variance_window(self) -> int:
        return self._window if self._dynamic else 0

    @property
    def wants_loss(self) -> bool:
        return self._selection is not None and self._selection.wants_loss

    @property
    def unfinished(self) -> tuple[TaskName, ...]:
        return tuple(name for name, lane in self._lanes.items() if lane.progress.finished is None)

    def status(self) -> list[TaskStatus]:
        return [
            TaskStatus(
                name=lane.name,
                round=lane.progress.round,
                active_requests=lane.target if lane.progress.open else 0,
                in_flight=self._ledger.in_flight(lane.name),
                buffer_size=lane.buffer_size,
                buffered=len(lane.buffer),
                finished=lane.progress.finished,
            )
            for lane in self._lanes.values()
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
        for turn in range(max((lane.target for lane in self._open), default=0)):
            for lane in self._open:
                if turn < lane.target:
                    self._send(lane, commands, holders)
        commands.extend(lane.progress.evaluate() for lane in self._open)
        return commands

    def _arrived(self, event: UpdateArrived) -> list[Command]:
        request = self._ledger.settle(event.request)
        if isinstance(request, IgnoreReason):
            return [Ignore(event.request, request)]
        if self._selection is not None:
            self._selection.learn(request.client, request.task, event.work_time, event.loss)
        lane = self._lanes[request.task]
        staleness = lane.progress.round - request.version
        counted = self._max_staleness is None or staleness <= self._max_staleness
        commands: list[Command] = [
            Accept(request.id, request.task, request.client, request.version, staleness, counted)
        ]
        if not counted:
            commands.append(Drop(request.id, request.task, DropReason.STALE))
        else:
            lane.buffer.append(request.id)
            if self._weight is not None:
                lane.weights.append(self._weight(staleness))
            lane.updates += 1
            self._since_realloc += 1
            if self._realloc_due():
                self._asking = lane
                commands.append(MeasureVariances(tuple(other.name for other in self._open)))
                return commands
        self._settle(lane, commands)
        return commands

    def _settle(self, lane: _Lane, commands: list[Command]) -> None:
        """What follows an arrival: step the model if the buffer is full, then refill."""
        if len(lane.buffer) >= lane.buffer_size:
            commands.extend(lane.progress.advance(lane.buffer, lane.weights or None))
            lane.buffer.clear()
            lane.weights.clear()
            if not lane.progress.open:
                self._retire([lane], ReallocCause.HANDOVER, commands)
        self._refill(lane, commands)

    def _refill(self, lane: _Lane, commands: list[Command]) -> None:
        """Send K new requests of a task that may have room, then see that no task starves."""
        self._top_up(lane, commands)
        self._offer(commands)

    def _top_up(self, lane: _Lane, commands: list[Command]) -> None:
        """K = max(0, min(2, R - n, sum R - sum n)) requests, as far as the pool gives clients."""
        ledger = self._ledger
        if lane.progress.open:
            missing = lane.target - ledger.in_flight(lane.progress.spec.name)
            for _ in range(min(2, missing, self._total - ledger.total_in_flight)):
                self._send(lane, commands, ledger.holders)

    def _offer(self, commands: list[Command]) -> None:
        """One request for every task that has nothing in flight, while there is room."""
        ledger = self._ledger
        if ledger.total_in_flight < self._total:
            for lane in self._open:
                if ledger.in_flight(lane.name) == 0 and ledger.total_in_flight < self._total:
                    self._send(lane, commands, ledger.holders)

    def _send(self, lane: _Lane, commands: list[Command], holders: Collection[ClientId]) -> None:
        if self._selection is not None:
            client = draw(self._selection, lane.name, self._pool, self._stream, holders)
        else:
            client = self._pool.draw(self._stream, holders)
        if client is not None:
            request = self._ledger.open(lane.name, client, lane.progress.round)
            commands.append(Dispatch(request.id, lane.name, client, request.version))

    def _lost(self, event: RequestLost) -> list[Command]:
        request = self._ledger.drop(event.request)
        if request is None:
            return []
        reason = DropReason.INVALID if event.invalid else DropReason.LOST
        commands: list[Command] = [Drop(request.id, request.task, reason)]
        self._refill(self._lanes[request.task], commands)
        return commands

    def _pool_changed(self) -> list[Command]:
        """Clients came: every open task may make up for skipped picks, as after an update."""
        commands: list[Command] = []
        for lane in self._open:
            self._top_up(lane, commands)
        return commands

    # --- evaluation and the end of a task ---------------------------------------

    def _evaluated(self, event: Evaluated) -> list[Command]:
        lane = self._lane(event.task)
        lane.progress.check(event)
        commands: list[Command] = []
        reason = lane.progress.judge(event)
        if reason is not None:
            commands.append(lane.progress.finish(reason))
            self._retire([lane], ReallocCause.HANDOVER, commands)
            self._offer(commands)
        return commands

    def _stopped(self, event: TasksStopped) -> list[Command]:
        lanes = [self._lane(name) for name in event.tasks]
        if any(lane.progress.finished is not None for lane in lanes):
            raise IllegalEvent(f"a task of {event.tasks} has finished already")
        commands: list[Command] = []
        for lane in lanes:
            command = lane.progress.stop(event.reason)
            if command is not None:
                commands.append(command)
        removed = event.reason is StopReason.REMOVED
        cause = ReallocCause.REMOVE if removed else ReallocCause.HANDOVER
        self._retire(lanes, cause, commands)
        self._offer(commands)
        return commands

    def _retire(self, lanes: Sequence[_Lane], cause: ReallocCause, commands: list[Command]) -> None:
        """Take tasks out of the allocation: drop what they hold, hand over their targets."""
        leaving = [lane for lane in lanes if lane in self._open]
        for lane in leaving:
            self._open.remove(lane)
            commands.extend(
                Drop(request.id, lane.name, DropReason.CANCELLED, self._free_on_cancel)
                for request in self._ledger.drop_all(lane.name)
            )
            commands.extend(
                Drop(request_id, lane.name, DropReason.CANCELLED) for request_id in lane.buffer
            )
            lane.buffer.clear()
            lane.weights.clear()
        if leaving and self._open:
            weights = [float(lane.target) for lane in self._open]
            self._retarget(self._total, weights, [lane.floor for lane in self._open])
            commands.append(self._reallocated(cause))

    # --- allocation ---------------------------------------------------------------

    def _added(self, spec: TaskSpec) -> list[Command]:
        if spec.name in self._lanes:
            raise IllegalEvent(f"a task named {spec.name!r} exists already")
        if self._open and not 1 <= spec.active_requests <= self._total - len(self._open):
            raise IllegalEvent(
                f"task {spec.name!r} asks for {spec.active_requests} of {self._total} active "
                f"requests; {len(self._open)} other tasks need one each"
            )
        lane = _Lane(spec, self._buffered)
        if self._open:
            weights = [float(other.target) for other in self._open]
            floors = [other.floor for other in self._open]
            self._retarget(self._total - lane.target, weights, floors)
        else:
            lane.retarget(self._total)
        self._lanes[spec.name] = lane
        self._open.append(lane)
        commands: list[Command] = [self._reallocated(ReallocCause.ADD), lane.progress.evaluate()]
        self._offer(commands)
        return commands

    def _realloc_due(self) -> bool:
        return (
            self._dynamic
            and self._since_realloc >= self._period * len(self._open) * self._total
            and len(self._open) > 1
            and all(lane.updates >= self._window for lane in self._open)
        )

    def _measured(self, variances: Mapping[TaskName, float]) -> list[Command]:
        if variances.keys() != {lane.name for lane in self._open}:
            raise IllegalEvent("variances are for other tasks than those asked for")
        asking = self._asking
        assert asking is not None  # handle() admits this event in no other state
        self._asking = None
        self._since_realloc = 0
        commands: list[Command] = []
        values = [variances[lane.name] for lane in self._open]
        # A task that is diverging has no variance to speak of; its evaluation will end it,
        # and until then the allocation stays.
        if all(math.isfinite(value) and value >= 0.0 for value in values):
            weights = [
                self._weigh(value, lane.progress.spec)
                for value, lane in zip(values, self._open, strict=True)
            ]
            least = [lane.least for lane in self._open]
            if sum(least) > self._total:  # at least what their aggregation needs
                least = [lane.floor for lane in self._open]
            self._retarget(self._total, weights, least)
            commands.append(self._reallocated(ReallocCause.PERIOD, dict(variances)))
        self._settle(asking, commands)
        return commands

    def _retarget(self, total: int, weights: Sequence[float], least: Sequence[int]) -> None:
        for lane, target in zip(self._open, apportion(total, weights, least), strict=True):
            lane.retarget(target)

    def _reallocated(
        self, cause: ReallocCause, variances: Mapping[TaskName, float] | None = None
    ) -> Reallocate:
        return Reallocate(
            cause,
            targets={lane.name: lane.target for lane in self._open},
            buffers={lane.name: lane.buffer_size for lane in self._open},
            variances=variances,
        )

    def _lane(self, name: TaskName) -> _Lane:
        try:
            return self._lanes[name]
        except KeyError:
            raise IllegalEvent(f"there is no task named {name!r}") from None
