"""What a configuration file may say: every table, key, type, bound and default.

These classes are also the Python API's options. They hold values and know
nothing of what is built from them; ``resolve`` fills in what depends on other
values, ``build`` makes objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from fedast.algorithms.weighting import WEIGHTINGS


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


# --- algorithms -----------------------------------------------------------------------


def _weighting(name: str) -> str:
    if name in WEIGHTINGS or ":" in name:
        return name
    known = ", ".join(repr(known) for known in WEIGHTINGS)
    raise ValueError(f"should be {known} or your own package.module:function")


class _Async(Section):
    synchronous: ClassVar[bool] = False

    requests: int | None = Field(None, ge=1)
    """Active requests of all tasks together (sum of R); default 1.28 per client of the cap (with
    FedBuff one, since it asks idle clients only)."""
    ratio: float | None = Field(None, ge=1, le=1e6)
    """Active requests per buffer place (R/b) of tasks that do not set their own buffer; default 32,
    the paper's, or less, so that each of them has a buffer of at least 2."""
    initial: Literal["uniform", "shares"] = "uniform"
    """How requests are split at the start over tasks that do not set their own."""
    selection: Literal["uniform", "speed", "loss"] = "uniform"
    """Which of a few random candidates is asked: any, the fastest, the one of highest loss."""
    candidates: int = Field(2, ge=1, le=1000)
    """Clients that speed and loss selection choose from."""
    max_staleness: int | None = Field(None, ge=0)
    """Updates staler than this many rounds are dropped and sent again; default: none is."""
    staleness_weight: Literal["constant", "polynomial", "hinge"] = "constant"
    """What an update counts by its staleness s: 1, (1 + s)^-a, or 1 / (a (s - grace) + 1)."""
    staleness_slope: float = Field(0.5, gt=0, le=1e3)
    """The a of polynomial and hinge."""
    staleness_grace: int = Field(10, ge=0)
    """Up to this staleness, hinge counts an update in full."""
    cancel: Literal["free", "keep-busy"] = "free"
    """Whether a cancelled request frees its client at once or occupies it to the end."""


class FedASTDynamic(_Async):
    """FedAST(D): asynchronous and buffered, requests move between tasks by their variance."""

    name: Literal["fedast-d"] = "fedast-d"
    server_rate: float = Field(0.1, gt=0, le=1e6)
    """Server learning rate eta_s of tasks that set none of their own (nor an adaptive step)."""
    evaluate_every: int = Field(4, ge=1)
    """Rounds between evaluations of tasks that do not set their own."""
    weighting: Annotated[str, AfterValidator(_weighting)] = "plain"
    """How a variance becomes a share of the requests: plain, bound, authors-code, uniform, shares,
    or your own package.module:function of the variance and the task."""
    variance_window: int = Field(8, ge=2)
    """Latest updates per task (V) from which its variance is estimated."""
    period: float = Field(0.75, gt=0)
    """Reallocate every period * tasks * requests updates."""


class FedASTStatic(_Async):
    """FedAST(S): asynchronous and buffered, with a fixed allocation."""

    name: Literal["fedast-s"] = "fedast-s"
    server_rate: float = Field(0.1, gt=0, le=1e6)
    """Server learning rate eta_s of tasks that set none of their own (nor an adaptive step)."""
    evaluate_every: int = Field(4, ge=1)
    """Rounds between evaluations of tasks that do not set their own."""


class FedASTNoBuffer(_Async):
    """FedAST-NoBuffer: every single update steps the model."""

    name: Literal["fedast-nobuffer"] = "fedast-nobuffer"
    server_rate: float = Field(0.038, gt=0, le=1e6)
    """Server learning rate eta_s of tasks that set none of their own (nor an adaptive step)."""
    evaluate_every: int = Field(4, ge=1)
    """Evaluations as often as with a buffer of R/ratio and this many rounds between."""


