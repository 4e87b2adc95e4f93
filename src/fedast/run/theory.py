"""What the paper's analysis says about a configuration, and its round times as simulated.

Round times come from the simulator without training: delays, queues and availability are as
configured, and the models stay as they are. (So the dynamic option sees equal variances and keeps
the allocation.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedast.algorithms.async_progress import buffer_size_for, least_requests
from fedast.algorithms.fedast import FedASTDynamic
from fedast.algorithms.fedast_plus import FedASTPlus
from fedast.algorithms.fedbuff import FedBuff
from fedast.algorithms.options import AlgorithmOptions, BufferedOptions
from fedast.algorithms.selection import Uniform
from fedast.algorithms.staleness import Constant
from fedast.algorithms.sync_st import SyncST
from fedast.algorithms.theory import (
    Conditions,
    CorollaryRates,
    ErrorTerms,
    Moving,
    Problem,
    Setting,
    conditions,
    corollary,
    error_terms,
    fill_time,
    synchronous_round,
)
from fedast.config.plan import plan
from fedast.config.resolve import settings_of
from fedast.config.schema import RunConfig
from fedast.core.protocol import TaskSpec
from fedast.core.streams import Stream
from fedast.learner.protocol import NoLearning
from fedast.parts.errors import ConfigError
from fedast.records.metrics import RunMetrics
from fedast.run.build import build_algorithm, build_delay, build_pool, build_speeds
from fedast.sim.delays import Timing
from fedast.sim.simulator import Simulator


@dataclass(frozen=True)
class TheoryRow:
    """What the analysis says about one task: a row of each table of ``fedast theory``."""

    name: str
    setting: Setting
    moving: Moving | None
    """What R and b can become with the dynamic option; None with a fixed allocation."""
    conditions: Conditions
    terms: ErrorTerms
    corollary: CorollaryRates | None
    """The paper has one for a fixed allocation only."""
    mean_work: float
    """Mean time of one local training, by the delay model over random clients."""
    model_round: float
    """Time of a round by the paper's model, b / (R lambda)."""
    simulated_round: float
    simulated_staleness: float


@dataclass(frozen=True)
class Theory:
    tasks: tuple[TheoryRow, ...]
    model_sync: float
    """Time of a synchronous round by the paper's model, which waits for all requests."""
    simulated_sync: float
    """The same, simulated: Sync-ST that waits for every client."""
    simulated_sync_first_k: float
    """The same, simulated with straggler mitigation as configured for sync-st."""
    first_k: int | str
    """The updates per task that end a round of it."""


def theory(
    config: RunConfig,
    problem: Problem,
    rounds: int,
    updates: int = 20_000,
    *,
    sync: SyncST | None = None,
) -> Theory:
    """Analyse a resolved configuration of FedAST; ``sync`` is what its rounds are compared with."""
    sync = sync or SyncST()
    _check_assumptions(config.algorithm)
    timings = _timings(config)
    specs = _specs(config)
    ran = _run(
        config, config.algorithm, timings, lambda run_metrics: run_metrics.updates >= updates
    )
    found = []
    for spec in specs:
        run_metrics = ran.tasks[spec.name]
        stale = float(run_metrics.staleness_max)
        setting = Setting(
            local_steps=spec.local_steps,
            buffer_size=spec.buffer_size,
            active_requests=spec.active_requests,
            client_lr=spec.client_lr,
            server_lr=spec.server_lr,
            staleness=stale,
        )
        moving = _moving(config.algorithm, spec, len(specs))
        work = _mean_work(config, timings[spec.name])
        found.append(
            TheoryRow(
                name=spec.name,
                setting=setting,
                moving=moving,
                conditions=conditions(setting, problem, moving),
                terms=error_terms(setting, problem, rounds, moving),
                corollary=corollary(setting, problem, rounds) if moving is None else None,
                mean_work=work,
                model_round=fill_time(spec.buffer_size, spec.active_requests, work),
                simulated_round=ran.now / max(1, run_metrics.rounds),
                simulated_staleness=run_metrics.staleness_mean,
            )
        )
    total = sum(task.setting.active_requests for task in found)
    mean = sum(t.mean_work * t.setting.active_requests for t in found) / total
    return Theory(
        tasks=tuple(found),
        model_sync=synchronous_round(total, mean),
        simulated_sync=mean_sync_round(config, SyncST(first_k="all")),
        simulated_sync_first_k=mean_sync_round(config, sync),
        first_k=sync.first_k,
    )


