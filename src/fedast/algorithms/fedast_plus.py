"""FedAST-plus: as fast as the delay allows, with steps that follow from what is measured.

Theory of operation. A task's model x is stepped by updates that were computed one latency ago. For
a direction in which a client's local training goes the fraction a of the way to its optimum
(0 < a <= 1, for the steepest directions about 1), the model obeys

    dx/dt = -(kappa a / L) x(t - u),    kappa = server rate x mean staleness s,

with the latency L and a delay u of mean L. It is stable up to a kappa a that depends on the
distribution of u alone (pi/2 if all delays are equal, 3.5 for the paper's shifted exponential one),
and below that a task progresses at kappa a / L: neither the number R of requests nor the buffer b
enters; R, b and the rate only matter through kappa, and R through the noise, which is in
proportion to kappa^2 / R. Hence the parts of the method:

1. Only idle clients are asked. A request that waits in a busy client's queue adds to L and brings
   nothing. So R is the number of clients that may be active, not 1.28 times that.
2. The server rate is set from the staleness s that is measured: rate = kappa / (s + 1/2), with
   kappa = ``server_lr`` x ``reference``, 3.5 at the paper's server_lr of 0.1, which is the most
   that counts. The paper's own setting, a rate of 0.1 and R/b = 32, is a kappa of 3.2; here it is
   the same whatever R and b are, and at any load. During the first latencies, when updates are of
   the first models, the rate rises from zero (``warmup``). One update moves the model at most a
   tenth of the way that its client went (``largest``), so that few requests do not mean much
   noise.
3. A task's own limit, 3.5 / a, is not known before, so a factor on the rate is controlled by how
   the model moves (``aggregation/rate_control.py``): it falls when the model begins to oscillate
   and rises again, up to 1, when it does not.
4. An update of staleness s counts v = ((1 + s) / (1 + mean s))^-slope, at most 2: the less very
   old ones count, the higher the stable kappa (3.9 for a slope of 1/2, 4.2 for 1).
5. A running average of the models is what is evaluated and handed out
   (``aggregation/averaging.py``): it takes out the noise that a higher rate brings.
6. Momentum that lags by 1.25 latencies (``aggregation/delayed_nesterov.py``) doubles how far the
   model goes in directions that persist, which are those with a small a. In the steep ones, that
   would oscillate, it comes out of phase and does not lower the stable kappa.
7. Idle clients are more often fast ones, and v favours them too, but the objective is the plain
   mean over all clients. So clients are drawn uniformly, as in the paper; one that is busy is
   owed a request, which it gets with the newest model as soon as it is idle. What this cannot
   make up for (v, or a pool in which hardly anybody is idle) is made up for by weights in inverse
   proportion to how much a client has counted so far.

Theorem 1 of the FedAST paper assumes clients chosen uniformly at random and a fixed rate, so it
does not cover this method.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, final

from pydantic import Field, SerializeAsAny

from fedast.algorithms.allocation import ALLOCATION_RULES, AllocationOptions
from fedast.algorithms.async_progress import AsyncProgress
from fedast.algorithms.fedbuff import IdleOnly
from fedast.algorithms.options import BufferedOptions
from fedast.core.protocol import Algorithm, ClientId, Pool, TaskName, TaskSpec
from fedast.core.streams import Stream
from fedast.parts.registry import Part

FASTEST = 0.1
"""The paper's server learning rate, at the staleness of the reference; it is never exceeded."""
_RATIO = 25.0
"""R/b: with 300 requests for four tasks, buffers of 3."""
_PRIOR = 5.0
"""Updates per client that participation weights take as a matter of chance."""
_MOST = 2.0
"""Weights of updates by staleness are at most this; those by participation lie between one over
this and this."""
_MOST_OWED = 2
"""The most requests that a client is owed."""
_TRIES_PER_CLIENT = 20
"""A uniform draw misses the only idle client this often with negligible probability (e^-20)."""


class FedASTPlus(BufferedOptions):
    """FedAST-plus: idle clients, a server rate from what is measured, momentum, averaged models."""

    name: ClassVar[str] = "fedast-plus"
    display_name: ClassVar[str] = "FedAST-plus"
    colour: ClassVar[str] = "#D55E00"
    idle: bool = True
    """Whether only idle clients are asked."""
    reference: float = Field(35.0, gt=0, le=1e6)
    """The staleness at which the server rate is server_lr (at most 0.1, the paper's); it is
    inversely proportional to the measured one."""
    largest: float = Field(0.1, gt=0, le=1)
    """The largest fraction of a client's own step by which one update may move the model."""
    slope: float = Field(1.0, ge=0, le=10)
    """An update of staleness s counts (1 + s)^-slope."""
    fair: bool = True
    """Whether clients that have counted less are asked first and weigh more."""
    warmup: float = Field(3.0, ge=0, le=1000)
    """Latencies over which the rate rises at the start."""
    momentum: float = Field(0.5, ge=0, lt=1)
    """What is kept of the momentum, which lags (tasks: server_optimizer); 0: there is none."""
    control: bool = True
    """Whether a factor on the rate depends on how the model moves (tasks: rate_control)."""
    average: bool = True
    """Whether a running average of the models is evaluated and handed out (tasks: averaging)."""
    allocation_rule: Annotated[SerializeAsAny[AllocationOptions] | None, Part(ALLOCATION_RULES)] = (
        None
    )
    """How a variance becomes a share of the requests; default: all tasks keep the same share."""
    variance_window: int = Field(8, ge=2)
    """Latest updates per task (V) from which its variance is estimated."""
    period: float = Field(0.75, gt=0)
    """Reallocate every period * tasks * requests updates."""

    def build(self, tasks: Sequence[TaskSpec], pool: Pool, stream: Stream) -> Algorithm:
        fair = FairIdle(pool) if self.idle and self.fair else None
        participation = Participation() if self.fair else None
        return self.buffers(
            tasks,
            fair or (IdleOnly(pool) if self.idle else pool),
            stream,
            allocation_rule=None if self.allocation_rule is None else self.allocation_rule.build(),
            variance_window=self.variance_window,
            period=self.period,
            capped_start=self.idle,
            weigh=StepSizes(self.reference, self.largest, self.slope, self.warmup, participation),
            selection=fair,
        )

    def usual_requests(self, active_cap: int | None, clients: int) -> int:
        usual = super().usual_requests(active_cap, clients)
        return min(usual, active_cap or clients) if self.idle else usual

    def ratio_for(self, requests: int) -> float:
        if self.ratio is not None:
            return self.ratio
        return max(1.0, min(_RATIO, requests / 2))

    def server_defaults(self) -> Mapping[str, Mapping[str, Any]]:
        parts: dict[str, Mapping[str, Any]] = {}
        if self.momentum > 0:
            parts["optimizer"] = {"name": "delayed-nesterov", "beta": self.momentum}
        for key, wanted in (("rate_control", self.control), ("averaging", self.average)):
            if wanted:
                parts[key] = {"use": "always"}
        return parts