class FedBuff(_Async):
    """FedBuff: asynchronous and buffered, a finished client is replaced by an idle one."""

    name: Literal["fedbuff"] = "fedbuff"
    server_rate: float = Field(0.1, gt=0, le=1e6)
    """Server learning rate eta_s of tasks that set none of their own (nor an adaptive step)."""
    evaluate_every: int = Field(4, ge=1)
    """Rounds between evaluations of tasks that do not set their own."""
    idle: bool = True
    """Whether only idle clients are asked; if not, it is FedAST with a fixed allocation."""


class _Sync(Section):
    synchronous: ClassVar[bool] = True

    server_rate: float = Field(1.0, gt=0, le=1e6)
    """Server learning rate eta_s of tasks that set none of their own (nor an adaptive step)."""
    evaluate_every: int = Field(1, ge=1)
    """Rounds between evaluations of tasks that do not set their own."""
    first_k: Annotated[int, Field(ge=1)] | Literal["all"] = 30
    """Updates per task and round that count; "all" waits for every client."""
    cancel: Literal["free", "keep-busy"] = "free"
    """Whether a request of a task that ended frees its client at once."""
    stragglers: Literal["keep-busy", "free"] = "keep-busy"
    """Whether a client that came too late for its round works on to the end or is free at once."""


class SyncST(_Sync):
    """Sync-ST: synchronous rounds, clients split over the tasks, first k updates count."""

    name: Literal["sync-st"] = "sync-st"
    assignment: Literal["random", "round-robin"] = "random"
    """How clients are split: at random by the tasks' shares, or each task in turn."""
    selection: Literal["uniform", "speed", "loss"] = "uniform"
    """Which of a few random candidates takes part (random assignment only)."""
    candidates: int = Field(2, ge=1, le=1000)
    """Clients that speed and loss selection choose from."""


class SyncBayesST(_Sync):
    """Sync-Bayes-ST: synchronous rounds, assignments by Bayesian optimisation."""

    name: Literal["sync-bayes-st"] = "sync-bayes-st"
    alpha: float = Field(0.25, ge=0, le=1)
    """Weight of the slowest work times in the cost; the rest is for even participation."""
    candidates: int = Field(75, ge=1)
    """Random assignments that are compared in a round."""
    extra: int = Field(5, ge=0)
    """Available clients beyond those that are used, to choose from."""
    history: int = Field(300, ge=1, le=2000)
    """Past rounds that are remembered."""


class SyncUCBST(_Sync):
    """Sync-UCB-ST: synchronous rounds, clients by upper confidence bounds of their losses."""

    name: Literal["sync-ucb-st"] = "sync-ucb-st"
    gamma: float = Field(0.99, gt=0, le=1)
    """Discount of past rounds."""
    extra: int = Field(5, ge=0)
    """Available clients beyond those that are used, to choose from."""
    loss: Literal["batch", "mean"] = "batch"
    """A client's mean training loss times the batch size (the authors' code), or as it is."""


class SequentialFedAvg(_Sync):
    """Sequential FedAvg: one task after another, each with all clients."""

    name: Literal["sequential-fedavg"] = "sequential-fedavg"


class Centralized(_Sync):
    """Centralized: plain SGD on the pooled data of each task; the ceiling."""

    name: Literal["centralized"] = "centralized"


AsyncConfig: TypeAlias = FedASTDynamic | FedASTStatic | FedASTNoBuffer | FedBuff
SyncConfig: TypeAlias = SyncST | SyncBayesST | SyncUCBST | SequentialFedAvg | Centralized
AlgorithmConfig: TypeAlias = AsyncConfig | SyncConfig

ALGORITHMS: Mapping[str, type[AlgorithmConfig]] = {
    "fedast-d": FedASTDynamic,
    "fedast-s": FedASTStatic,
    "fedast-nobuffer": FedASTNoBuffer,
    "sync-st": SyncST,
    "sync-bayes-st": SyncBayesST,
    "sync-ucb-st": SyncUCBST,
    "sequential-fedavg": SequentialFedAvg,
    "fedbuff": FedBuff,
    "centralized": Centralized,
}


# --- the simulated world -----------------------------------------------------------------


