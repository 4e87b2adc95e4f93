"""The server's state, as its write-ahead log determines it.

``apply`` is the one place where an event becomes state, live and in replay alike. It is synchronous
and touches neither network nor disk: what has to be done is returned as effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, assert_never, final

import torch

from fedast.core.protocol import (
    ClientId,
    Evaluated,
    PoolChanged,
    RequestId,
    RequestLost,
    Started,
    StopReason,
    TaskAdded,
    TaskName,
    TaskSpec,
    TasksStopped,
    UpdateArrived,
    Version,
)
from fedast.federation.driver import Driver, Effect, LivePool, Send
from fedast.federation.log_events import (
    ClientJoined,
    ClientLeft,
    ClientPardoned,
    ClientQuarantined,
    ClientReady,
    ClientRested,
    Configured,
    Entry,
    EvaluationReceived,
    LimitSet,
    ModelEvaluated,
    ModelPublished,
    ModelRetired,
    ModelRolledBack,
    ModelsGuarded,
    Paused,
    RequestFailed,
    Resumed,
    StrikeRecorded,
    TasksEnded,
    TaskStarted,
    TrainingBegan,
    TrainingFailed,
    UpdateReceived,
    UploadIgnored,
)
from fedast.federation.membership import Membership
from fedast.federation.norms import Norms
from fedast.learner.remote import Undone
from fedast.training.trainer import Update


class ServerLearner(Protocol):
    """What the server needs of the learner, beside what the driver does."""

    def receive(self, request: RequestId, update: Update) -> None: ...

    def parameters(self, task: TaskName) -> torch.Tensor:
        """The newest model: parameters, then floating-point buffers."""
        ...

    def buffers(self, task: TaskName) -> int:
        """How many entries of it are buffers."""
        ...

    def version(self, task: TaskName) -> Version: ...

    def move(self, task: TaskName) -> float:
        """The norm of an update that moves a client's model by the model's own norm."""
        ...

    def take_undone(self) -> Sequence[Undone]:
        """Steps since this was last asked that would have made a model not finite."""
        ...

    def state(self) -> Mapping[str, torch.Tensor]:
        """Everything that a commit must keep."""
        ...

    def books(self) -> Any:
        """Everything that a replay would have brought about, without tensors."""
        ...

    def take_up(self, books: Any) -> None: ...


@final
class ServerState:
    def __init__(
        self,
        *,
        driver: Driver,
        pool: LivePool,
        learner: ServerLearner,
        membership: Membership,
        norms: Norms,
        later: Mapping[TaskName, TaskSpec],
        wants_loss: bool,
        rolled_back: Callable[[float, ModelRolledBack], None],
    ) -> None:
        """``later``: tasks that can be added while training. ``rolled_back`` is told about bad
        models, for the records."""
        self.driver = driver
        self.pool = pool
        self.membership = membership
        self.norms = norms
        self.later = dict(later)
        self._learner = learner
        self._wants_loss = wants_loss
        self._rolled_back = rolled_back
        self.training = False
        """Whether training has begun."""
        self.sequence = 0
        """Of the last upload that was handled."""
        self.ended: set[tuple[TaskName, StopReason]] = set()
        """Tasks that were ended from outside, and why; one may still wait for an evaluation."""
        self.models: dict[tuple[TaskName, Version], str] = {}
        """Names of published models."""

    @property
    def finished(self) -> bool:
        return self.training and not self.driver.unfinished

    def apply(self, entry: Entry, update: Update | None = None) -> list[Effect]:
        """``update``: the value that arrived, unless this is a replay."""
        now, event = entry.time, entry.event
        self.sequence = max(self.sequence, entry.sequence or 0)
        match event:
            case ClientJoined():
                self.pool.join(event.client)
                return self._pool_changed(now)
            case ClientLeft():
                return self._remove(event.client, now)
            case ClientQuarantined():
                self.membership.quarantine(event.client)
                return self._remove(event.client, now)
            case TrainingBegan():
                self.training = True
                return self.driver.handle(Started(), now)
            case UpdateReceived():
                send = self.driver.open.get(event.request)
                if send is not None:
                    self.membership.succeeded(send.client)
                    self.pool.on_trial.discard(send.client)
                    if update is not None:
                        self._learner.receive(event.request, update)
                loss = event.loss if self._wants_loss else None
                arrived = UpdateArrived(event.request, event.work_seconds, loss)
                effects = self.driver.handle(arrived, now)
                return effects + self._answered(event, send, now, valid=True)
            case RequestFailed():
                send = self.driver.open.get(event.request)
                effects = self.driver.handle(RequestLost(event.request, event.invalid), now)
                return effects + self._answered(event, send, now, valid=False)
            case ModelEvaluated():
                found = Evaluated(event.task, event.round, event.metric, event.loss)
                typical = None
                if event.median_metric is not None and event.median_loss is not None:
                    typical = event.median_metric, event.median_loss
                return self.driver.handle(found, now, typical)
            case TaskStarted():
                return self.driver.handle(TaskAdded(self.later.pop(event.task)), now)
            case TasksEnded():
                self.ended.update((name, event.reason) for name in event.tasks)
                names = tuple(name for name in event.tasks if name in self.driver.unfinished)
                return self.driver.handle(TasksStopped(names, event.reason), now) if names else []
            case Paused():
                self.pool.paused = True
            case Resumed():
                self.pool.paused = False
                return self._pool_changed(now)
            case ModelPublished():
                self.models[event.task, event.version] = event.name
            case ModelRetired():
                self.models.pop((event.task, event.version), None)
            case TrainingFailed():
                self.membership.failed(event.client, now, event.why)
            case StrikeRecorded():
                self.membership.strike(event.client, now, event.why)
            case ModelsGuarded():
                self.driver.roll_backs.begin()
            case ModelRolledBack():
                self._rolled_back(now, event)
            case LimitSet():
                self.pool.limit = event.requests_per_client
            case ClientRested():
                self.pool.resting.add(event.client)
                return self._lose_requests(event.client, now)
            case ClientReady():
                self.pool.resting.discard(event.client)
                self.pool.on_trial.add(event.client)
                return self._pool_changed(now)
            case ClientPardoned():
                self.membership.pardon(event.client)
            case Configured() | EvaluationReceived() | UploadIgnored():
                pass
            case _:
                assert_never(event)
        return []

    def _answered(
        self, event: UpdateReceived | RequestFailed, send: Send | None, now: float, *, valid: bool
    ) -> list[Effect]:
        """Note what an answer says about usual norms, and about the model."""
        if send is None:
            return []
        self.norms.heard(send.task, send.client, event.norm, event.spread)
        if isinstance(event, RequestFailed) and not event.doubted:
            return []
        return self.driver.answered(send, now, valid=valid, clients=len(self.pool))

    def _pool_changed(self, now: float) -> list[Effect]:
        return self.driver.handle(PoolChanged(), now) if self.training else []

    def _remove(self, client: ClientId, now: float) -> list[Effect]:
        self.pool.leave(client)
        return self._lose_requests(client, now)

    def _lose_requests(self, client: ClientId, now: float) -> list[Effect]:
        """Its requests are lost, so that the algorithm sends others."""
        return [
            effect
            for request in self.requests_of(client)
            if request in self.driver.open
            for effect in self.driver.handle(RequestLost(request), now)
        ]

    def may_end(self, task: TaskName, reason: StopReason) -> bool:
        """Whether a task is here and has not been ended for this reason yet."""
        return task in self.driver.unfinished and (task, reason) not in self.ended

    def requests_of(self, client: ClientId) -> list[RequestId]:
        """Its open requests, oldest first."""
        return [r for r, send in self.driver.open.items() if send.client == client]

    def oldest_requests(self) -> dict[ClientId, RequestId]:
        """The oldest open request of each client that has one."""
        oldest: dict[ClientId, RequestId] = {}
        for request, send in self.driver.open.items():
            oldest.setdefault(send.client, request)
        return oldest

    def unused_models(self) -> dict[tuple[TaskName, Version], str]:
        """Published models that no open request needs and no new one will."""
        used = {(send.task, send.version) for send in self.driver.open.values()}
        used |= set(self.driver.asked)
        newest: dict[TaskName, Version] = {}
        for task, version in self.models:
            newest[task] = max(version, newest.get(task, 0))
        return {
            key: name
            for key, name in self.models.items()
            if key not in used and key[1] < newest[key[0]]
        }
