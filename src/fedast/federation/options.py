"""How a federation is run, as its server needs to know it."""

from __future__ import annotations

from dataclasses import dataclass

from fedast.core.protocol import StopReason, TaskName
from fedast.federation.norms import NORM_FACTOR, NormBound
from fedast.federation.pooling import Pooling


@dataclass(frozen=True, slots=True)
class Deadline:
    """A task ends at this time, for this reason."""

    time: float
    task: TaskName
    reason: StopReason


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a federation is run; times in seconds."""

    min_clients: int = 1
    """Clients that must have joined before training begins."""
    lease: float = 30.0
    """A client without a heartbeat for this long has left."""
    request_timeout: float = 600.0
    """The longest that a client may take for a request, whatever its pace."""
    requests_per_client: int | None = 4
    """The most that a client is given at a time, while others have fewer."""
    redeliver_after: float = 30.0
    """After which a client that says it is idle is given its requests again."""
    commit_every: float = 1.0
    norm_bound: NormBound = "adaptive"
    """Updates with a larger norm are invalid; adaptive: see ``norms``."""
    norm_factor: float = NORM_FACTOR
    """How many medians long an update may be."""
    half: bool = False
    """Uploads in half precision."""
    evaluators: int = 5
    """Clients that evaluate a model in a federated evaluation."""
    pooling: Pooling = "mean"
    """How their answers become one."""
    strikes: int = 3
    """Invalid uploads after which a client is quarantined."""
    forgive_after: int = 20
    """Good updates after which a strike is forgiven."""
    deadlines: tuple[Deadline, ...] = ()
    """When tasks end, whatever they have reached, in order."""
