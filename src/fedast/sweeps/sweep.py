"""A sweep: a study with keys to search, and what follows from its file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError, nearest
from fedast.reproduce.check import check_axes
from fedast.reproduce.expand import write_out
from fedast.reproduce.load import SWEEP_KEYS, read_table, study_of
from fedast.reproduce.study import Study, StudyConfig, Variant
from fedast.sweeps.objective import Objective
from fedast.sweeps.pruning import Prune, prune_of
from fedast.sweeps.samplers import SAMPLERS, SamplerOptions, drawn
from fedast.sweeps.space import Choice, Parameter, Point, inline, parameters_of, settings_of, shown
from fedast.version import __version__

_TRIED = 64
"""So many points are drawn to see whether a space makes sense, where they are not known before."""


@final
@dataclass(frozen=True)
class Sweep:
    study: Study
    space: tuple[Parameter, ...]
    sampler: SamplerOptions
    seeds: tuple[int, ...]
    asked: Mapping[str, Any]
    """``search``, ``objective`` and ``prune`` as the file has them."""
    settings: tuple[str, ...] = ()
    """Of every run (``--set``)."""
    track: tuple[str, ...] = ()
    """Trackers that every run is sent to; they do not make it another sweep."""

    @property
    def trials(self) -> int:
        """How many trials there are at most."""
        return self.sampler.count(self.space)

    def config(self, point: Mapping[str, Any], seed: int) -> RunConfig:
        """The resolved configuration of a run."""
        values = tuple(
            next(value for value in axis.values if value.label == point[axis.name])
            for axis in self.study.axes
        )
        axes = {axis.name for axis in self.study.axes}
        variant = Variant(self.study, values)
        write_out(table := variant.table())
        chosen = {key: value for key, value in point.items() if key not in axes}
        algorithm, settings = settings_of(chosen, table.get("tasks", []))
        tracked = [f"track={json.dumps(self.track)}"] if self.track else []
        settings = [*self.settings, *settings, *tracked]
        return variant.config(seed, "full", settings, algorithm=algorithm)

    def objective(self, config: RunConfig) -> Objective:
        return Objective.of(self.asked["objective"], config)

    def prune(self, objective: Objective) -> Prune:
        return prune_of(self.asked["prune"], objective)

    def definition(self, objective: Objective) -> dict[str, Any]:
        """What ``sweep.json`` says."""
        table = {
            "fedast": __version__,
            "name": self.study.name,
            "title": self.study.config.title,
            "objective": objective.to_json(),
            "sampler": self.sampler.model_dump(mode="json"),
            "prune": self.prune(objective).model_dump(mode="json"),
            "seeds": list(self.seeds),
            "trials": self.trials,
            "parameters": [parameter.to_json() for parameter in self.space],
            "settings": list(self.settings),
            "study": {
                "base": self.study.base,
                "axes": [axis.model_dump(mode="json") for axis in self.study.axes],
                "search": self.asked["search"],
            },
        }
        copy: dict[str, Any] = json.loads(json.dumps(table))
        return copy


def load_sweep(
    source: Path | str | Mapping[str, Any],
    *,
    settings: Sequence[str] = (),
    trials: int | None = None,
    seeds: int | None = None,
    track: Sequence[str] = (),
) -> Sweep:
    """From a file, or from a table like its content; ``trials`` and ``seeds`` in place of its own.

    ``ConfigError`` names what is wrong with it; ``check_points`` looks at what it stands for.
    """
    if isinstance(source, Mapping):
        table, path, text = dict(source), Path("sweep.toml"), ""
    else:
        path, text = Path(source), str(source)
        table = read_table(path)
    try:
        sweep = _sweep_of(table, path, settings, trials, seeds)
        return replace(sweep, track=tuple(track))
    except ConfigError as error:
        raise error if error.source else error.within(text) from None


def _sweep_of(
    table: dict[str, Any],
    path: Path,
    settings: Sequence[str],
    trials: int | None,
    seeds: int | None,
) -> Sweep:
    for key in table:
        if key not in (known := (*StudyConfig.model_fields, *SWEEP_KEYS, "like", "reported")):
            hint = nearest(key, known)
            if key in ("tasks", "algorithm", "simulation", "compute", "algorithms"):
                hint = "; write it under [base], or name a configuration: extends = 'FILE.toml'"
            raise ConfigError(key, f"unknown key{hint}")
    for setting in settings:
        if setting.partition("=")[0].strip() == "seed":
            raise ConfigError("--set", "the sweep sets the seeds; use --seeds for their number")
    asked = {key: table.pop(key, None) for key in SWEEP_KEYS}
    asked["search"] = asked["search"] or {}
    if asked["objective"] is None:
        asked["objective"] = "finish_time"
    given = {"title": path.stem, "where": "", "says": "", "axes": [], "seeds": 1, **table}
    study = study_of(given, path, str(path), path.parent)
    check_axes(study, str(path))
    axes = [
        Choice(axis.name, tuple(value.label for value in axis.values), axis=True)
        for axis in study.axes
    ]
    space = (*axes, *parameters_of(asked["search"]))
    if not space:
        raise ConfigError("search", "there is nothing to vary: no [search] and no [[axes]]")
    names = [parameter.name for parameter in space]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"search.{name}", "an axis has this name too; rename it")
    sampler = SAMPLERS.parse(asked["sampler"] or "grid", "sampler")
    if trials is not None:
        if "trials" not in type(sampler).model_fields:
            raise ConfigError("--trials", f"the {sampler.name} sampler has no number of trials")
        sampler = sampler.model_copy(update={"trials": trials})
    first = study.config.first_seed
    if "first_seed" not in table:
        first = study.base.get("seed", first)
    count = seeds or study.config.seeds
    return Sweep(study, space, sampler, tuple(range(first, first + count)), asked, tuple(settings))


@dataclass(frozen=True)
class Checked:
    """What was found out about a sweep before anything is run."""

    configs: tuple[RunConfig, ...]
    """Of points that are valid, with the first seed."""
    objective: Objective
    invalid: tuple[tuple[Point, ConfigError], ...]
    """Combinations that are not valid."""


def check_points(sweep: Sweep) -> Checked:
    """Try the configurations of a sweep's points: all that are known before, or some drawn at
    random.

    ``ConfigError`` if none is valid, or none with a certain value: then the value is wrong, not
    the combination.
    """
    points: list[Point] = []
    if sweep.sampler.foreseeable:
        sampler = sweep.sampler.build(sweep.space, "minimize")
        while (point := sampler.ask(len(points))) is not None:
            points.append(point)
    else:
        points = [drawn(sweep.space, 0, number) for number in range(_TRIED)]
    configs: list[RunConfig] = []
    invalid: list[tuple[Point, ConfigError]] = []
    good: set[tuple[str, str]] = set()
    for point in points:
        try:
            configs.append(sweep.config(point, sweep.seeds[0]))
        except ConfigError as problem:
            invalid.append((point, problem))
        else:
            good.update((name, inline(value)) for name, value in point.items())
    for point, error in invalid:
        if not good:
            raise error
        for parameter in sweep.space:
            value = point[parameter.name]
            if isinstance(parameter, Choice) and (parameter.name, inline(value)) not in good:
                raise ConfigError(
                    f"search.{parameter.name}", f"{shown(value)}: {error}", sweep.study.source
                )
    objectives = [sweep.objective(config) for config in configs]
    if len({objective.direction for objective in objectives}) > 1:
        raise ConfigError("objective", "the tasks' metrics differ in what is better; set direction")
    sweep.prune(objectives[0])
    return Checked(tuple(configs), objectives[0], tuple(invalid))
