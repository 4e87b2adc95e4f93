"""A configuration with nothing left open: every default written out.

Running a resolved configuration again gives the same run, so this is what a
run's folder keeps as ``config.toml``. Resolving twice changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedast.experiments.config import (
    ALGORITHMS,
    ActiveCap,
    FedASTDynamic,
    FedASTNoBuffer,
    FedASTStatic,
    Measured,
    RunConfig,
    Simulation,
    SyncST,
    TaskConfig,
    Trace,
    TrainingOverrides,
    Uniform,
)
from fedast.experiments.load import ConfigError, nearest
from fedast.experiments.plan import active_cap, plan
from fedast.learn.presets import PRESETS, Preset
from fedast.learn.task import Allocation, Goal, Training


@dataclass(frozen=True)
class TaskOutline:
    """A configured task before its data is built."""

    name: str
    metric: str
    training: Training
    goal: Goal
    allocation: Allocation


def resolve(config: RunConfig, folder: Path = Path()) -> RunConfig:
    """Fill in everything; relative file names are looked up in ``folder``."""
    for name in config.algorithms:
        if name not in ALGORITHMS:
            raise ConfigError(f"algorithms.{name}", f"unknown algorithm{nearest(name, ALGORITHMS)}")
    simulation = _simulation(config.simulation, folder)
    outlines = [outline(task, config.algorithm.synchronous) for task in config.tasks]
    specs = plan(outlines, config.algorithm, simulation)
    tasks = []
    for task, sketch, spec in zip(config.tasks, outlines, specs, strict=True):
        training = asdict(sketch.training) | {"server_rate": spec.server_rate}
        asynchronous = not config.algorithm.synchronous
        tasks.append(
            task.model_copy(
                update={
                    **training,
                    "name": sketch.name,
                    "options": asdict(_options(task, sketch.name)),
                    "sync": None,
                    "size": task.size or preset_of(task).size,
                    "requests": spec.active_requests if asynchronous else None,
                    "buffer": spec.buffer_size if asynchronous else None,
                    "target": sketch.goal.target,
                    "evaluate_every": spec.evaluate_every,
                }
            )
        )
    algorithm = config.algorithm
    match algorithm:
        case FedASTDynamic() | FedASTStatic() | FedASTNoBuffer():
            total = sum(
                spec.active_requests
                for spec, task in zip(specs, tasks, strict=True)
                if task.join_time == 0
            )
            algorithm = algorithm.model_copy(update={"requests": total})
        case SyncST():
            pass
    return config.model_copy(
        update={
            "algorithm": algorithm,
            "algorithms": {},
            "simulation": simulation,
            "tasks": tuple(tasks),
        }
    )


def preset_of(task: TaskConfig) -> Preset:
    if task.use not in PRESETS:
        raise ConfigError(
            f"tasks.{task.name or task.use}.use",
            f"unknown task {task.use!r}{nearest(task.use, PRESETS)}",
        )
    return PRESETS[task.use]


def outline(task: TaskConfig, synchronous: bool) -> TaskOutline:
    preset = preset_of(task)
    training = preset.sync_training if synchronous else preset.training
    training = _override(training, task)
    if synchronous and task.sync is not None:
        training = _override(training, task.sync)
    return TaskOutline(
        name=task.name or task.use,
        metric=preset.metric,
        training=training,
        goal=Goal(
            target=preset.target if task.target is None else task.target,
            max_rounds=task.max_rounds,
            max_time=task.max_time,
            evaluate_every=task.evaluate_every,
            join_time=task.join_time,
            leave_time=task.leave_time,
        ),
        allocation=Allocation(requests=task.requests, buffer=task.buffer, share=task.share),
    )


def _override(training: Training, given: TrainingOverrides) -> Training:
    values = {name: getattr(given, name) for name in TrainingOverrides.model_fields}
    return replace(training, **{name: v for name, v in values.items() if v is not None})


def _options(task: TaskConfig, name: str) -> Any:
    """The preset's options with what the file gives; a dataclass instance."""
    kind, place = preset_of(task).options, f"tasks.{name}.options"
    known = [field.name for field in fields(kind)]
    for given in task.options:
        if given not in known:
            raise ConfigError(f"{place}.{given}", f"unknown key{nearest(given, known)}")
    try:
        return TypeAdapter(kind).validate_python(dict(task.options), strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([place, *map(str, first["loc"])])
        raise ConfigError(key, f"{first['msg']}, got {first['input']!r}") from None


def _simulation(simulation: Simulation, folder: Path) -> Simulation:
    speeds = simulation.speeds
    if len(speeds.factors) != len(speeds.shares) or sum(speeds.shares) <= 0:
        raise ConfigError(
            "simulation.speeds", "needs as many shares as factors, at least one above 0"
        )
    update: dict[str, Any] = {}
    match simulation.delay:
        case Uniform(low=low, high=high) if low > high:
            raise ConfigError("simulation.delay.low", f"is {low}, above high ({high})")
        case Measured(file=file):
            path = _existing(folder / file, "simulation.delay.file")
            update["delay"] = simulation.delay.model_copy(update={"file": path})
        case _:
            pass
    match simulation.availability:
        case ActiveCap():
            cap = active_cap(simulation)
            update["availability"] = simulation.availability.model_copy(update={"cap": cap})
        case Trace(file=file):
            path = _existing(folder / file, "simulation.availability.file")
            update["availability"] = simulation.availability.model_copy(update={"file": path})
        case _:
            pass
    return simulation.model_copy(update=update)


def _existing(path: Path, key: str) -> str:
    if not path.is_file():
        raise ConfigError(key, f"there is no file {path}; give its path, relative to this file")
    return str(path.resolve())
