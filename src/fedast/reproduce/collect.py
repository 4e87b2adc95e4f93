"""Collect what a results folder has of each study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedast.config.identity import identity
from fedast.records.compact import CompactRun
from fedast.reproduce.jobs import jobs_of
from fedast.reproduce.load import studies
from fedast.reproduce.results import Axis, StudyResults
from fedast.reproduce.store import StoredRun, stored_runs
from fedast.reproduce.study import Scale, Study

_MORE_SEEDS = 20
"""More seeds than a study asks for are used if there are any, up to this many."""


def collect(
    chosen: Sequence[Study], folder: Path, scale: Scale, settings: Sequence[str] = ()
) -> Iterator[StudyResults]:
    stored = stored_runs(folder)
    for study in chosen:
        yield _collect(study, stored, scale, settings)


def studies_with_runs(folder: Path, scale: Scale, settings: Sequence[str]) -> list[Study]:
    """The studies of ``all`` (at full scale), and every other that has a run in the folder."""
    stored = stored_runs(folder)
    return [
        study
        for study in studies().values()
        if (scale == "full" and not study.config.optional)
        or any(job.identity in stored for job in jobs_of([study], scale, settings=settings))
    ]


def _collect(
    study: Study, stored: Mapping[str, StoredRun], scale: Scale, settings: Sequence[str]
) -> StudyResults:
    runs: dict[tuple[str, ...], dict[int, CompactRun]] = {}
    folders, targets, algorithms = {}, {}, {}
    substitutes: dict[str, str] = {}
    first, seeds = study.config.first_seed, study.config.seeds
    wanted: set[str] = set()
    for variant in study.variants():
        config = variant.config(first, scale, settings)
        if scale == "quick":
            substitutes |= variant.substitutes()
        targets[variant.key] = {task.name or task.use: task.target for task in config.tasks}
        algorithms[variant.key] = config.algorithm.name
        folders[variant.key] = f"{study.name}/{variant.slug}"
        found = {}
        for seed in range(first, first + max(seeds, _MORE_SEEDS)):
            key = identity(config.model_copy(update={"seed": seed}))
            run = stored.get(key)
            if seed < first + seeds:
                wanted.add(key)
            if run is not None:
                found[seed] = run.run
                folders[variant.key] = run.path.rpartition("/")[0]
        runs[variant.key] = found
    return StudyResults(
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
            if axis.role is not None  # which check has seen to
        ),
        runs=runs,
        folders=folders,
        targets=targets,
        claims=study.config.claims,
        per_run=study.config.per_run,
        criterion=study.config.criterion,
        baseline=study.config.baseline,
        seeds=study.config.seeds,
        figures=study.config.figures,
        comparable=scale == "full",
        disclaimer=_disclaimer(substitutes) if scale == "quick" else "",
        count=(len(wanted & stored.keys()), len(wanted)),
        source=study.source,
        settings=tuple(settings),
        algorithms=algorithms,
    )


def _disclaimer(substitutes: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{small} in place of {use}" for use, small in substitutes.items())
    return f"Quick scale, not the paper's data: {pairs or 'few clients, short times'}"
