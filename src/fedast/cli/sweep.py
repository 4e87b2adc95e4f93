"""``fedast sweep``: load, show what there is to do, carry it out, print the best."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedast.cli.interrupt import interruptible
from fedast.cli.loading import check_every, check_out, prepare_data, trackers
from fedast.cli.starting import over
from fedast.cli.sweep_board import SweepBoard, point_text, trials_table
from fedast.cli.ui import page_for
from fedast.parts.errors import ConfigError
from fedast.records.run import CONFIG
from fedast.records.sweeps import SWEEP, Trial, read_sweep, read_trials
from fedast.run.batch import Interrupted
from fedast.run.build import check_inputs
from fedast.run.executors import EXECUTORS
from fedast.sweeps.conduct import Unwatched
from fedast.sweeps.run import SweepOutcome, check_same, run_sweep
from fedast.sweeps.sweep import Checked, Sweep, check_points, load_sweep

_SHOWN = 10
"""So many of the best trials are in the last table."""


def sweep_file(
    file: str,
    *,
    out: str | None,
    trials: int | None,
    seeds: int | None,
    jobs: int | None,
    on: str | Mapping[str, Any],
    checkpoint_every: str | None,
    resume: bool,
    dry_run: bool,
    settings: Sequence[str],
    device: str | None,
    trainer: str | None,
    precision: str | None,
    events: bool,
    track: Sequence[str],
    overwrite: bool,
    ui: bool,
    offline: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    if resume and overwrite:
        raise click.UsageError("--resume goes on with a sweep, --overwrite starts over; choose one")
    where = {"device": device, "trainer": trainer, "precision": precision}
    computing = [f'compute.{key}="{value}"' for key, value in where.items() if value is not None]
    trackers(track)  # before anything is run
    wanted = load_sweep(
        file, settings=(*settings, *computing), trials=trials, seeds=seeds, track=track
    )
    check_every(checkpoint_every)
    where_to = EXECUTORS.parse(on, "--on")
    executor = where_to.build()
    out = f"sweeps/{wanted.study.name}" if out is None else out
    check_out(out, events=False)
    folder = Path(out)
    if resume and not (folder / SWEEP).is_file():
        raise ConfigError("--resume", f"{folder} holds no sweep ({SWEEP} is missing)")
    checked = check_points(wanted)
    for config in checked.configs[:1]:
        check_inputs(config)
    there: dict[int, Trial] = {}
    if (folder / SWEEP).is_file() and not overwrite:
        check_same(read_sweep(folder), wanted.definition(checked.objective), folder)
        there = read_trials(folder)
    jobs = jobs or (1 if dry_run else where_to.jobs())
    show = not (quiet or as_json)
    over()
    if show or dry_run:
        _announce(wanted, checked, there, folder, jobs)
    if dry_run:
        _list_runs(wanted, there)
        return
    prepare_data(list(checked.configs), offline)
    console = Console(highlight=False, soft_wrap=True)
    board = SweepBoard(console, checked.objective, wanted, there) if show else None
    with page_for(out if ui else None) as page:
        with interruptible() as stop, nullcontext() if board is None else board:
            try:
                outcome = run_sweep(
                    wanted, checked, folder, jobs=jobs, executor=executor, events=events,
                    every=checkpoint_every, overwrite=overwrite, watcher=board or Unwatched(),
                    say=_warn, stop=stop,
                )  # fmt: skip
            except Interrupted:
                _warn("interrupted; finished runs are kept, the same command goes on from here")
                sys.exit(130)
        status = _conclude(outcome, wanted, as_json)
        page.stay()
    sys.exit(status)


def _conclude(outcome: SweepOutcome, wanted: Sweep, as_json: bool) -> int:
    """Print what came of it; the exit status."""
    failed = [trial for trial in outcome.trials if trial.state == "failed"]
    if as_json:
        click.echo(json.dumps(outcome.to_json(), indent=2))
    else:
        console = Console(highlight=False)
        best = outcome.ranked[:_SHOWN]
        if best:
            console.print(trials_table(best, outcome.objective, wanted.space, "The best trials"))
            first = best[0]
            click.echo(f"Best: trial {first.number}: {point_text(first.parameters)}")
            click.echo(f"Run it again: fedast run {outcome.folder / first.runs[0] / CONFIG}")
        elif not failed:
            what = outcome.objective.label
            click.echo(f"No trial has a {what}: a target was missed in each (see {outcome.folder})")
        click.echo(f"Records: {outcome.folder}")
    if failed:
        _warn(
            f"{len(failed)} of {len(outcome.trials)} trials failed; "
            "the same command runs them again"
        )
    return 1 if failed else 0


def _announce(
    wanted: Sweep, checked: Checked, there: dict[int, Trial], folder: Path, jobs: int
) -> None:
    ended = sum(trial.ended for trial in there.values())
    seeds = len(wanted.seeds)
    prune = wanted.prune(checked.objective).rule
    click.echo(
        f"{wanted.trials} trials ({wanted.sampler.name})"
        + (f" × {seeds} seeds" if seeds > 1 else "")
        + (f", {ended} of them are in {folder}" if ended else "")
        + f", {jobs} runs at a time; {checked.objective.direction} {checked.objective.label}"
        + ("" if prune == "off" else f", pruning: {prune}")
    )
    if checked.invalid:
        point, error = checked.invalid[0]
        _warn(
            f"warning: {len(checked.invalid)} of the combinations are not valid and are left out; "
            f"the first: {point_text(point)}: {error}"
        )


def _list_runs(wanted: Sweep, there: dict[int, Trial]) -> None:
    if not wanted.sampler.foreseeable:
        for trial in there.values():
            click.echo(f"trial {trial.number}: {point_text(trial.parameters)} ({trial.state})")
        left = wanted.trials - len(there)
        click.echo(f"{left} trials are chosen as results come in, from")
        for parameter in wanted.space:
            table = parameter.to_json()
            values = table.get("choices") or f"{table['low']} to {table['high']}"
            click.echo(f"  {parameter.name}: {values}")
        return
    sampler = wanted.sampler.build(wanted.space, "minimize")
    number = 0
    while (point := sampler.ask(number)) is not None:
        state = f" ({there[number].state})" if number in there else ""
        for seed in wanted.seeds:
            named = f", seed {seed}" if len(wanted.seeds) > 1 else ""
            click.echo(f"trial {number}{named}: {point_text(point)}{state}")
        number += 1


def _warn(text: str) -> None:
    click.echo(text, err=True)
