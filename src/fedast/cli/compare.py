"""``fedast compare``: several configurations over several seeds, then a table and a figure."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from fedast.cli.board import Board
from fedast.cli.interrupt import interruptible
from fedast.cli.loading import check_out, load_noted, prepare_data, warn
from fedast.cli.tables import comparison_table, saturation_warnings
from fedast.config.errors import ConfigError
from fedast.config.load import load, nearest
from fedast.config.no_effect import Note, for_all
from fedast.config.schema import ALGORITHMS, RunConfig
from fedast.records.run import RunResult, claim_folder, write_atomically
from fedast.report.compare import Comparison, compare
from fedast.run.batch import (
    BatchRun,
    Interrupted,
    Pulse,
    alone,
    default_jobs,
    found_again,
    run_batch,
)
from fedast.run.build import check_inputs


def compare_configs(
    paths: Sequence[str],
    *,
    algorithms: Sequence[str],
    seeds: int,
    baseline: str | None,
    out: str | None,
    jobs: int | None,
    settings: Sequence[str],
    device: str | None,
    trainer: str | None,
    precision: str | None,
    events: bool,
    overwrite: bool,
    offline: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    where = {"device": device, "trainer": trainer, "precision": precision}
    configs, notes = _labelled(paths, algorithms, settings, where)
    if baseline is None:
        baseline = list(configs)[-1]
    elif baseline not in configs:
        raise ConfigError("--baseline", f"no label {baseline!r}{nearest(baseline, configs)}")
    check_out(out, events)
    folder = None if out is None else Path(out)
    runs = [
        BatchRun(label, config.model_copy(update={"seed": seed}), _run_folder(folder, label, seed))
        for label, config in configs.items()
        for seed in range(config.seed, config.seed + seeds)
    ]
    for config in configs.values():
        check_inputs(config)  # before any folder is made
    prepare_data(list(configs.values()), offline)
    jobs = jobs or default_jobs()
    # What is found again was run beside others; what is left is run in the same way.
    at_a_time = min(jobs, len(runs))
    runs = [replace(run, config=alone(run.config, at_a_time)) for run in runs]
    kept = [None if overwrite else found_again(run, events=events, say=_warn) for run in runs]
    left = [run for run, result in zip(runs, kept, strict=True) if result is None]
    for run in left:
        if run.out is not None:
            claim_folder(run.out, overwrite=True)
    console = Console(highlight=False)
    show = not (quiet or as_json)
    for label, remarks in notes.items() if not quiet else ():
        warn(remarks, configs[label], label)
    if show:
        from fedast.run.execute import memory_notes

        for label, config in configs.items():
            for note in memory_notes(config):
                click.echo(f"{label}: {note}", err=True)
        there = len(runs) - len(left)
        console.print(
            f"{len(configs)} configurations × {seeds} seeds = {len(runs)} runs, "
            + (f"{there} of them are there already, " if there else "")
            + f"{jobs} at a time"
        )
    with (
        interruptible() as stop,
        Board(console, left) if show and left else nullcontext() as board,
    ):
        try:
            made = run_batch(
                left,
                jobs=jobs,
                events=events,
                overwrite=True,
                progress=board.pulse if board is not None else _unseen,
                say=_warn,
                stop=stop,
            )
        except Interrupted:
            click.echo(
                "interrupted; finished runs keep their records"
                + (", the same command goes on from here" if folder is not None else ""),
                err=True,
            )
            sys.exit(130)
    by_label: dict[str, list[RunResult]] = {label: [] for label in configs}
    fresh = iter(made)
    for run, result in zip(runs, kept, strict=True):
        by_label[run.label].append(next(fresh) if result is None else result)
    comparison = compare(by_label, baseline)
    written = _write_comparison(folder, comparison, by_label, next(iter(configs.values())))
    for label, results in by_label.items():
        for line in saturation_warnings(results, f"{label}: "):
            click.echo(line, err=True)
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=2))
        return
    console.print(comparison_table(comparison))
    if written:
        click.echo("Figure: " + ", ".join(map(str, written)))


def _unseen(pulse: Pulse) -> None:
    pass


def _warn(text: str) -> None:
    click.echo(text, err=True)


def _labelled(
    paths: Sequence[str],
    algorithms: Sequence[str],
    settings: Sequence[str],
    where: Mapping[str, str | None],
) -> tuple[dict[str, RunConfig], dict[str, list[Note]]]:
    """Every configuration with every algorithm, under a label that tells it from the others.

    Beside them what is to be said about each. A key that is of use to one of a file's algorithms
    is of use, so it is not among that.
    """
    if "all" in algorithms:
        algorithms = tuple(ALGORITHMS)
    configs: dict[str, RunConfig] = {}
    notes: dict[str, list[Note]] = {}
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
            )
            label = Path(path).stem if not algorithms else config.algorithm.name
            if algorithms and len(paths) > 1:
                label = f"{Path(path).stem}-{label}"
            if label in configs:
                raise ConfigError("", f"two configurations are called {label!r}; rename one file")
            configs[label], found[label] = config, remarks
        notes |= for_all(found)
    tasks = {tuple(task.name for task in config.tasks) for config in configs.values()}
    if len(tasks) > 1:
        raise ConfigError(
            "tasks", "the configurations have different tasks; compare like with like"
        )
    return configs, notes


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