class ShiftedExponential(Section):
    """One local step takes beta + Exp(mean 2 beta), beta = scale * speed * size (the paper)."""

    model: Literal["shifted-exponential"] = "shifted-exponential"
    scale: float = Field(0.5, gt=0)


class Constant(Section):
    """One local step takes value * speed * size."""

    model: Literal["constant"] = "constant"
    value: float = Field(1.0, gt=0)


class Uniform(Section):
    """One local step takes between low and high, times speed * size."""

    model: Literal["uniform"] = "uniform"
    low: float = Field(0.5, ge=0)
    high: float = Field(1.5, gt=0)


class Lognormal(Section):
    """One local step takes median * exp(sigma * normal), times speed * size."""

    model: Literal["lognormal"] = "lognormal"
    median: float = Field(1.0, gt=0)
    sigma: float = Field(0.5, ge=0, le=10)


class Measured(Section):
    """Whole local trainings drawn from a CSV of measurements: task, seconds[, client]."""

    model: Literal["measured"] = "measured"
    file: str


DelayConfig: TypeAlias = ShiftedExponential | Constant | Uniform | Lognormal | Measured

DELAYS: Mapping[str, type[DelayConfig]] = {
    "shifted-exponential": ShiftedExponential,
    "constant": Constant,
    "uniform": Uniform,
    "lognormal": Lognormal,
    "measured": Measured,
}


class ActiveCap(Section):
    """At most cap clients hold requests at a time (the paper); default 30 % of the clients."""

    model: Literal["active_cap"] = "active_cap"
    cap: int | None = Field(None, ge=1)


class Bernoulli(Section):
    """Each client is available with probability p, anew for every synchronous round."""

    model: Literal["bernoulli"] = "bernoulli"
    p: float = Field(0.3, gt=0, le=1)


class Always(Section):
    """Every client is always available."""

    model: Literal["always"] = "always"


class Trace(Section):
    """On/off intervals per client from a CSV: client, on, off."""

    model: Literal["trace"] = "trace"
    file: str
    leave: Literal["lose", "finish"] = "lose"
    """What a client that goes off does with its requests."""


AvailabilityConfig: TypeAlias = ActiveCap | Bernoulli | Always | Trace

AVAILABILITY: Mapping[str, type[AvailabilityConfig]] = {
    "active_cap": ActiveCap,
    "bernoulli": Bernoulli,
    "always": Always,
    "trace": Trace,
}


class SpeedGroups(Section):
    """Groups of clients by speed factor; a larger factor is a slower client."""

    factors: tuple[Annotated[float, Field(gt=0)], ...] = Field((1.3, 1.0, 0.7), min_length=1)
    shares: tuple[Annotated[float, Field(ge=0, le=1e9)], ...] = Field(
        (0.25, 0.5, 0.25), min_length=1
    )


class Simulation(Section):
    """The clients and their world."""

    clients: int = Field(1000, ge=1)
    max_time: float | None = Field(None, gt=0)
    """Simulated time at which every task ends."""
    until: Literal["each", "all", "time"] = "each"
    """When training ends: of each task at its target; of all tasks when the last has reached its
    own; only at a limit of time or rounds (targets are noted, nothing more)."""
    loss_rate: float = Field(0.0, ge=0, lt=1)
    """Probability that a request is lost, noticed when its update should have come."""
    delay: DelayConfig = Field(ShiftedExponential(), discriminator="model")
    speeds: SpeedGroups = SpeedGroups()
    availability: AvailabilityConfig = Field(ActiveCap(), discriminator="model")


# --- tasks -------------------------------------------------------------------------------


class TrainingOverrides(Section):
    """Training settings; what is not given is the preset's."""

    local_steps: int | None = Field(None, ge=1)
    batch_size: int | None = Field(None, ge=1)
    client_rate: float | None = Field(None, gt=0, le=1e6)
    server_rate: float | None = Field(None, gt=0, le=1e6)
    weight_decay: float | None = Field(None, ge=0, le=1e6)
    sampling: Literal["epochs", "independent"] | None = None