def _check_assumptions(algorithm: AlgorithmOptions) -> None:
    """The analysis: clients are chosen uniformly, and a round averages its updates equally."""
    if not isinstance(algorithm, BufferedOptions):
        raise ConfigError(
            "algorithm.name", "the analysis is of FedAST only; choose fedast-s or fedast-d"
        )
    if isinstance(algorithm, FedASTPlus):
        raise ConfigError(
            "algorithm.name",
            "Theorem 1 does not cover fedast-plus: it assumes that any client may be asked, that "
            "the server rate is fixed, without momentum, and that all updates weigh the same; "
            "choose fedast-s or fedast-d",
        )
    if isinstance(algorithm, FedBuff) and algorithm.idle:
        raise ConfigError(
            "algorithm.name",
            "the analysis assumes that any client may be asked, and FedBuff asks idle ones only; "
            "choose fedast-s, or set algorithm.idle=false",
        )
    if not isinstance(algorithm.selection, Uniform):
        raise ConfigError(
            "algorithm.selection", "the analysis assumes that clients are chosen uniformly"
        )
    if not isinstance(algorithm.staleness_weight, Constant):
        raise ConfigError(
            "algorithm.staleness_weight", "the analysis assumes that all updates weigh the same"
        )


def _moving(algorithm: AlgorithmOptions, spec: TaskSpec, tasks: int) -> Moving | None:
    """The range of R and b with the dynamic option: from the least that Realloc leaves a task, to
    all requests, which the last task has in the end."""
    if not isinstance(algorithm, FedASTDynamic):
        return None
    total = algorithm.requests
    assert total is not None  # it is resolved
    ratio = spec.active_requests / spec.buffer_size
    least = total if tasks == 1 else min(spec.active_requests, least_requests(spec))
    return Moving(
        min_buffer=buffer_size_for(least, ratio, spec.min_buffer_size),
        max_buffer=buffer_size_for(total, ratio, spec.min_buffer_size),
        max_requests=total,
    )


def _specs(config: RunConfig) -> list[TaskSpec]:
    settings = [settings_of(task, config) for task in config.tasks]
    return plan(settings, config.algorithm, config.simulation)


def _timings(config: RunConfig) -> dict[str, Timing]:
    found = {}
    for task in config.tasks:
        decided = settings_of(task, config)
        found[decided.name] = Timing(decided.name, decided.training.local_steps, decided.step_cost)
    return found


def _mean_work(config: RunConfig, timing: Timing, draws: int = 4000) -> float:
    delay = build_delay(config.simulation, [timing.task])
    speeds = build_speeds(config.simulation, config.seed)
    stream = Stream.of(config.seed, "theory", timing.task)
    total = 0.0
    for number in range(draws):
        client = stream.below(config.simulation.clients)
        total += delay.duration(stream.at(number), timing, client, speeds.of(client))
    return total / draws


def _run(
    config: RunConfig,
    algorithm: AlgorithmOptions,
    timings: dict[str, Timing],
    enough: Callable[[RunMetrics], bool],
) -> RunMetrics:
    """Simulate without training until ``enough``; no target or limit ends a task before."""
    specs = [
        replace(spec, target=None, max_rounds=None)
        for spec in _specs(config.model_copy(update={"algorithm": algorithm}))
    ]
    pool = build_pool(config.simulation)
    run_metrics = RunMetrics(specs)
    simulator = Simulator(
        build_algorithm(algorithm, specs, pool, config.seed),
        NoLearning(),
        pool,
        build_delay(config.simulation, list(timings)),
        build_speeds(config.simulation, config.seed),
        timings,
        run_metrics,
        seed=config.seed,
    )
    simulator.run(lambda: enough(run_metrics))
    return run_metrics


def mean_sync_round(config: RunConfig, algorithm: SyncST) -> float:
    """The mean time of a synchronous round of a resolved configuration."""

    def rounds(run_metrics: RunMetrics) -> int:
        return min(task.rounds for task in run_metrics.tasks.values())

    def enough(run_metrics: RunMetrics) -> bool:
        return rounds(run_metrics) >= 100 or (
            rounds(run_metrics) >= 3 and run_metrics.updates >= 20_000
        )

    run_metrics = _run(config, algorithm, _timings(config), enough)
    return run_metrics.now / rounds(run_metrics)
