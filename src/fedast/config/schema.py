"""What a configuration file may say: every table, key, type, bound and default.

What there are several of (algorithms, delays, server optimizers, ...) is found in registries:
those classes stand beside their implementations. ``resolve`` fills in what depends on other values.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializeAsAny,
    model_validator,
)

from fedast.aggregation.aggregators import AGGREGATORS, AggregatorOptions
from fedast.aggregation.averaging import Averaging
from fedast.aggregation.rate_control import RateControl
from fedast.aggregation.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizerOptions
from fedast.aggregation.settings import Calibration
from fedast.algorithms.fedast import FedASTDynamic
from fedast.algorithms.options import ALGORITHMS, AlgorithmOptions, LearningRate
from fedast.federation.norms import NORM_FACTOR
from fedast.federation.transports import TRANSPORTS, Nats, TransportOptions
from fedast.parts.options import Options, Section
from fedast.parts.registry import Part
from fedast.records.observers import OBSERVERS, ObserverOptions
from fedast.sim.availability import AVAILABILITY, ActiveCap, AvailabilityOptions
from fedast.sim.delays import DELAYS, DelayOptions, ShiftedExponential
from fedast.tasks.client_optimizers import CLIENT_OPTIMIZERS, ClientOptimizerOptions
from fedast.tasks.task import Count, NotNegative, Positive, Sampling, Share, WeightDecay
from fedast.training.options import TRAINERS, TrainerOptions


class SpeedGroups(Section):
    """Groups of clients by speed factor; a larger factor is a slower client."""

    factors: tuple[Annotated[float, Field(gt=0)], ...] = Field((1.3, 1.0, 0.7), min_length=1)
    shares: tuple[Annotated[float, Field(ge=0, le=1e9)], ...] = Field(
        (0.25, 0.5, 0.25), min_length=1
    )

    @model_validator(mode="after")
    def _matching(self) -> SpeedGroups:
        if len(self.factors) != len(self.shares) or sum(self.shares) <= 0:
            raise ValueError("needs as many shares as factors, at least one above 0")
        return self


class Simulation(Section):
    """The clients and their world."""

    clients: int = Field(1000, ge=1)
    max_time: float | None = Field(None, gt=0)
    """Simulated time at which every task ends."""
    until: Literal["each", "held", "all", "time"] = "each"
    """When training ends: each task at its target; each task when the mean of its last five
    evaluations is at its target (held); all tasks when the last one has reached its target; or only
    at a limit on time or rounds, with targets merely recorded."""
    loss_rate: float = Field(0.0, ge=0, lt=1)
    """Probability that a request is lost, noticed when its update should have come."""
    delay: Annotated[SerializeAsAny[DelayOptions], Part(DELAYS)] = ShiftedExponential()
    """How long a local training takes (fedast list delays)."""
    speeds: SpeedGroups = SpeedGroups()
    availability: Annotated[SerializeAsAny[AvailabilityOptions], Part(AVAILABILITY)] = ActiveCap()
    """Which clients can be asked (fedast list availability)."""

    @property
    def active_cap(self) -> int | None:
        """How many clients may hold requests at a time, if there is a limit."""
        return self.availability.active_cap(self.clients)

    @property
    def most_active(self) -> int:
        """The most clients that can hold requests at a time."""
        return self.active_cap or self.clients


# --- tasks -------------------------------------------------------------------------------


class TrainingOverrides(Section):
    """Training settings; what is not given is the task's own."""

    local_steps: Count | None = None
    batch_size: Count | None = None
    client_lr: LearningRate | None = None
    server_lr: LearningRate | None = None
    weight_decay: WeightDecay | None = None
    client_optimizer: Annotated[
        SerializeAsAny[ClientOptimizerOptions] | None, Part(CLIENT_OPTIMIZERS, "sgd")
    ] = None
    """How a client's model steps along its gradients; default: the task's, which is sgd."""
    sampling: Sampling | None = None


