"""Keys of a configuration that have no effect in this run, and why.

Every key has a use somewhere, and one file may be used with several commands and algorithms, so a
key without effect is not an error, but the user should know. A note names a key whose value is not
the default and cannot change this run. A test tries every key of every section and compares the
notes with what runs really do (``tests/config/test_no_effect.py``).

A resolved configuration writes out what follows from other keys. Such a key is not noted while it
says what would follow without it: ``ratio = 8`` beside buffers of requests / 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import BaseModel

from fedast.aggregation.server_optimizers import Fadas
from fedast.aggregation.settings import Calibration
from fedast.algorithms.centralized import Centralized
from fedast.algorithms.fedast import FedASTDynamic
from fedast.algorithms.fedast_plus import FASTEST, FedASTPlus
from fedast.algorithms.options import (
    USUAL_RATIO,
    AlgorithmOptions,
    AsyncOptions,
    BufferedOptions,
    SyncOptions,
)
from fedast.algorithms.selection import Uniform
from fedast.algorithms.sequential_fedavg import SequentialFedAvg
from fedast.algorithms.sync_bayes_st import SyncBayesST
from fedast.algorithms.sync_st import SyncST
from fedast.config.cautions import cautions, cautions_of_data
from fedast.config.load import names_own_code
from fedast.config.notes import Note
from fedast.config.plan import plan
from fedast.config.resolve import defaults_of, options_of, settings_of
from fedast.config.schema import RunConfig, Simulation, TaskConfig, TrainingOverrides
from fedast.core.protocol import TaskSpec
from fedast.parts.errors import ConfigError
from fedast.sim.availability import ActiveCap, Bernoulli
from fedast.tasks.client_optimizers import SGD
from fedast.tasks.embedded import Synthetic
from fedast.tasks.options import TASKS
from fedast.tasks.task import Allocation, Task
from fedast.training.options import TrainerOptions


def notes_of(config: RunConfig) -> list[Note]:
    """Notes on a configuration as it was given, not resolved: that fills in what was left out."""
    tasks = [settings_of(task, config) for task in config.tasks]
    found = notes(tasks, config.algorithm, config.simulation)
    for task, decided in zip(config.tasks, tasks, strict=True):
        found += [Note(key, why, decided.name) for key, why in _in_file(task, config)]
    return found + [Note(key, why) for key, why in _elsewhere(config)]


def notes(tasks: Sequence[Task], algorithm: AlgorithmOptions, simulation: Simulation) -> list[Note]:
    """Notes on tasks, algorithm and simulation, without what only a file can say."""
    settings = [task.settings() for task in tasks]
    found = [
        Note(f"algorithm.{key}", why)
        for key, why in [
            *_in_algorithm(settings, algorithm, simulation),
            *_overridden(settings, algorithm, simulation),
        ]
        if _given(algorithm, key)
    ]
    found += [Note(f"simulation.{key}", why) for key, why in _in_simulation(algorithm, simulation)]
    for task in settings:
        own = [
            *_in_allocation(task, settings, algorithm),
            *_in_goal(task, simulation),
            *_in_training(task),
            *_in_server(task, algorithm),
        ]
        found += [Note(key, why, task.name) for key, why in own]
    for task in () if algorithm.pools_data else tasks:
        found += [Note(key, why, task.name, idle=False) for key, why in cautions_of_data(task)]
    defeating = cautions(settings, algorithm, simulation)
    return found + [Note(key, why, idle=False) for key, why in defeating]


Reasons = Iterator[tuple[str, str]]
"""Keys within a section that have no effect, and why."""


def _given(section: BaseModel, key: str) -> bool:
    if key == "ratio" and getattr(section, key) == USUAL_RATIO:
        return False  # files of earlier versions write it out, whether it matters or not
    return bool(getattr(section, key) != type(section).model_fields[key].default)


# --- the algorithm --------------------------------------------------------------------------------


def _in_algorithm(
    tasks: Sequence[Task], algorithm: AlgorithmOptions, simulation: Simulation
) -> Reasons:
    if isinstance(algorithm, BufferedOptions | SyncST):
        selection = algorithm.selection
        if not isinstance(selection, Uniform) and getattr(selection, "candidates", 2) == 1:
            yield "selection", "there is nothing to choose from one candidate"
    if isinstance(algorithm, BufferedOptions):
        if not _cancels(tasks, simulation):
            yield "cancel", "no task ends while others go on"
    elif isinstance(algorithm, SyncOptions) and (
        not any(_cut_short(task) for task in tasks) or len(tasks) == 1
    ):
        yield "cancel", "no task ends in the middle of a round while others go on"
    match algorithm:
        case FedASTDynamic() if len(tasks) == 1:
            for key in ("allocation_rule", "variance_window", "period"):
                yield key, "there is one task, and nothing to move requests to"
        case FedASTPlus():
            if algorithm.allocation_rule is None or len(tasks) == 1:
                for key in ("variance_window", "period"):
                    yield key, "no allocation_rule moves requests between tasks"
            if algorithm.server_lr > FASTEST:
                yield (
                    "server_lr",
                    f"{algorithm.name} sets the rate, and counts this as {FASTEST}",
                )
        case SyncBayesST(candidates=1):
            for key in ("alpha", "history"):
                yield key, "there is nothing to choose from one candidate"
        case Centralized():
            yield "first_k", "there is one pseudo-client, which is waited for"
            yield "stragglers", "there is one pseudo-client, which is waited for"
        case _:
            pass
    if isinstance(algorithm, SyncOptions) and not isinstance(algorithm, Centralized):
        if algorithm.first_k == "all":
            yield "stragglers", 'first_k = "all" waits for everyone'
        elif simulation.most_active <= algorithm.first_k:
            yield "stragglers", "no round has more clients than first_k, so it waits for everyone"


def _cancels(tasks: Sequence[Task], simulation: Simulation) -> bool:
    """Whether a task may end, and its requests be cancelled, while another trains."""
    ends = any(
        _cut_short(task)
        or task.goal.max_rounds is not None
        or (simulation.until in ("each", "held") and task.goal.target is not None)
        for task in tasks
    )
    return len(tasks) > 1 and ends


def _cut_short(task: Task) -> bool:
    return task.goal.leave_time is not None or task.goal.max_time is not None


def _overridden(
    tasks: Sequence[Task], algorithm: AlgorithmOptions, simulation: Simulation
) -> Reasons:
    """Options for tasks that do not set their own, where all do, and to something else."""
    specs = _plan(tasks, algorithm, simulation)

    def disagrees(stripped: Sequence[Task]) -> bool:
        return list(stripped) == list(tasks) or _plan(stripped, algorithm, simulation) != specs

    def every(key: str) -> str:
        return f"every task has {key} of its own"

    if all(_own_evaluations(task, algorithm) for task in tasks):
        stripped = [
            replace(t, goal=t.goal.model_copy(update={"evaluate_every": None})) for t in tasks
        ]
        if disagrees(stripped):
            yield "evaluate_every", every("an evaluate_every")
            if not _buffered(algorithm) and all(t.goal.evaluate_every for t in tasks):
                yield "ratio", every("an evaluate_every")
    if all(t.training.server_lr or t.server.optimizer.adaptive for t in tasks):
        stripped = [
            replace(t, training=t.training.model_copy(update={"server_lr": None})) for t in tasks
        ]
        if disagrees(stripped):
            yield "server_lr", every("a server_lr or an adaptive optimizer")
    if not isinstance(algorithm, AsyncOptions):
        return
    if all(t.allocation.buffer for t in tasks) and algorithm.buffered:
        stripped = [
            replace(t, allocation=t.allocation.model_copy(update={"buffer": None})) for t in tasks
        ]
        if disagrees(stripped):
            yield "ratio", every("a buffer")
    first = [task for task in tasks if task.goal.join_time == 0]
    rest = [task for task in first if task.allocation.requests is None]
    if not rest:
        stripped = [
            replace(t, allocation=t.allocation.model_copy(update={"requests": None})) for t in tasks
        ]
        if disagrees(stripped):
            yield "initial", every("requests")
    elif len({task.allocation.share for task in rest}) == 1:
        yield "initial", "the tasks that it is for have equal shares"


def _own_evaluations(task: Task, algorithm: AlgorithmOptions) -> bool:
    hint = None if algorithm.synchronous else task.goal.evaluate_hint
    return (task.goal.evaluate_every or hint) is not None


def _plan(
    tasks: Sequence[Task], algorithm: AlgorithmOptions, simulation: Simulation
) -> list[TaskSpec] | None:
    try:
        return plan(tasks, algorithm, simulation)
    except ConfigError:  # not without what was left out
        return None


# --- the simulated world --------------------------------------------------------------------------


def _in_simulation(algorithm: AlgorithmOptions, simulation: Simulation) -> Reasons:
    if isinstance(algorithm, Centralized):
        alone = "centralized has one pseudo-client of average speed, always available"
        usual = ActiveCap()
        if simulation.availability not in (usual, usual.complete(simulation.clients)):
            yield "availability", alone
        if _given(simulation, "speeds"):
            yield "speeds", alone
    elif not algorithm.synchronous and isinstance(simulation.availability, Bernoulli):
        part = simulation.availability
        if _given(part, "p"):
            yield "availability.p", f"any client can be asked at any time by {algorithm.name}"


# --- tasks ----------------------------------------------------------------------------------------


def _in_allocation(task: Task, tasks: Sequence[Task], algorithm: AlgorithmOptions) -> Reasons:
    given = task.allocation
    if algorithm.synchronous:
        why = f"it is for asynchronous algorithms, and {algorithm.name} trains in rounds"
        if given.requests is not None:
            yield "requests", why
        if given.buffer is not None:
            yield "buffer", why
    elif not _buffered(algorithm) and given.buffer not in (None, 1):
        yield "buffer", f"{algorithm.name} steps after every update"
    if given.share != Allocation().share:
        why_not = _no_share(task, tasks, algorithm)
        if why_not:
            yield "share", why_not


def _no_share(task: Task, tasks: Sequence[Task], algorithm: AlgorithmOptions) -> str | None:
    """Why a task's share does not matter, if it does not."""
    if len(tasks) == 1:
        return "there is one task"
    match algorithm:
        case SyncST(split="round-robin"):
            return 'split = "round-robin" gives all tasks the same'
        case SequentialFedAvg() | Centralized():
            return f"{algorithm.name} does not split clients over tasks"
        case FedASTDynamic(allocation_rule=rule) if rule.uses_share:
            return None
        case _ if algorithm.synchronous:
            return None
        case _ if isinstance(algorithm, AsyncOptions) and algorithm.initial == "shares":
            fixed = task.allocation.requests is not None or task.goal.join_time > 0
            return "the task has requests of its own" if fixed else None
        case _:
            or_so = ' or allocation_rule = "shares"' if isinstance(algorithm, FedASTDynamic) else ""
            return f'{algorithm.name} uses it only with initial = "shares"{or_so}'


