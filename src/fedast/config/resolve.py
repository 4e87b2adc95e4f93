"""A configuration with nothing left open: every default written out.

Running a resolved configuration again gives the same run, so this is what a
run's folder keeps as ``config.toml``. Resolving twice changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fedast.aggregation.settings import ServerSide
from fedast.algorithms.options import USUAL_RATIO, AlgorithmOptions, AsyncOptions
from fedast.config.load import names_own_code
from fedast.config.plan import complete_server, plan
from fedast.config.schema import RunConfig, Simulation, TaskConfig, TrainingOverrides
from fedast.core.protocol import TaskSpec
from fedast.parts.errors import ConfigError
from fedast.parts.options import Options
from fedast.parts.registry import make_importable
from fedast.tasks.options import TASKS, TaskOptions, build_task
from fedast.tasks.task import Allocation, Goal, Task, Training

Named = TypeVar("Named", bound=Options)


def resolve(config: RunConfig, folder: Path = Path()) -> RunConfig:
    """Fill in everything; relative file names are looked up in ``folder``."""
    simulation = _simulation(config.simulation, folder)
    own = any(task.use not in TASKS.builtin for task in config.tasks)
    if own or names_own_code(config.model_dump()):
        places = [str((folder / place).resolve()) for place in config.path or (".",)]
        config = config.model_copy(update={"path": tuple(dict.fromkeys(places))})
    kinds = [options_of(task, config) for task in config.tasks]
    settings = [settings_of(task, config) for task in config.tasks]
    specs = plan(settings, config.algorithm, simulation)
    tasks = []
    for task, options, decided, spec in zip(config.tasks, kinds, settings, specs, strict=True):
        training = dict(decided.training) | {"server_lr": spec.server_lr}
        asynchronous = not config.algorithm.synchronous
        tasks.append(
            task.model_copy(
                update={
                    **training,
                    "name": decided.name,
                    "options": options.table(),
                    "sync": None,
                    **({} if options.defaults is None else _server_tables(decided.server, spec)),
                    "step_cost": decided.step_cost,
                    "requests": spec.active_requests if asynchronous else None,
                    "buffer": spec.buffer_size if asynchronous else None,
                    "target": decided.goal.target,
                    "max_rounds": decided.goal.max_rounds,
                    "max_time": decided.goal.max_time,
                    "join_time": decided.goal.join_time,
                    "leave_time": decided.goal.leave_time,
                    "share": decided.allocation.share,
                    "evaluate_every": spec.evaluate_every,
                }
            )
        )
    algorithm = config.algorithm
    if isinstance(algorithm, AsyncOptions):
        total = sum(
            spec.active_requests
            for spec, task in zip(specs, tasks, strict=True)
            if task.join_time == 0
        )
        # (Every task's buffer is written out, so the ratio says no more than what is usual.)
        ratio = USUAL_RATIO if algorithm.ratio is None else algorithm.ratio
        algorithm = algorithm.model_copy(update={"requests": total, "ratio": ratio})
    return config.model_copy(
        update={
            "algorithm": algorithm,
            "algorithms": {},
            "simulation": simulation,
            "tasks": tuple(tasks),
        }
    )


def options_of(task: TaskConfig, config: RunConfig) -> TaskOptions:
    """The options of a configured task, checked by its own class."""
    key = f"tasks.{task.name or task.use}"
    if task.use not in TASKS.builtin or config.path:
        make_importable(config.path)
    return TASKS.find(task.use, f"{key}.use").read(task.options, f"{key}.options")


def defaults_of(task: TaskConfig, config: RunConfig) -> Task:
    """The task without its data, before the file changes anything."""
    options = options_of(task, config)
    if options.defaults is not None:
        return replace(options.defaults, name=task.use)
    name = task.name or ("" if ":" in task.use else task.use)
    return build_task(options, config.simulation.clients, config.seed, name).settings()


def settings_of(task: TaskConfig, config: RunConfig) -> Task:
    """The task without its data, as the file has it."""
    options, defaults = options_of(task, config), defaults_of(task, config)
    synchronous = config.algorithm.synchronous
    name = task.name or defaults.name
    training = (synchronous and options.sync_training) or defaults.training
    training = _override(training, task)
    if synchronous and task.sync is not None:
        training = _override(training, task.sync)
    target, targets = task.target, options.targets_by_level(defaults)
    if target is None and targets:
        if task.level not in targets:
            raise ConfigError(f"tasks.{name}.level", f"it has no {task.level} target; set target")
        target = targets[task.level]
    limits = defaults.goal
    return replace(
        defaults,
        name=name,
        step_cost=task.step_cost or defaults.step_cost,
        training=training,
        goal=Goal(
            target=target,
            max_rounds=limits.max_rounds if task.max_rounds is None else task.max_rounds,
            max_time=limits.max_time if task.max_time is None else task.max_time,
            evaluate_every=task.evaluate_every or limits.evaluate_every,
            evaluate_hint=limits.evaluate_hint,
            join_time=task.join_time or limits.join_time,
            leave_time=limits.leave_time if task.leave_time is None else task.leave_time,
        ),
        allocation=Allocation(
            requests=task.requests or defaults.allocation.requests,
            buffer=task.buffer or defaults.allocation.buffer,
            share=task.share if "share" in task.model_fields_set else defaults.allocation.share,
        ),
        server=_server_side(task, defaults, config.algorithm),
    )


def _server_side(task: TaskConfig, defaults: Task, algorithm: AlgorithmOptions) -> ServerSide:
    given = {
        "optimizer": task.server_optimizer,
        "aggregator": task.aggregator,
        "calibration": task.calibration,
        "averaging": task.averaging,
        "rate_control": task.rate_control,
    }
    side = defaults.server.model_copy(update={k: v for k, v in given.items() if v is not None})
    return side.with_defaults(algorithm.server_defaults())


def _server_tables(side: ServerSide, spec: TaskSpec) -> dict[str, Any]:
    """Defaults written out; a user's task has its own, which stay where they are."""
    side = complete_server(side, spec)
    return {
        "server_optimizer": side.optimizer,
        "aggregator": side.aggregator,
        "calibration": side.calibration,
        "averaging": side.averaging,
        "rate_control": side.rate_control,
    }


def _override(training: Training, given: TrainingOverrides) -> Training:
    values = {name: getattr(given, name) for name in TrainingOverrides.model_fields}
    return training.model_copy(update={k: v for k, v in values.items() if v is not None})


def _simulation(simulation: Simulation, folder: Path) -> Simulation:
    availability = simulation.availability.complete(simulation.clients)
    return simulation.model_copy(
        update={
            "delay": with_files(simulation.delay, folder, "simulation.delay"),
            "availability": with_files(availability, folder, "simulation.availability"),
        }
    )


def with_files(options: Named, folder: Path, key: str) -> Named:
    """With the files that options name found, beside the configuration or by their full path."""
    found = {
        name: _existing(folder / getattr(options, name), f"{key}.{name}")
        for name in options.files
        if getattr(options, name) is not None
    }
    return options.model_copy(update=found) if found else options


def _existing(path: Path, key: str) -> str:
    if not path.is_file():
        raise ConfigError(key, f"there is no file {path}; give its path, relative to this file")
    return str(path.resolve())