@final
class FairIdle:
    """A pool that gives idle clients only, and yet every client equally often.

    Clients are drawn uniformly. One that is drawn while it is busy is owed a request: it gets the
    next one as soon as it is idle, with the model of that time. (In the paper that request
    would have waited in the client's queue, with a model that grows old.)
    """

    wants_loss = False
    candidates = 1

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._owed: dict[ClientId, int] = {}
        self._ready: deque[ClientId] = deque()
        """Owed clients that have become idle."""

    def draw(self, stream: Stream, holders: Collection[ClientId]) -> ClientId | None:
        everyone = self._pool.everyone()
        if len(holders) >= len(everyone) and all(client in holders for client in everyone):
            return None
        for _ in range(_TRIES_PER_CLIENT * len(everyone)):
            client = self._pool.draw(stream, holders)
            if client is None:
                return None  # nobody is there, or nobody else may become active
            while self._ready:
                owed = self._ready.popleft()
                if owed not in holders and owed in everyone:
                    self._settle(owed)
                    return owed
            if client not in holders:
                return client
            self._owed[client] = min(_MOST_OWED, self._owed.get(client, 0) + 1)
        return None

    def _settle(self, client: ClientId) -> None:
        left = self._owed.pop(client, 0) - 1
        if left > 0:
            self._owed[client] = left

    def available(self, stream: Stream, extra: int = 0) -> Sequence[ClientId]:
        return self._pool.available(stream, extra)

    def everyone(self) -> Sequence[ClientId]:
        return self._pool.everyone()

    # As a selection, it learns who has become idle.

    def best(self, task: TaskName, candidates: Sequence[ClientId]) -> ClientId:
        return candidates[0]

    def learn(self, client: ClientId, task: TaskName, work_time: float, loss: float | None) -> None:
        if client in self._owed:
            self._ready.append(client)


@final
class Participation:
    """How much each client has counted for each task, and the weights that even it out."""

    def __init__(self) -> None:
        self._counted: dict[TaskName, dict[ClientId, float]] = {}
        self._total: dict[TaskName, float] = {}

    def weight(self, task: TaskName, client: ClientId, counts: float) -> float:
        """Note that an update of a client counts so much; the weight that makes up for the rest."""
        counted = self._counted.setdefault(task, {})
        own = counted[client] = counted.get(client, 0.0) + counts
        total = self._total[task] = self._total.get(task, 0.0) + counts
        usual = total / len(counted)
        return min(_MOST, max(1.0 / _MOST, (usual + _PRIOR) / (own + _PRIOR)))


@final
class StepSizes:
    """The weight of every update: from the staleness of its task, its own, and its client."""

    def __init__(
        self,
        reference: float,
        largest: float,
        slope: float,
        warmup: float,
        participation: Participation | None,
    ) -> None:
        self._warmup = warmup
        self._reference = reference
        self._largest = largest
        self._slope = slope
        self._participation = participation
        self._staleness: dict[TaskName, float] = {}
        self._usual: dict[TaskName, float] = {}
        """The mean of what updates count by their staleness."""

    def __call__(self, state: AsyncProgress, client: ClientId, staleness: int) -> float:
        task = state.name
        # By Little's law it will be R / b; what is measured takes over within a few latencies.
        mean = self._staleness.get(task, state.target / state.buffer_size)
        memory = 1.0 / max(10.0, 2.0 * state.target)
        mean += memory * (staleness - mean)
        self._staleness[task] = mean
        counts: float = min(_MOST, ((1.0 + staleness) / (1.0 + mean)) ** -self._slope)
        usual = self._usual.get(task, 1.0)
        usual += memory * (counts - usual)
        self._usual[task] = usual
        counts /= usual
        begun = min(1.0, (state.progress.round + 1.0) / (self._warmup * mean + 1.0))
        rate = state.progress.spec.server_lr
        most = min(1.0, self._largest * state.buffer_size) / rate
        wanted = self._reference / (mean + 0.5) * min(1.0, FASTEST / rate)
        weight = begun * min(wanted, most) * counts
        if self._participation is not None:
            weight *= self._participation.weight(task, client, counts)
        return weight