class PlainStep(Section):
    """The model steps by server_rate times the mean update (the paper)."""

    rule: Literal["plain"] = "plain"


class MomentumStep(Section):
    """Server momentum (FedAvgM)."""

    rule: Literal["momentum"] = "momentum"
    beta: float = Field(0.9, ge=0, lt=1)
    """What is kept of the last step; 0 is plain."""


class _AdaptiveStep(Section):
    beta1: float = Field(0.9, ge=0, lt=1)
    """What is kept of the first moment."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """What is kept of the second moment."""
    epsilon: float = Field(1e-3, gt=0, le=1)
    """Added to the square root of the second moment, which starts at its square."""


class AdamStep(_AdaptiveStep):
    """FedAdam. Adaptive steps have a server rate of 0.01, unless the task sets its own."""

    rule: Literal["adam"] = "adam"


class YogiStep(_AdaptiveStep):
    """FedYogi."""

    rule: Literal["yogi"] = "yogi"


class FadasStep(_AdaptiveStep):
    """FADAS: adaptive, with a rate of at most one over the delay where updates come late."""

    rule: Literal["fadas"] = "fadas"
    patience: int = Field(10, ge=1)
    """Above this largest delay d of a round's updates the rate is at most 1/d (which matters where
    the server rate is above that: at 0.01 only for delays above 100)."""


StepConfig: TypeAlias = PlainStep | MomentumStep | AdamStep | YogiStep | FadasStep

STEPS: Mapping[str, type[StepConfig]] = {
    "plain": PlainStep,
    "momentum": MomentumStep,
    "adam": AdamStep,
    "yogi": YogiStep,
    "fadas": FadasStep,
}


class CombiningConfig(Section):
    """How the updates of a round become one."""

    rule: Literal["mean", "median", "trimmed-mean"] = "mean"
    """Median and trimmed mean are by coordinate and resist bad updates."""
    trim: float = Field(0.1, gt=0, lt=0.5)
    """The part of the updates that a trimmed mean cuts off at either end, by coordinate."""
    clip: Annotated[float, Field(gt=0)] | Literal["median"] | None = None
    """Longer updates are shortened to this norm, or to the median of the round's norms."""


class CalibrationConfig(Section):
    """Cached calibration (CA2FL): each client's latest update stands in for it."""

    use: Literal["never", "always", "auto"] = "never"
    """auto: in rounds where the measured variance says that it helps."""
    precision: Literal["single", "half"] = "single"
    """Of the cache, which has clients x parameters entries."""
    place: Literal["auto", "device", "host", "disk"] = "auto"
    """Where the cache is; auto: the first of them with room."""


def _named(key: str) -> BeforeValidator:
    """A bare word stands for a table with that one key."""
    return BeforeValidator(lambda given: {key: given} if isinstance(given, str) else given)


class TaskConfig(TrainingOverrides):
    """One model to train."""

    use: str = Field(validation_alias=AliasChoices("use", "task"))
    """A task that fedast knows (``fedast list tasks``), or your own: package.module:function."""
    name: str | None = Field(None, min_length=1)
    """Its name in this run; default: that of ``use``."""
    options: dict[str, Any] = {}
    """The options of that task."""
    initialisation: Literal["model", "glorot", "he"] = "model"
    """How the weights begin: as the model makes them (those of fedast: as PyTorch does by default),
    or by Glorot's or He's rule with biases of nought."""
    sync: TrainingOverrides | None = None
    """Training settings that hold with synchronous algorithms only."""
    size: float | None = Field(None, gt=0)
    """Relative work of one local step."""
    requests: int | None = Field(None, ge=1)
    """Active requests R (asynchronous algorithms)."""
    buffer: int | None = Field(None, ge=1)
    """Buffer size b (asynchronous algorithms)."""
    share: float = Field(1.0, gt=0, le=1e9)
    """Share of the clients (synchronous algorithms)."""
    server_step: Annotated[
        Annotated[StepConfig, Field(discriminator="rule")] | None, _named("rule")
    ] = None
    """How the server steps along the mean update; default: plain."""
    combining: Annotated[CombiningConfig | None, _named("rule")] = None
    """How the updates of a round are combined; default: their mean."""
    calibration: Annotated[CalibrationConfig | None, _named("use")] = None
    """Cached calibration; default: never."""
    level: Literal["low", "main", "high"] = "main"
    """Which of the task's targets holds, if ``target`` is not given."""
    target: float | None = None
    max_rounds: int | None = Field(None, ge=1)
    max_time: float | None = Field(None, gt=0)
    evaluate_every: int | None = Field(None, ge=1)
    join_time: float = Field(0.0, ge=0)
    leave_time: float | None = Field(None, gt=0)


