"""A configuration with nothing left open: every default written out.

Running a resolved configuration again gives the same run, so this is what a
run's folder keeps as ``config.toml``. Resolving twice changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedast.aggregation.settings import ServerSide
from fedast.algorithms.options import USUAL_RATIO, AsyncOptions
from fedast.config.load import names_own_code
from fedast.config.plan import plan
from fedast.config.schema import RunConfig, Simulation, TaskConfig, TrainingOverrides
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.options import Options
from fedast.tasks.metrics import MetricOptions
from fedast.tasks.own import is_own, own_preset, plugins
from fedast.tasks.preset import Preset
from fedast.tasks.presets import PRESETS
from fedast.tasks.task import Allocation, Goal, Training

Named = TypeVar("Named", bound=Options)


@dataclass(frozen=True)
class TaskOutline:
    """A configured task before its data is built."""

    name: str
    metric: MetricOptions
    training: Training
    goal: Goal
    allocation: Allocation
    server: ServerSide


def resolve(config: RunConfig, folder: Path = Path()) -> RunConfig:
    """Fill in everything; relative file names are looked up in ``folder``."""
    simulation = _simulation(config.simulation, folder)
    own = any(task.use not in PRESETS for task in config.tasks)
    if own or names_own_code(config.model_dump(exclude={"tasks"})):
        places = [str((folder / place).resolve()) for place in config.path or (".",)]
        config = config.model_copy(update={"path": tuple(dict.fromkeys(places))})
    presets = [preset_of(task, config) for task in config.tasks]
    outlines = [
        outline(task, preset, config.algorithm.synchronous)
        for task, preset in zip(config.tasks, presets, strict=True)
    ]
    specs = plan(outlines, config.algorithm, simulation)
    tasks = []
    for task, preset, sketch, spec in zip(config.tasks, presets, outlines, specs, strict=True):
        training = asdict(sketch.training) | {"server_lr": spec.server_lr}
        asynchronous = not config.algorithm.synchronous
        tasks.append(
            task.model_copy(
                update={
                    **training,
                    "name": sketch.name,
                    "options": _options(task, preset, sketch.name),
                    "sync": None,
                    **_server_tables(task, preset),
                    "step_cost": task.step_cost or preset.step_cost,
                    "requests": spec.active_requests if asynchronous else None,
                    "buffer": spec.buffer_size if asynchronous else None,
                    "target": sketch.goal.target,
                    "max_rounds": sketch.goal.max_rounds,
                    "max_time": sketch.goal.max_time,
                    "join_time": sketch.goal.join_time,
                    "leave_time": sketch.goal.leave_time,
                    "share": sketch.allocation.share,
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


def preset_of(task: TaskConfig, config: RunConfig) -> Preset:
    """What a configured task uses; one of the user's own is built to find out."""
    if task.use in PRESETS:
        return PRESETS[task.use]
    if is_own(task.use):
        clients = config.simulation.clients
        return own_preset(task.use, task.options, clients, config.seed, config.path)
    known = nearest(task.use, [*PRESETS, *plugins()])
    raise ConfigError(f"tasks.{task.name or task.use}.use", f"unknown task {task.use!r}{known}")


def outline(task: TaskConfig, preset: Preset, synchronous: bool) -> TaskOutline:
    name = task.name or (task.use if task.use in PRESETS else preset.summary)
    training = preset.sync_training if synchronous else preset.training
    training = _override(training, task)
    if synchronous and task.sync is not None:
        training = _override(training, task.sync)
    target = task.target
    if target is None and preset.targets:
        if task.level not in preset.targets:
            raise ConfigError(f"tasks.{name}.level", f"it has no {task.level} target; set target")
        target = preset.targets[task.level]
    limits = preset.goal
    return TaskOutline(
        name=name,
        metric=preset.metric,
        training=training,
        goal=Goal(
            target=target,
            max_rounds=limits.max_rounds if task.max_rounds is None else task.max_rounds,
            max_time=limits.max_time if task.max_time is None else task.max_time,
            evaluate_every=task.evaluate_every or limits.evaluate_every,
            evaluate_hint=preset.evaluate_every,
            join_time=task.join_time or limits.join_time,
            leave_time=limits.leave_time if task.leave_time is None else task.leave_time,
        ),
        allocation=Allocation(
            requests=task.requests or preset.allocation.requests,
            buffer=task.buffer or preset.allocation.buffer,
            share=task.share if "share" in task.model_fields_set else preset.allocation.share,
        ),
        server=_server_side(task, preset),
    )


def _server_side(task: TaskConfig, preset: Preset) -> ServerSide:
    given = {
        "optimizer": task.server_optimizer,
        "aggregator": task.aggregator,
        "calibration": task.calibration,
    }
    return preset.server.model_copy(update={k: v for k, v in given.items() if v is not None})


def _server_tables(task: TaskConfig, preset: Preset) -> dict[str, Any]:
    """Defaults written out; a task of the user's own has its own, which stay where they are."""
    if preset.options is None:
        return {}
    side = _server_side(task, preset)
    return {
        "server_optimizer": side.optimizer,
        "aggregator": side.aggregator,
        "calibration": side.calibration,
    }


def _override(training: Training, given: TrainingOverrides) -> Training:
    values = {name: getattr(given, name) for name in TrainingOverrides.model_fields}
    return replace(training, **{name: v for name, v in values.items() if v is not None})


def options_of(task: TaskConfig, preset: Preset, name: str) -> Any:
    """The preset's options with what the file gives; an instance of its dataclass."""
    kind, place = preset.options, f"tasks.{name}.options"
    assert kind is not None
    types = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, given in task.options.items():
        if key not in types:
            raise ConfigError(f"{place}.{key}", f"unknown key{nearest(key, types)}")
        try:
            values[key] = TypeAdapter(types[key]).validate_python(given, strict=True)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise ConfigError(f"{place}.{key}", f"{problem}, got {given!r}") from None
        if isinstance(given, float) and not math.isfinite(given):
            raise ConfigError(f"{place}.{key}", f"must be a finite number, got {given}")
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(place, str(error)) from None


def _options(task: TaskConfig, preset: Preset, name: str) -> dict[str, Any]:
    if preset.options is None:
        return dict(task.options)
    return asdict(options_of(task, preset, name))


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