def _named(key: str) -> BeforeValidator:
    """A bare word stands for a table with that one key."""
    return BeforeValidator(lambda given: {key: given} if isinstance(given, str) else given)


class TaskConfig(TrainingOverrides):
    """One model to train."""

    use: str = Field(validation_alias=AliasChoices("use", "task"))
    """A task that fedast knows (``fedast list tasks``), or your own: package.module:function."""
    name: str | None = Field(None, min_length=1)
    """Its name in this run; default: that of ``use``."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The options of that task."""
    initialization: Literal["model", "glorot", "he"] = "model"
    """How the weights begin: as the model makes them (those of fedast: as PyTorch does by default),
    or by Glorot's or He's rule with biases of zero."""
    sync: TrainingOverrides | None = None
    """Training settings for synchronous algorithms only."""
    step_cost: Positive | None = None
    """Relative work of one local step, for the simulated delays."""
    requests: Count | None = None
    """Active requests R (asynchronous algorithms)."""
    buffer: Count | None = None
    """Buffer size b (asynchronous algorithms)."""
    share: Share = 1.0
    """Share of the clients (synchronous algorithms)."""
    server_optimizer: Annotated[
        SerializeAsAny[ServerOptimizerOptions] | None, Part(SERVER_OPTIMIZERS, "sgd")
    ] = None
    """How the model steps along the aggregated update; default: sgd."""
    aggregator: Annotated[SerializeAsAny[AggregatorOptions] | None, Part(AGGREGATORS, "mean")] = (
        None
    )
    """How the updates of a round become one; default: their mean."""
    calibration: Annotated[Calibration | None, _named("use")] = None
    """Cached calibration; default: never."""
    averaging: Annotated[Averaging | None, _named("use")] = None
    """A running average of the server's models, which is evaluated and handed out; default: the
    algorithm's own (never, except with fedast-plus)."""
    rate_control: Annotated[RateControl | None, _named("use")] = None
    """A factor on the server's steps that depends on how the model moves; default: the algorithm's
    own (never, except with fedast-plus)."""
    level: Literal["low", "main", "high"] = "main"
    """Which of the task's targets is used, if ``target`` is not given."""
    target: float | None = None
    max_rounds: Count | None = None
    max_time: Positive | None = None
    evaluate_every: Count | None = None
    join_time: NotNegative = 0.0
    leave_time: Positive | None = None


def _shortest(part: Any) -> Any:
    table = part.model_dump(mode="json") if isinstance(part, Options) else part
    return table["name"] if isinstance(table, dict) and set(table) == {"name"} else table


_plain_name = PlainSerializer(_shortest)
"""A part without options is written as its name, not as a table."""


