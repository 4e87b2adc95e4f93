"""The protocol of the control plane: events in, commands out.

Theory of operation. An algorithm is a state machine. A driver (the simulator,
or a real deployment) tells it what has happened, one *event* at a time, and
carries out the *commands* that come back, in order, before the next event.
Nothing in here knows a clock, a network or a tensor: events and commands carry
ids, counts, versions and a few scalars.

Two commands are questions. ``MeasureVariances`` is answered by
``VariancesMeasured`` before any other event is delivered; ``Evaluate`` is
answered, at some later point, by ``Evaluated`` (the simulator answers at once,
at the same virtual time, so that evaluation never changes the schedule).

An event that the current state does not admit raises ``IllegalEvent`` and
leaves the algorithm exactly as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from fedast.core.streams import Stream

TaskName: TypeAlias = str
ClientId: TypeAlias = int
RequestId: TypeAlias = int
Version: TypeAlias = int
"""A model version is the round of its task that produced it; 0 is the initial model."""


class IllegalEvent(Exception):
    """The event does not fit the algorithm's state; the state is unchanged."""


class FinishReason(StrEnum):
    TARGET = "target"
    ROUNDS = "rounds"
    TIME = "time"
    DIVERGED = "diverged"
    REMOVED = "removed"
    INTERRUPTED = "interrupted"


class StopReason(StrEnum):
    """Why a driver stops tasks from outside. Each is also a ``FinishReason``."""

    TARGET = "target"
    TIME = "time"
    REMOVED = "removed"
    INTERRUPTED = "interrupted"


class DropReason(StrEnum):
    STALE = "stale"
    STRAGGLER = "straggler"
    CANCELLED = "cancelled"
    INVALID = "invalid"
    LOST = "lost"


class IgnoreReason(StrEnum):
    LATE = "late"
    DUPLICATE = "duplicate"


class ReallocCause(StrEnum):
    PERIOD = "period"
    HANDOVER = "handover"
    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What the control plane must know about a task.

    ``active_requests`` (R), ``buffer_size`` (b) and ``share`` are the task's
    part in the allocation: the first two for asynchronous algorithms, the last
    for synchronous ones; ``min_buffer_size`` is what b never falls below, however
    requests are reallocated. ``hold`` is the number of evaluations whose mean must
    be at the target for the task to end. The learning rates (``server_lr`` eta_s,
    ``client_lr`` eta_c) and ``local_steps`` (tau) only enter the allocation
    rule of Realloc, ``batch_size`` the scores of Sync-UCB-ST.
    """

    name: TaskName
    active_requests: int = 1
    buffer_size: int = 1
    min_buffer_size: int = 1
    share: float = 1.0
    target: float | None = None
    hold: int = 1
    higher_is_better: bool = True
    max_rounds: int | None = None
    evaluate_every: int = 1
    server_lr: float = 1.0
    client_lr: float = 0.1
    local_steps: int = 1
    batch_size: int = 1

    def reached(self, metric: float) -> bool:
        if self.target is None:
            return False
        return metric >= self.target if self.higher_is_better else metric <= self.target


# --- events: what has happened ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins. Delivered once, first."""


@dataclass(frozen=True, slots=True)
class UpdateArrived:
    """A client has returned the update of a request.

    ``loss`` is the client's mean training loss, given only to algorithms that
    say they want it; ``work_time`` is how long the training itself took,
    without the wait in the client's queue.
    """

    request: RequestId
    work_time: float
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class RequestLost:
    """A request will bring no usable update: its client is gone, or what it sent is invalid."""

    request: RequestId
    invalid: bool = False


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The answer to ``Evaluate``: how the model of a round did on the test set."""

    task: TaskName
    round: Version
    metric: float
    loss: float
    raw: tuple[float, float] | None = None
    """Metric and loss of the newest model, where an average of the models was evaluated: for
    observers, algorithms never get it."""
    more: tuple[float, ...] = ()
    """The task's further metrics, for observers too."""


@dataclass(frozen=True, slots=True)
class VariancesMeasured:
    """The answer to ``MeasureVariances``: a variance for every task that was asked for."""

    variances: Mapping[TaskName, float]


@dataclass(frozen=True, slots=True)
class TaskAdded:
    """A new task joins; its ``active_requests`` are taken from the others."""

    spec: TaskSpec


