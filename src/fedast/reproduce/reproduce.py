"""Carry out studies, run by run, and find again what has been run.

A results folder has ``STUDY/CELL/seed-N.toml``, the resolved configuration of a run, and
``seed-N.json``, what came out of it (``records.compact``). A run is recognised by its resolved
configuration, whatever study it was made for: studies share runs, and one that was interrupted
goes on where it stopped. Where and how a model is trained (``compute``) is kept with the run and
does not count, unless a study asks for a precision.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from fedast.algorithms.options import AsyncOptions
from fedast.config.identity import identity
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import Compute, RunConfig
from fedast.parts.errors import ConfigError, nearest
from fedast.records import toml
from fedast.records.compact import CompactRun, read, write
from fedast.records.run import RunResult, UnusableFolder, write_atomically
from fedast.reproduce.results import Axis, Chapter, Claim
from fedast.reproduce.study import Cell, Scale, Study, slug, studies
from fedast.run.batch import BatchRun, Pulse, run_batch
from fedast.run.build import GPU_PRECISION

_MORE_SEEDS = 20
"""A report uses more seeds than a study asks for, if there are any, up to so many."""
MANIFEST = "reproduction.json"
"""In a results folder: the scale and the settings that all its runs have in common."""


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    cell: Cell
    seed: int
    config: RunConfig
    identity: str

    @property
    def label(self) -> str:
        return f"{self.cell.study.name}: {', '.join(self.cell.key)}, seed {self.seed}"

    @property
    def place(self) -> str:
        return f"{self.cell.study.name}/{self.cell.slug}/seed-{self.seed}"


def jobs_of(
    chosen: Sequence[Study],
    scale: Scale,
    seeds: int | None = None,
    *,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[Job]:
    """All runs of the studies, each once; ``only`` those whose cells have all these labels."""
    found: dict[str, Job] = {}
    wanted = {slug(label) for label in only}
    for study in chosen:
        first = study.config.first_seed
        for seed in range(first, first + (seeds or study.config.seeds)):
            for cell in study.cells():
                if not wanted <= set(map(slug, cell.key)):
                    continue
                config = cell.config(seed, scale, settings)
                key = identity(config)
                found.setdefault(key, Job(cell, seed, config, key))
    return list(found.values())


@dataclass(frozen=True)
class Stored:
    place: str
    """Path relative to the results folder, without suffix."""
    run: CompactRun


def stored_runs(folder: Path) -> dict[str, Stored]:
    """Every run in a results folder, by identity: with its precision, and without.

    Of runs that differ in nothing else, the one without is that of a GPU's default precision.
    """
    found: dict[str, Stored] = {}
    for path in sorted(folder.glob("*/*/seed-*.json")):
        file = path.with_suffix(".toml")
        if not file.is_file():
            continue
        place = path.relative_to(folder).with_suffix("").as_posix()
        stored = Stored(place, read(path))
        config = resolve(load(file), file.parent)
        precision = stored.run.machine.get("precision", "auto")
        found[identity(_at(config, precision))] = stored
        anyhow = identity(_at(config, "auto"))
        if anyhow not in found or precision == GPU_PRECISION:
            found[anyhow] = stored
    return found


def _at(config: RunConfig, precision: str) -> RunConfig:
    compute = config.compute.model_copy(update={"precision": precision})
    return config.model_copy(update={"compute": compute})


@dataclass(frozen=True)
class Manifest:
    """What all runs of a results folder have in common."""

    scale: Scale
    settings: tuple[str, ...]


def claim_results(folder: Path, mine: Manifest) -> None:
    """Make a results folder, or see that the one that is there is of the same kind."""
    path = folder / MANIFEST
    try:
        if path.exists():
            theirs = manifest(folder)
            if theirs != mine:
                raise UnusableFolder(
                    f"{folder}: holds runs of scale {theirs.scale} with settings "
                    f"{' '.join(theirs.settings) or 'as they are'}; choose another with --out"
                )
            return
        folder.mkdir(parents=True, exist_ok=True)
        table = {"scale": mine.scale, "settings": list(mine.settings)}
        write_atomically(path, json.dumps(table) + "\n")
    except OSError as error:
        raise UnusableFolder(f"{folder}: cannot be written ({error.strerror})") from error


def manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(table["scale"], tuple(table["settings"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnusableFolder(f"{folder}: holds no results of fedast reproduce") from error


def machine(compute: Compute, at_a_time: int) -> dict[str, str]:
    """What a run was carried out on; ``at_a_time`` says how many of them shared it."""
    import torch

    if compute.device == "cuda":
        device = torch.cuda.get_device_name()
    else:
        device = f"CPU, {os.cpu_count()} cores"
    return {
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "precision": compute.precision,
        "fedast": version("fedast") if _installed() else "from source",
        "at_a_time": str(at_a_time),
    }


def _installed() -> bool:
    from importlib.metadata import PackageNotFoundError

    try:
        version("fedast")
    except PackageNotFoundError:
        return False
    return True


def carry_out(
    jobs: Sequence[Job],
    folder: Path,
    scale: Scale,
    *,
    at_a_time: int,
    progress: Callable[[Pulse], None] = lambda pulse: None,
    done: Callable[[Job, RunResult], None] = lambda job, result: None,
    failed: Callable[[Job, Exception], None],
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run what is given and keep each result as soon as it is there."""

    def keep(number: int, result: RunResult, compute: Compute) -> None:
        job = jobs[number]
        if result.interrupted:
            if not stop():  # it was not us: no client would ever be available again, say
                failed(job, RuntimeError("it ended before its tasks did"))
            return
        path = folder / f"{_free_place(folder, job)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        config = job.config.model_copy(update={"compute": compute})
        table = config.model_dump(mode="json", exclude={"algorithms"})
        write_atomically(path.with_suffix(".toml"), toml.dumps(table))
        on = machine(compute, min(at_a_time, len(jobs)))
        write(path, compacted(job, result, scale, on))
        done(job, result)

    run_batch(
        [BatchRun(job.label, job.config, None) for job in jobs],
        jobs=at_a_time,
        progress=progress,
        done=keep,
        failed=lambda number, error: failed(jobs[number], error),
        say=say,
        stop=stop,
    )


