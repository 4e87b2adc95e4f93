"""``fedast compare``: several configurations over several seeds, then a table and a figure."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedast.algorithms.options import ALGORITHMS
from fedast.analysis.runs import Run
from fedast.cli.board import Board
from fedast.cli.comparison import WANTED, Wanted, read_wanted, write_wanted
from fedast.cli.ends import divergences
from fedast.cli.interrupt import interruptible
from fedast.cli.loading import check_every, check_out, load_noted, prepare_data, print_note
from fedast.cli.starting import over
from fedast.cli.tables import comparison_tables, saturation_warnings
from fedast.cli.ui import new_folder, page_for
from fedast.config.load import load
from fedast.config.notes import Note, for_all, lines
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError, nearest
from fedast.records.files import write_atomically
from fedast.records.lock import locked
from fedast.records.run import CONFIG, RunResult
from fedast.report.compare import Comparison, compare
from fedast.reproduce.results import Columns
from fedast.run.batch import BatchRun, Interrupted, Pulse, alone
from fedast.run.build import check_inputs
from fedast.run.continuing import found_again, made_ready
from fedast.run.executors import EXECUTORS, Executor


def compare_configs(
    paths: Sequence[str],
    *,
    algorithms: Sequence[str],
    seeds: int,
    baseline: str | None,
    out: str | None,
    jobs: int | None,
    on: str | Mapping[str, Any] = "local",
    resume: bool = False,
    checkpoint_every: str | None = None,
    settings: Sequence[str],
    device: str | None,
    trainer: str | None,
    precision: str | None,
    events: bool,
    track: Sequence[str] = (),
    overwrite: bool,
    ui: bool = False,
    offline: bool,
    quiet: bool,
    as_json: bool,
    columns: Columns = 2,
) -> None:
    where = {"device": device, "trainer": trainer, "precision": precision}
    configs, notes = _labelled(paths, algorithms, settings, where, track)
    if baseline is None:
        baseline = list(configs)[-1]
    elif baseline not in configs:
        raise ConfigError("--baseline", f"no label {baseline!r}{nearest(baseline, configs)}")
    if ui and out is None:
        out = new_folder()
    check_out(out, events)
    if checkpoint_every is not None and out is None:
        raise ConfigError("", "--checkpoint-every needs --out, the folder to write them to")
    for config in configs.values():
        check_inputs(config)  # before any folder is made
    if resume:
        assert out is not None
        _check_begun(Path(out))
    _carry_out(
        Wanted(configs, seeds, baseline, events, checkpoint_every),
        None if out is None else Path(out),
        jobs=jobs, on=on, resume=resume, overwrite=overwrite, notes=() if quiet else notes,
        offline=offline, quiet=quiet, as_json=as_json, ui=ui, columns=columns,
    )  # fmt: skip


def resume_comparison(
    *,
    out: str,
    jobs: int | None,
    on: str | Mapping[str, Any],
    checkpoint_every: str | None,
    offline: bool,
    quiet: bool,
    as_json: bool,
    ui: bool,
    columns: Columns,
) -> None:
    """Go on with the comparison in a folder, as it was asked for."""
    folder = Path(out)
    _check_begun(folder)
    wanted = read_wanted(folder)
    if checkpoint_every is not None:
        wanted = replace(wanted, every=checkpoint_every)
    _carry_out(
        wanted, folder, jobs=jobs, on=on, resume=True, offline=offline, quiet=quiet,
        as_json=as_json, ui=ui, columns=columns,
    )  # fmt: skip


def _check_begun(folder: Path) -> None:
    if not any(folder.glob(f"*/seed-*/{CONFIG}")) and not (folder / WANTED).is_file():
        problem = f"{folder} holds no comparison; leave --resume out to begin one"
        raise ConfigError("--resume", problem)


def _carry_out(
    wanted: Wanted,
    folder: Path | None,
    *,
    jobs: int | None,
    on: str | Mapping[str, Any],
    resume: bool,
    overwrite: bool = False,
    notes: Sequence[str] = (),
    offline: bool,
    quiet: bool,
    as_json: bool,
    ui: bool,
    columns: Columns,
) -> None:
    configs = wanted.configs
    check_every(wanted.every)
    where = EXECUTORS.parse(on, "--on")
    executor = where.build()
    prepare_data(list(configs.values()), offline)
    jobs = jobs or where.jobs()
    with page_for(str(folder) if ui else None) as page:
        with nullcontext() if folder is None else locked(folder):
            kept, left = _sorted_out(
                _runs(wanted, folder, jobs),
                events=wanted.events,
                overwrite=overwrite,
                resume=resume,
            )
            if folder is not None:
                write_wanted(folder, wanted)
            for note in notes:
                print_note(note)
            show = not (quiet or as_json)
            over()
            if show:
                _announce(configs, wanted.seeds, len(kept), len(left), jobs)
            made = _run_left(
                executor, left, jobs, wanted.events, show, resumable=folder is not None
            )
            results = _by_label(configs, kept, made)
            comparison = compare(results, wanted.baseline)
            first = next(iter(configs.values()))
            written = _write_comparison(folder, comparison, results, first, columns)
        for label, found in results.items():
            for line in (*saturation_warnings(found, f"{label}: "), *divergences(found, label)):
                _warn(line)
        if as_json:
            click.echo(json.dumps(comparison.to_json(), indent=2))
        else:
            for table in comparison_tables(comparison):
                Console(highlight=False).print(table)
            if written:
                click.echo("Figure: " + ", ".join(map(str, written)))
        page.stay()


def _runs(wanted: Wanted, folder: Path | None, jobs: int) -> list[BatchRun]:
    """A run per configuration and seed."""
    at_a_time = min(jobs, len(wanted.configs) * wanted.seeds)
    return [
        # A run that is found again ran beside others, so what is left must run in the same way.
        BatchRun(
            label,
            alone(config.model_copy(update={"seed": seed}), at_a_time),
            _run_folder(folder, label, seed),
            wanted.every,
        )
        for label, config in wanted.configs.items()
        for seed in range(config.seed, config.seed + wanted.seeds)
    ]


Kept = list[tuple[BatchRun, RunResult | None]]
"""All runs, with the results of those that the folder already has."""


def _sorted_out(
    runs: Sequence[BatchRun], *, events: bool, overwrite: bool, resume: bool
) -> tuple[Kept, list[BatchRun]]:
    """All runs with the results that are there already, and the runs that are left."""

    def found(run: BatchRun) -> RunResult | None:
        if overwrite:
            return None
        return found_again(run, events=events, any_version=resume, say=_warn)

    kept: Kept = [(run, found(run)) for run in runs]
    left = [made_ready(run, events=events, resume=resume) for run, result in kept if result is None]
    going_on = sum(run.resume for run in left)
    if going_on:
        _warn(f"{going_on} of the interrupted runs go on from their checkpoints")
    return kept, left


def _announce(
    configs: Mapping[str, RunConfig], seeds: int, runs: int, left: int, jobs: int
) -> None:
    from fedast.run.execute import data_notes

    for label, config in configs.items():
        for note in data_notes(config):
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
    columns: Columns,
) -> list[Path]:
    if folder is None:
        return []
    from fedast.plot import curves
    from fedast.reproduce.figures.curves import SHADED
    from fedast.reproduce.figures.save import save

    write_atomically(folder / "comparison.json", json.dumps(comparison.to_json(), indent=2) + "\n")
    seeds = len(next(iter(runs.values())))
    title = (
        f"{len(config.tasks)} models over {config.simulation.clients} clients, "
        f"mean{' and range' if len(runs) <= SHADED else ''} of {seeds} seeds"
    )
    made = [
        Run.of(f"{label}/seed-{result.seed}", folder / label / f"seed-{result.seed}", result)
        for label, results in runs.items()
        for result in results
    ]
    figure = curves(made, series=_series, columns=columns, title=title)
    return save(figure, folder, "curves", ("png", "svg"))


def _series(run: Run) -> str:
    """A label that is an algorithm's name, as text writes it; any other as it is."""
    from fedast.plot.study import algorithm_title

    label = run.name.rpartition("/")[0]
    return algorithm_title(run) if label == run.algorithm else label
