"""What can happen in a federation, as its write-ahead log records it.

Replaying these events, in order, rebuilds the server's state. Some come from an upload; they carry
its ``sequence`` number, from which the server knows where to read on after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedast.core.protocol import ClientId, RequestId, StopReason, TaskName, Version


@dataclass(frozen=True, slots=True)
class Configured:
    """The first event: what the federation was started with."""

    digest: str
    config: Mapping[str, Any] | None = None
    """Everything, with what was not said filled in. Version 0.1.0 recorded only the digest."""
    said: Mapping[str, Any] | None = None
    """What the configuration file says, if there is one; recorded since 0.2.0."""


@dataclass(frozen=True, slots=True)
class ClientJoined:
    client: ClientId


@dataclass(frozen=True, slots=True)
class ClientLeft:
    client: ClientId


@dataclass(frozen=True, slots=True)
class ClientQuarantined:
    client: ClientId


@dataclass(frozen=True, slots=True)
class TrainingBegan:
    """Enough clients have joined."""


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    request: RequestId
    work_seconds: float
    loss: float
    sequence: int
    norm: float | None = None
    """Of the update, for the bound on the norms of others; not recorded by version 0.1.0."""
    spread: float | None = None
    """How far its buffers are from the server's, likewise."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No usable update will come of this request."""

    request: RequestId
    invalid: bool
    sequence: int | None = None
    """None if no upload says so: the request timed out."""
    norm: float | None = None
    spread: float | None = None
    """As in ``UpdateReceived``, if the update was refused for one of them."""
    doubted: bool | None = None
    """Whether the model that the client was given may be to blame."""


@dataclass(frozen=True, slots=True)
class ModelEvaluated:
    """The result of a federated evaluation."""

    task: TaskName
    round: Version
    metric: float
    loss: float
    median_metric: float | None = None
    median_loss: float | None = None
    """Over the clients, each counted once."""


@dataclass(frozen=True, slots=True)
class EvaluationReceived:
    """One client's part of a federated evaluation; the values are not recorded."""

    sequence: int


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A task that was to start later was added."""

    task: TaskName


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """Tasks were ended from outside."""

    tasks: tuple[TaskName, ...]
    reason: StopReason


@dataclass(frozen=True, slots=True)
class Paused:
    pass


@dataclass(frozen=True, slots=True)
class Resumed:
    pass


@dataclass(frozen=True, slots=True)
class ModelPublished:
    task: TaskName
    version: Version
    name: str


@dataclass(frozen=True, slots=True)
class ModelRetired:
    task: TaskName
    version: Version


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """A client reported that it could not train."""

    client: ClientId
    why: str | None = None


@dataclass(frozen=True, slots=True)
class StrikeRecorded:
    """A client sent an invalid update or a flood of useless ones, or never answers."""

    client: ClientId
    sequence: int
    why: str | None = None
    """What it was, with a description of what was sent."""


@dataclass(frozen=True, slots=True)
class UploadIgnored:
    """An upload that answers no open request. Only version 0.1.0 recorded
    each of them."""

    sequence: int


@dataclass(frozen=True, slots=True)
class ModelsGuarded:
    """From now on, models that go bad are rolled back. (Version 0.1.0 did not do so.)"""


@dataclass(frozen=True, slots=True)
class ModelRolledBack:
    """For the record: it follows from the events before it."""

    task: TaskName
    version: Version
    """The new version, which is the same as ``back_to``."""
    back_to: Version
    why: str
    suspects: tuple[tuple[RequestId, ClientId], ...]
    """Updates in the versions that were undone, and who sent them."""


@dataclass(frozen=True, slots=True)
class LimitSet:
    """From now on a client is given at most so many requests at a time."""

    requests_per_client: int | None


@dataclass(frozen=True, slots=True)
class ClientRested:
    """A client loses its requests, and gets no others until ``ClientReady``."""

    client: ClientId
    why: str


@dataclass(frozen=True, slots=True)
class ClientReady:
    """A client that rested may be given one request, and more when it has answered that."""

    client: ClientId


@dataclass(frozen=True, slots=True)
class ClientPardoned:
    """The operator lifts a client's quarantine and forgets its strikes."""

    client: ClientId


LogEvent: TypeAlias = (
    Configured
    | ClientJoined
    | ClientLeft
    | ClientQuarantined
    | TrainingBegan
    | UpdateReceived
    | RequestFailed
    | ModelEvaluated
    | EvaluationReceived
    | TaskStarted
    | TasksEnded
    | Paused
    | Resumed
    | ModelPublished
    | ModelRetired
    | TrainingFailed
    | StrikeRecorded
    | UploadIgnored
    | ModelsGuarded
    | ModelRolledBack
    | LimitSet
    | ClientRested
    | ClientReady
    | ClientPardoned
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An event and when it happened, in seconds since the federation began."""

    time: float
    event: LogEvent
    answers: tuple[float, ...] = ()
    """What the data plane answered when the event was applied (evaluations, variances). Older
    versions kept these beside the log."""

    @property
    def sequence(self) -> int | None:
        """Of the upload that the event came from, if it came from one."""
        match self.event:
            case (
                UpdateReceived(sequence=sequence)
                | RequestFailed(sequence=sequence)
                | EvaluationReceived(sequence=sequence)
                | StrikeRecorded(sequence=sequence)
                | UploadIgnored(sequence=sequence)
            ):
                return sequence
            case _:
                return None
