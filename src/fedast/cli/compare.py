"""``fedast compare``: several configurations over several seeds, then a table and a figure."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import click
from rich.console import Console

from fedast.algorithms.options import ALGORITHMS
from fedast.cli.board import Board
from fedast.cli.interrupt import interruptible
from fedast.cli.loading import check_out, load_noted, prepare_data, print_note
from fedast.cli.tables import comparison_table, saturation_warnings
from fedast.config.load import load
from fedast.config.notes import Note, for_all, lines
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError, nearest
from fedast.records.files import write_atomically
from fedast.records.lock import locked
from fedast.records.run import RunResult, claim_folder
from fedast.report.compare import Comparison, compare
from fedast.run.batch import (
    BatchRun,
    Interrupted,
    Pulse,
    alone,
    default_jobs,
    found_again,
)
from fedast.run.build import check_inputs
from fedast.run.executors import EXECUTORS, Executor


def compare_configs(
    paths: Sequence[str],
    *,
    algorithms: Sequence[str],
    seeds: int,
    baseline: str | None,
    out: str | None,
    jobs: int | None,
    on: str = "local",
    settings: Sequence[str],
    device: str | None,
    trainer: str | None,
    precision: str | None,
    events: bool,
    track: Sequence[str] = (),
    overwrite: bool,
    offline: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    where = {"device": device, "trainer": trainer, "precision": precision}
    configs, notes = _labelled(paths, algorithms, settings, where, track)
    if baseline is None:
        baseline = list(configs)[-1]
    elif baseline not in configs:
        raise ConfigError("--baseline", f"no label {baseline!r}{nearest(baseline, configs)}")
    check_out(out, events)
    for config in configs.values():
        check_inputs(config)  # before any folder is made
    prepare_data(list(configs.values()), offline)
    folder = None if out is None else Path(out)
    jobs = jobs or default_jobs()
    executor = EXECUTORS.parse(on, "--on").build()
    with nullcontext() if folder is None else locked(folder):
        kept, left = _sorted_out(
            _runs(configs, seeds, folder, jobs), events=events, overwrite=overwrite
        )
        if not quiet:
            for note in notes:
                print_note(note)
        show = not (quiet or as_json)
        if show:
            _announce(configs, seeds, len(kept), len(left), jobs)
        made = _run_left(executor, left, jobs, events, show, resumable=folder is not None)
        results = _by_label(configs, kept, made)
        comparison = compare(results, baseline)
        written = _write_comparison(folder, comparison, results, next(iter(configs.values())))
    for label, found in results.items():
        for line in saturation_warnings(found, f"{label}: "):
            _warn(line)
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=2))
        return
    Console(highlight=False).print(comparison_table(comparison))
    if written:
        click.echo("Figure: " + ", ".join(map(str, written)))


def _runs(
    configs: Mapping[str, RunConfig], seeds: int, folder: Path | None, jobs: int
) -> list[BatchRun]:
    """A run per configuration and seed."""
    at_a_time = min(jobs, len(configs) * seeds)
    return [
        # A run that is found again ran beside others, so what is left must run in the same way.
        BatchRun(
            label,
            alone(config.model_copy(update={"seed": seed}), at_a_time),
            _run_folder(folder, label, seed),
        )
        for label, config in configs.items()
        for seed in range(config.seed, config.seed + seeds)
    ]


Kept = list[tuple[BatchRun, RunResult | None]]
"""All runs, with the results of those that the folder already has."""


def _sorted_out(
    runs: Sequence[BatchRun], *, events: bool, overwrite: bool
) -> tuple[Kept, list[BatchRun]]:
    """All runs with the results that are there already, and the runs that are left."""
    kept: Kept = [
        (run, None if overwrite else found_again(run, events=events, say=_warn)) for run in runs
    ]
    left = [run for run, result in kept if result is None]
    for run in left:
        if run.out is not None:
            with locked(run.out):  # a `fedast run`, or a worker whose comparison was killed
                claim_folder(run.out, overwrite=True)
    return kept, left


def _announce(
    configs: Mapping[str, RunConfig], seeds: int, runs: int, left: int, jobs: int
) -> None:
    from fedast.run.execute import memory_notes

    for label, config in configs.items():
        for note in memory_notes(config):
            _warn(f"{label}: {note}")
    Console(highlight=False).print(
        f"{len(configs)} configurations × {seeds} seeds = {runs} runs, "
        + (f"{runs - left} of them are there already, " if left < runs else "")
        + f"{jobs} at a time"
    )


def _run_left(
    executor: Executor,
    left: Sequence[BatchRun],
    jobs: int,
    events: bool,
    show: bool,
    *,
    resumable: bool,
) -> list[RunResult]:
    console = Console(highlight=False)
    with (
        interruptible() as stop,
        Board(console, left) if show and left else nullcontext() as board,
    ):
        try:
            return executor(
                left,
                jobs=jobs,
                events=events,
                overwrite=True,
                progress=_unseen if board is None else board.pulse,
                say=_warn,
                stop=stop,
            )
        except Interrupted:
            _warn(
                "interrupted; finished runs keep their records"
                + (", the same command goes on from here" if resumable else "")
            )
            sys.exit(130)


def _by_label(
    labels: Iterable[str], kept: Kept, made: Iterable[RunResult]
) -> dict[str, list[RunResult]]:
    by_label: dict[str, list[RunResult]] = {label: [] for label in labels}
    fresh = iter(made)
    for run, result in kept:
        by_label[run.label].append(next(fresh) if result is None else result)
    return by_label


def _unseen(pulse: Pulse) -> None:
    pass


def _warn(text: str) -> None:
    click.echo(text, err=True)


def _labelled(
    paths: Sequence[str],
    algorithms: Sequence[str],
    settings: Sequence[str],
    where: Mapping[str, str | None],
    track: Sequence[str],
) -> tuple[dict[str, RunConfig], list[str]]:
    """Every configuration with every algorithm under a label of its own, and notes about them.

    A key that one of a file's algorithms uses is not noted. A renamed key is noted once, although
    its file is read for each algorithm.
    """
    if "all" in algorithms:
        algorithms = tuple(ALGORITHMS.names())
    configs: dict[str, RunConfig] = {}
    renamed: list[str] = []
    notes: list[str] = []
    about = [setting for setting in settings if setting.startswith("algorithm.")]
    running = set(algorithms) or {load(Path(path), about).algorithm.name for path in paths}
    for path in paths:
        found: dict[str, list[Note]] = {}
        for algorithm in algorithms or (None,):
            config, remarks = load_noted(
                path,
                settings,
                algorithm=algorithm,
                beside=running,
                device=where["device"],
                trainer=where["trainer"],
                precision=where["precision"],
                track=track,
                note=renamed.append,
            )
            label = Path(path).stem if not algorithms else config.algorithm.name
            if algorithms and len(paths) > 1:
                label = f"{Path(path).stem}-{label}"
            if label in configs:
                raise ConfigError("", f"two configurations are called {label!r}; rename one file")
            configs[label], found[label] = config, remarks
        for label, remarks in for_all(found).items():
            notes += [f"{label}: {line}" for line in lines(remarks, len(configs[label].tasks))]
    tasks = {tuple(task.name for task in config.tasks) for config in configs.values()}
    if len(tasks) > 1:
        raise ConfigError(
            "tasks", "the configurations have different tasks; compare like with like"
        )
    return configs, [*dict.fromkeys(renamed), *notes]


def _run_folder(folder: Path | None, label: str, seed: int) -> Path | None:
    return None if folder is None else folder / label / f"seed-{seed}"


def _write_comparison(
    folder: Path | None,
    comparison: Comparison,
    runs: Mapping[str, Sequence[RunResult]],
    config: RunConfig,
) -> list[Path]:
    if folder is None:
        return []
    from fedast.report.figures import SHADED, learning_curves, save

    write_atomically(folder / "comparison.json", json.dumps(comparison.to_json(), indent=2) + "\n")
    targets = {task.name or task.use: task.target for task in config.tasks}
    seeds = len(next(iter(runs.values())))
    title = (
        f"{len(config.tasks)} models over {config.simulation.clients} clients, "
        f"mean{' and range' if len(runs) <= SHADED else ''} of {seeds} seeds"
    )
    return save(learning_curves(runs, comparison, targets, title), folder, "curves")