class Compute(Section):
    """Where and how the models are trained."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    trainer: Literal["auto", "serial", "processes", "batched"] = "auto"
    """auto: batched on a GPU; on a CPU the fastest, task by task, as a calibration finds."""
    trainers: dict[str, Literal["serial", "processes", "batched"]] = {}
    """The trainer of each task, where it is settled: what a calibration found out."""
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16"] = "auto"
    """On a GPU: fp32; tf32 (auto) in all matrix products; fp16 (as many digits, and faster) or bf16
    in the kernels for convolutions and the LSTM, tf32 in the rest."""
    batch_limit: int = Field(256, ge=1, le=4096)
    """Clients that are trained together at most."""
    workers: int | None = Field(None, ge=1, le=256)
    """Worker processes; default: one per core."""
    threads: int = Field(1, ge=1, le=256)
    """CPU threads of one run, for serial training and all that is not training."""


class FederationConfig(Section):
    """A real federation: ``fedast serve`` and ``fedast client``. Times are in seconds."""

    min_clients: int = Field(1, ge=1)
    """Clients that must be there before it begins."""
    lease: float = Field(30.0, gt=0)
    """Without a sign of life for so long, a client is gone and its requests go to others."""
    request_timeout: float = Field(3600.0, gt=0)
    """In which a client that is there must answer a request."""
    redeliver_after: float = Field(30.0, ge=1)
    """A request that nobody works on is handed out again after so long."""
    commit_every: float = Field(1.0, ge=0)
    """Between commits of the server's diary."""
    norm_bound: float | None = Field(None, gt=0)
    """Updates with a larger norm are invalid."""
    half_uploads: bool = False
    """Whether clients upload in half precision."""
    evaluate: Literal["server", "clients"] = "server"
    """Where models are evaluated: on the task's test set, or on points that clients hold back."""
    evaluators: int = Field(5, ge=1)
    """Clients that evaluate a model; their numbers of points are their weights."""
    holdout: float = Field(0.2, gt=0, lt=1)
    """The part of its points that a client holds back where clients evaluate."""
    strikes: int = Field(3, ge=1)
    """Invalid uploads after which a client is quarantined."""
    replicas: int = Field(1, ge=1, le=5)
    """Nodes of a NATS cluster that keep queues, uploads and models; at most as many as it has."""
    metrics_port: int | None = Field(None, ge=1, le=65535)
    """Where Prometheus finds /metrics on this machine; default: nowhere."""
    data: dict[str, str] = {}
    """A client's own data by task: package.module:function of its number, giving inputs and labels.
    Default: its part of the task's own partition."""


class RunConfig(Section):
    """A whole configuration file."""

    seed: int = Field(0, ge=0, lt=2**63)
    path: tuple[str, ...] = ()
    """Folders where modules with your own tasks are; default: the file's own folder."""
    algorithm: AlgorithmConfig = Field(FedASTDynamic(), discriminator="name")
    algorithms: dict[str, dict[str, Any]] = {}
    """Settings of other algorithms, used when a comparison switches to one of them."""
    simulation: Simulation = Simulation()
    compute: Compute = Compute()
    federation: FederationConfig = FederationConfig()
    tasks: tuple[TaskConfig, ...] = Field(min_length=1)
