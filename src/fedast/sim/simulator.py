"""The simulator: joins an algorithm to a data plane under a virtual clock.

Theory of operation. The clock holds three kinds of items: a request that
completes, a timer (a deadline, a task that joins), a change of the pool. Each
becomes an event for the algorithm; the commands that come back are carried out
at once, in order, at the same virtual time. Evaluations and variances are
answered there and then, before the clock moves, and from the data plane alone:
they touch neither the schedule nor any random stream.

A request's duration is drawn from a stream of its own when it is sent, so the
schedule does not depend on the order in which anything else draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never, final

from fedast.core.delivery import deliver
from fedast.core.protocol import (
    Accept,
    Aggregate,
    Algorithm,
    ClientId,
    Command,
    Dispatch,
    Drop,
    Evaluate,
    Evaluated,
    Event,
    Finish,
    Ignore,
    MeasureVariances,
    Observer,
    PoolChanged,
    Reallocate,
    RequestId,
    RequestLost,
    Started,
    StopReason,
    TaskAdded,
    TaskName,
    TaskSpec,
    TasksStopped,
    UpdateArrived,
    VariancesMeasured,
)
from fedast.core.streams import Stream
from fedast.learner.protocol import Learner
from fedast.sim.availability import SimulatedPool
from fedast.sim.clock import Clock
from fedast.sim.delays import Delay, Speeds, Timing
from fedast.sim.queues import Queues


@dataclass(frozen=True, slots=True)
class Join:
    """A timer: this task joins."""

    spec: TaskSpec


@dataclass(frozen=True, slots=True)
class Deadline:
    """A timer: these tasks (None: all) stop, as far as they have not finished."""

    tasks: tuple[TaskName, ...] | None
    reason: StopReason


Timer: TypeAlias = Join | Deadline


@dataclass(frozen=True, slots=True)
class _PoolChange:
    pass


@final
class _Job:
    """A request at a client, from its dispatch until the client is done with it."""

    __slots__ = ("abandoned", "client", "duration", "lost", "task")

    def __init__(self, task: TaskName, client: ClientId, duration: float, lost: bool) -> None:
        self.task = task
        self.client = client
        self.duration = duration
        self.lost = lost
        self.abandoned = False
        """Dropped by the server, but the client works on."""


def _never() -> bool:
    return False


@final
class Simulator:
    def __init__(
        self,
        algorithm: Algorithm,
        learner: Learner,
        pool: SimulatedPool,
        delay: Delay,
        speeds: Speeds,
        timings: Mapping[TaskName, Timing],
        observer: Observer,
        *,
        seed: int,
        loss_rate: float = 0.0,
        timers: Sequence[tuple[float, Timer]] = (),
        enough: Callable[[], bool] = _never,
    ) -> None:
        self._algorithm = algorithm
        self._wants_loss = algorithm.wants_loss
        self._learner = learner
        self._pool = pool
        self._delay = delay
        self._speeds = speeds
        self._timings = timings
        self._observer = observer
        self._delay_stream = Stream.of(seed, "delay")
        self._loss_stream = Stream.of(seed, "loss")
        self._loss_rate = loss_rate
        self._enough = enough
        """Whether all has been reached that the run was for; asked before each step."""
        self._queues = Queues()
        self._jobs: dict[RequestId, _Job] = {}
        self._unfinished = set(algorithm.unfinished)
        self._joining = 0
        self._clock: Clock[RequestId | Timer | _PoolChange] = Clock()
        for time, timer in timers:
            self._clock.schedule(time, timer)
            self._joining += isinstance(timer, Join)
        self._schedule_pool_change()
        self.starved = False
        """Whether the run ended because no client would ever be available again."""

    @property
    def now(self) -> float:
        return self._clock.now

    def run(self, stop: Callable[[], bool] = _never) -> None:
        """Run until every task has finished; ``stop`` is asked before each step."""
        self._deliver(Started())
        while self._unfinished or self._joining:
            if self._enough():
                self._stop_tasks(Deadline(None, StopReason.TARGET))
                continue
            if stop():
                self._give_up()
                return
            item = self._clock.advance()
            match item:
                case int():
                    self._complete(item)
                case Deadline():
                    self._stop_tasks(item)
                case Join():
                    self._joining -= 1
                    self._unfinished.add(item.spec.name)
                    self._deliver(TaskAdded(item.spec))
                case _PoolChange():
                    for client in self._pool.advance(self._clock.now):
                        for request in self._queues.clear(client):
                            del self._jobs[request]
                            self._deliver(RequestLost(request))
                    self._schedule_pool_change()
                    self._deliver(PoolChanged())
                case None:
                    self.starved = True
                    self._give_up()
                    return
                case _:
                    assert_never(item)

    # --- what the clock brings ------------------------------------------------------

    def _complete(self, request: RequestId) -> None:
        job = self._jobs.get(request)
        if job is None:  # it was cancelled, or left with its client
            return
        del self._jobs[request]
        follower = self._queues.remove(job.client, request)
        if follower is not None:
            self._begin(follower, job.client)
        if job.lost:
            self._deliver(RequestLost(request))
        else:
            wanted = self._wants_loss and not job.abandoned
            loss = self._learner.training_loss(request, job.task) if wanted else None
            self._deliver(UpdateArrived(request, job.duration, loss))

    def _stop_tasks(self, deadline: Deadline) -> None:
        names = self._algorithm.unfinished
        if deadline.tasks is None:
            self._joining = 0  # who has not joined by now never will
        else:
            names = tuple(name for name in names if name in deadline.tasks)
        if names:
            self._deliver(TasksStopped(names, deadline.reason))

    def _give_up(self) -> None:
        self._stop_tasks(Deadline(None, StopReason.INTERRUPTED))

    def _schedule_pool_change(self) -> None:
        time = self._pool.next_change()
        if time is not None:
            self._clock.schedule(time, _PoolChange())

    # --- what the algorithm commands ---------------------------------------------------

    def _deliver(self, event: Event) -> None:
        deliver(event, self._clock.now, self._algorithm, self._execute, self._observer)

    def _execute(self, command: Command) -> Event | None:
        match command:
            case Accept():
                if command.counted:
                    self._learner.accept(command.request, command.task)
            case Dispatch():
                self._send(command)
            case Aggregate():
                self._learner.aggregate(command.task, command.requests, command.weights)
            case Evaluate():
                found = self._learner.evaluate(command.task)
                return Evaluated(
                    command.task, command.round, found.metric, found.loss, found.raw, found.more
                )
            case MeasureVariances():
                return VariancesMeasured(
                    {name: self._learner.variance(name) for name in command.tasks}
                )
            case Drop():
                self._drop(command)
            case Finish():
                self._unfinished.remove(command.task)
            case Ignore() | Reallocate():
                pass
            case _:
                assert_never(command)
        return None

    def _send(self, command: Dispatch) -> None:
        request, client = command.request, command.client
        duration = self._delay.duration(
            self._delay_stream.at(request),
            self._timings[command.task],
            client,
            self._speeds.of(client),
        )
        lost = self._loss_rate > 0.0 and self._loss_stream.at(request).uniform() < self._loss_rate
        self._jobs[request] = _Job(command.task, client, duration, lost)
        self._learner.dispatch(request, command.task, client, command.version)
        if self._queues.push(client, request):
            self._begin(request, client)

    def _begin(self, request: RequestId, client: ClientId) -> None:
        self._clock.schedule(self._clock.now + self._jobs[request].duration, request)
        self._observer.started(self._clock.now, request, client)

    def _drop(self, command: Drop) -> None:
        self._learner.drop(command.request, command.task)
        job = self._jobs.get(command.request)
        if job is None:
            return
        if not command.free_client:
            job.abandoned = True
        else:
            del self._jobs[command.request]
            follower = self._queues.remove(job.client, command.request)
            if follower is not None:
                self._begin(follower, job.client)