class Compute(Section):
    """Where and how the models are trained."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    trainer: Annotated[str | TrainerOptions, Part(TRAINERS, words=("auto",)), _plain_name] = "auto"
    """How clients are trained. auto: batched on a GPU; on a CPU the fastest of fedast's own
    for each task, which is found by timing them."""
    trainers: dict[str, Annotated[TrainerOptions, Part(TRAINERS), _plain_name]] = Field(
        default_factory=dict
    )
    """The trainer of each task; ``auto`` writes down here what it chose."""
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16"] = "auto"
    """On a GPU: fp32; tf32 (auto) in all matrix products; fp16 (as many digits, faster) or bf16 in
    the kernels for convolutions and the LSTM, tf32 in the rest."""
    batch_limit: int = Field(256, ge=1, le=4096)
    """The most clients that are trained together."""
    workers: int | None = Field(None, ge=1, le=256)
    """Worker processes; default: one per core."""
    threads: int = Field(1, ge=1, le=256)
    """CPU threads of one run, for serial training and everything else that is not training."""


def _off(given: Any) -> Any:
    return None if given == "off" else given


class FederationConfig(Section):
    """A real federation: ``fedast serve`` and ``fedast client``. Times are in seconds."""

    transport: Annotated[TransportOptions, Part(TRANSPORTS), _plain_name] = Nats()
    """What carries the messages."""
    min_clients: int = Field(1, ge=1)
    """Clients that must have joined before training begins."""
    lease: float = Field(30.0, gt=0)
    """A client without a heartbeat for this long counts as gone; its requests go to others."""
    request_timeout: float = Field(600.0, gt=0)
    """The longest that a connected client may take for a request. Usually it has less time, by its
    own pace: eight times as long as its latest answers took, at least ``lease`` +
    ``redeliver_after``. After that its requests go to others; only a client that never answers gets
    a strike."""
    requests_per_client: int | None = Field(4, ge=1)
    """The most requests that one client is given at a time, unless all clients have as many
    (asynchronous algorithms)."""
    redeliver_after: float = Field(30.0, ge=1)
    """A request that nobody works on is delivered again after this long."""
    commit_every: float = Field(1.0, ge=0)
    """Time between commits of the server's write-ahead log."""
    snapshot_every: float = Field(10.0, ge=0)
    """Time between snapshots of the server's state, from which a restart continues; more if they
    take long to make."""
    norm_bound: (
        Annotated[float, Field(gt=0)] | Literal["adaptive"] | Annotated[None, BeforeValidator(_off)]
    ) = "adaptive"
    """Updates with a larger norm are invalid: a number; adaptive: norm_factor times the median of
    the norms that different clients sent lately; off."""
    norm_factor: float = Field(NORM_FACTOR, gt=1)
    """How many times the median an update's norm may be, with an adaptive norm_bound."""
    half_uploads: bool = False
    """Whether clients upload in half precision."""
    evaluate: Literal["server", "clients"] = "server"
    """Where models are evaluated: on the task's test set, or on samples that clients hold back."""
    evaluators: int = Field(5, ge=1)
    """Clients that evaluate a model; their numbers of samples are their weights, but none weighs
    more than twice the median."""
    evaluation_aggregate: Literal["mean", "median"] = "mean"
    """How their answers become one: as if measured on all their samples together, or the median
    over clients, which resists wrong answers."""
    holdout: float = Field(0.2, gt=0, lt=1)
    """The part of its samples that a client holds back where clients evaluate."""
    strikes: int = Field(3, ge=1)
    """Invalid uploads, floods or unanswered requests after which a client is quarantined."""
    forgive_after: int = Field(20, ge=1)
    """Good updates after which one strike is forgiven."""
    replicas: int = Field(1, ge=1, le=5)
    """Nodes of a NATS cluster that keep queues, uploads and models; at most as many as it has."""
    metrics_port: int | None = Field(None, ge=1, le=65535)
    """The server's port for /metrics (Prometheus), /healthz, /readyz and /status; default: none."""
    metrics_host: str = "127.0.0.1"
    """The address for that port. There is no password: keep it on this machine or behind a
    firewall."""
    data: dict[str, str] = Field(default_factory=dict)
    """A client's own data by task: package.module:function of its number, giving inputs and labels.
    Default: its part of the task's own partition."""


class RunConfig(Section):
    """A whole configuration file."""

    seed: int = Field(0, ge=0, lt=2**63)
    path: tuple[str, ...] = ()
    """Folders with modules of your own parts and tasks; default: the file's own folder."""
    algorithm: Annotated[SerializeAsAny[AlgorithmOptions], Part(ALGORITHMS)] = FedASTDynamic()
    """Who trains what, and when models step (fedast list algorithms)."""
    algorithms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of other algorithms, used when a comparison switches to one of them."""
    simulation: Simulation = Simulation()
    compute: Compute = Compute()
    federation: FederationConfig = FederationConfig()
    observers: tuple[Annotated[SerializeAsAny[ObserverOptions], Part(OBSERVERS)], ...] = ()
    """What else watches the run (fedast list observers)."""
    tasks: tuple[TaskConfig, ...] = Field(min_length=1)