def _in_goal(task: Task, simulation: Simulation) -> Reasons:
    goal, last = task.goal, simulation.max_time
    if goal.max_time is not None and last is not None and goal.max_time > last:
        yield "max_time", f"simulation.max_time is earlier, {last:g}"
    limits = [limit for limit in (goal.max_time, last) if limit is not None]
    if goal.leave_time is not None and limits and goal.leave_time > min(limits):
        yield "leave_time", f"its time limit is earlier, {min(limits):g}"


def _in_training(task: Task) -> Reasons:
    optimizer = task.training.client_optimizer
    schedule = optimizer.schedule
    if schedule.use == "constant":
        for key in ("final", "rounds"):
            if _given(schedule, key):
                yield f"client_optimizer.schedule.{key}", 'the schedule is "constant"'
    if task.training.local_steps == 1:
        why = "a local training is one step, and nothing is remembered from the one before"
        if optimizer.proximal:
            yield "client_optimizer.proximal", why
        if isinstance(optimizer, SGD) and optimizer.momentum and not optimizer.nesterov:
            yield "client_optimizer.momentum", why
        if schedule.use != "constant" and schedule.rounds is None:
            yield "client_optimizer.schedule", why


def _in_server(task: Task, algorithm: AlgorithmOptions) -> Reasons:
    side = task.server
    if side.aggregator.clip == "median" and _one_update(algorithm):
        yield "aggregator.clip", "a round has one update, which is its own median"
    if side.calibration.use == "never":
        for key in ("precision", "place"):
            if getattr(side.calibration, key) != getattr(Calibration(), key):
                yield f"calibration.{key}", 'calibration is "never" used'
    elif isinstance(algorithm, Centralized):
        yield "calibration", "there is one pseudo-client, and no client's update is ever missing"
    for part, section in (("averaging", side.averaging), ("rate_control", side.rate_control)):
        if section.use == "never":
            for key in type(section).model_fields:
                if _given(section, key):
                    yield f"{part}.{key}", f'{part} is "never" used'
    optimizer = side.optimizer
    if isinstance(optimizer, Fadas) and _given(optimizer, "patience") and algorithm.synchronous:
        yield "server_optimizer.patience", f"no update comes late with {algorithm.name}"