@dataclass(frozen=True, slots=True)
class TasksStopped:
    """Tasks end from outside: their time is up, or they were removed or interrupted, or all tasks
    have reached their targets in a run that was to last until then."""

    tasks: tuple[TaskName, ...]
    reason: StopReason


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """Clients may have become available; an algorithm short of clients tries again."""


Event: TypeAlias = (
    Started
    | UpdateArrived
    | RequestLost
    | Evaluated
    | VariancesMeasured
    | TaskAdded
    | TasksStopped
    | PoolChanged
)


# --- commands: what the driver shall do ----------------------------------------


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send a client the model ``version`` of a task to train."""

    request: RequestId
    task: TaskName
    client: ClientId
    version: Version


@dataclass(frozen=True, slots=True)
class Accept:
    """The update of a request was in time: keep it until it is aggregated or dropped.

    One that is not ``counted`` is dropped at once, because it is too stale.
    """

    request: RequestId
    task: TaskName
    client: ClientId
    version: Version
    staleness: int
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Average these updates, each times its weight (None: 1), and step the model to ``round``."""

    task: TaskName
    round: Version
    requests: tuple[RequestId, ...]
    weights: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Evaluate:
    task: TaskName
    round: Version


@dataclass(frozen=True, slots=True)
class MeasureVariances:
    """Estimate the variance of each task from its latest accepted updates."""

    tasks: tuple[TaskName, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a request, in flight or accepted.

    If it is still in flight, ``free_client`` says whether the client stops
    working on it at once or finishes work that nobody waits for.
    """

    request: RequestId
    task: TaskName
    reason: DropReason
    free_client: bool = True


@dataclass(frozen=True, slots=True)
class Ignore:
    """An update came for a request that is no longer open; nothing changes."""

    request: RequestId
    reason: IgnoreReason


@dataclass(frozen=True, slots=True)
class Reallocate:
    """Note the new targets of active requests (and buffer sizes) of the unfinished tasks."""

    cause: ReallocCause
    targets: Mapping[TaskName, int]
    buffers: Mapping[TaskName, int]
    variances: Mapping[TaskName, float] | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    task: TaskName
    reason: FinishReason


Command: TypeAlias = (
    Dispatch
    | Accept
    | Aggregate
    | Evaluate
    | MeasureVariances
    | Drop
    | Ignore
    | Reallocate
    | Finish
)


# --- the seams ------------------------------------------------------------------


class Pool(Protocol):
    """Where clients come from. The driver owns it; the algorithm's rule works on it."""

    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        """One client for one more request, or None if this pick must be skipped.

        ``holders`` are the clients that hold a request at this moment. A mapping (such as
        ``Ledger.holders``) also says how many each holds, which a pool may go by.
        """
        ...

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        """The distinct clients that can take part in a synchronous round now.

        ``extra`` asks for so many more, to choose from, where their number is limited.
        """
        ...

    def everyone(self) -> Sequence[ClientId]:
        """All clients that are there now, whatever limits their number in a round."""
        ...


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Where a running task stands, for the live table and for monitoring."""

    name: TaskName
    round: int
    active_requests: int
    in_flight: int
    buffer_size: int
    buffered: int
    finished: FinishReason | None


class Algorithm(Protocol):
    """What a driver needs of an algorithm."""

    @property
    def variance_window(self) -> int:
        """How many of a task's latest accepted updates must be kept for ``MeasureVariances``."""
        ...

    @property
    def wants_loss(self) -> bool:
        """Whether ``UpdateArrived`` must carry the client's mean training loss."""
        ...

    @property
    def unfinished(self) -> tuple[TaskName, ...]: ...

    def handle(self, event: Event) -> list[Command]: ...

    def status(self) -> list[TaskStatus]: ...


class Observer(Protocol):
    """Watches a run: every command as it is carried out, and what only a driver knows."""

    def commanded(self, now: float, command: Command) -> None: ...

    def started(self, now: float, request: RequestId, client: ClientId) -> None: ...

    def evaluated(self, now: float, event: Evaluated) -> None: ...


@dataclass(frozen=True, slots=True)
class Observers:
    """Several observers as one."""

    members: tuple[Observer, ...] = field(default=())

    def commanded(self, now: float, command: Command) -> None:
        for member in self.members:
            member.commanded(now, command)

    def started(self, now: float, request: RequestId, client: ClientId) -> None:
        for member in self.members:
            member.started(now, request, client)

    def evaluated(self, now: float, event: Evaluated) -> None:
        for member in self.members:
            member.evaluated(now, event)