def _free_place(folder: Path, job: Job) -> str:
    """The run's place, or one beside it if another run has that."""
    file = folder / f"{job.place}.toml"
    if not file.is_file():
        return job.place
    there = resolve(load(file), file.parent)
    if identity(_at(there, job.config.compute.precision)) != job.identity:
        head, _, tail = job.place.rpartition("/")
        return f"{head}-{job.identity[:8]}/{tail}"
    return job.place


def compacted(job: Job, result: RunResult, scale: Scale, on: Mapping[str, str]) -> CompactRun:
    asynchronous = isinstance(job.config.algorithm, AsyncOptions)
    return CompactRun.of(
        result,
        scale=scale,
        machine=on,
        requests={
            task.name or task.use: task.requests or 0
            for task in (job.config.tasks if asynchronous else ())
        },
        final_at=job.cell.final_at(scale),
    )


def chapters(
    chosen: Sequence[Study], folder: Path, scale: Scale, settings: Sequence[str] = ()
) -> Iterator[Chapter]:
    """What a results folder has to say about each study."""
    stored = stored_runs(folder)
    for study in chosen:
        yield _chapter(study, stored, scale, settings)


def studies_with_runs(folder: Path, scale: Scale, settings: Sequence[str]) -> list[Study]:
    """Those of the paper, and of the others those of which something has been run."""
    stored = stored_runs(folder)
    return [
        study
        for study in studies().values()
        if (scale == "full" and not study.config.optional)
        or any(job.identity in stored for job in jobs_of([study], scale, settings=settings))
    ]


def _chapter(
    study: Study, stored: Mapping[str, Stored], scale: Scale, settings: Sequence[str]
) -> Chapter:
    runs: dict[tuple[str, ...], dict[int, CompactRun]] = {}
    places, targets = {}, {}
    stood_in: dict[str, str] = {}
    first, seeds = study.config.first_seed, study.config.seeds
    wanted: set[str] = set()
    for cell in study.cells():
        config = cell.config(first, scale, settings)
        if scale == "quick":
            stood_in |= cell.stand_ins()
        targets[cell.key] = {task.name or task.use: task.target for task in config.tasks}
        places[cell.key] = f"{study.name}/{cell.slug}"
        found = {}
        for seed in range(first, first + max(seeds, _MORE_SEEDS)):
            key = identity(config.model_copy(update={"seed": seed}))
            run = stored.get(key)
            if seed < first + seeds:
                wanted.add(key)
            if run is not None:
                found[seed] = run.run
                places[cell.key] = run.place.rpartition("/")[0]
        runs[cell.key] = found
    return Chapter(
        name=study.name,
        title=study.config.title,
        where=study.config.where,
        says=study.config.says,
        axes=tuple(
            Axis(
                axis.name,
                axis.role,
                tuple(value.label for value in axis.values),
                {value.label: value.chosen for value in axis.values if value.chosen},
            )
            for axis in study.axes
        ),
        runs=runs,
        places=places,
        targets=targets,
        claims=tuple(Claim(**entry.model_dump()) for entry in study.config.reported),
        per_run=study.config.per_run,
        baseline=study.config.baseline,
        seeds=study.config.seeds,
        figures=study.config.figures,
        comparable=scale == "full",
        stamp=_stamp(stood_in) if scale == "quick" else "",
        count=(len(wanted & stored.keys()), len(wanted)),
        source=study.source,
        settings=tuple(settings),
    )


def _stamp(stood_in: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{small} in place of {use}" for use, small in stood_in.items())
    return f"Quick scale, not the paper's data: {pairs or 'few clients, short times'}"


def check_only(chosen: Sequence[Study], only: Sequence[str]) -> None:
    """Say so if a label is none, or if no cell has them all."""
    labels = {value.label for study in chosen for axis in study.axes for value in axis.values}
    known = {slug(label): label for label in labels}
    for label in only:
        if slug(label) not in known:
            close = nearest(label, sorted(labels))
            raise ConfigError("--only", f"no run has the label {label!r}{close}")
    if not any(
        set(map(slug, only)) <= set(map(slug, cell.key))
        for study in chosen
        for cell in study.cells()
    ):
        raise ConfigError("--only", f"no run has all of these labels: {', '.join(only)}")