def _buffered(algorithm: AlgorithmOptions) -> bool:
    return not isinstance(algorithm, AsyncOptions) or algorithm.buffered


def _one_update(algorithm: AlgorithmOptions) -> bool:
    if isinstance(algorithm, AsyncOptions):
        return not algorithm.buffered
    return algorithm.updates_per_round(1) == 1


def _in_file(task: TaskConfig, config: RunConfig) -> Reasons:
    """What only a configuration can say of a task."""
    options, defaults = options_of(task, config), defaults_of(task, config)
    costs = (None, defaults.step_cost)
    if not config.simulation.delay.uses_step_cost and task.step_cost not in costs:
        yield "step_cost", "measured work times are used unchanged"
    if _given(task, "level"):
        targets = options.targets_by_level(defaults)
        if task.target is None:
            if not targets:
                yield "level", "the task has no targets; set target"
        elif targets.get(task.level) != task.target:
            yield "level", "target is set"
    for key in TrainingOverrides.model_fields if task.sync is not None else ():
        if getattr(task.sync, key) is None:
            continue
        if not config.algorithm.synchronous:
            yield (
                f"sync.{key}",
                f"it is for synchronous algorithms, not for {config.algorithm.name}",
            )
        elif getattr(task, key) is not None:
            yield key, f"sync.{key} is set, for algorithms such as {config.algorithm.name}"
    if isinstance(options, Synthetic) and _given(options, "alpha"):
        yield "options.alpha", "in LEAF's definition it shifts the scores of all classes alike"


# --- the rest of a file ---------------------------------------------------------------------------


def _elsewhere(config: RunConfig) -> Reasons:
    compute = config.compute
    own = config.federation.data or any(task.use not in TASKS.builtin for task in config.tasks)
    if config.path and not own and not names_own_code(config.model_dump(exclude={"path"})):
        yield "path", "no part of the run is your own code"
    names = [task.name or task.use for task in config.tasks]
    kinds = [compute.trainers.get(name, compute.trainer) for name in names]
    all_chosen = all(name in compute.trainers for name in names)
    if _given(compute, "trainer") and all_chosen and compute.trainer not in kinds:
        yield "compute.trainer", "compute.trainers has one for every task"
    # (A run that chose trainers has written out the rest too.)
    if not compute.trainers and isinstance(compute.trainer, TrainerOptions):
        for key in ("workers", "batch_limit"):
            if _given(compute, key) and key not in compute.trainer.uses:
                yield f"compute.{key}", f'the trainer is "{compute.trainer.name}"'
    if config.federation.evaluate == "server":
        for key in ("evaluators", "holdout"):
            if _given(config.federation, key):
                yield f"federation.{key}", "models are evaluated on the server"
