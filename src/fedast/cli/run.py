"""``fedast run``: load, run while showing it, print what came out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from fedast.cli.ends import NOT_REACHED, ending_lines, missed, wanted
from fedast.cli.interrupt import Stop, interruptible
from fedast.cli.live import LineView, LiveView
from fedast.cli.loading import (
    check_out,
    load_noted,
    load_resolved,
    prepare_data,
    print_note,
    silent,
    warn,
)
from fedast.cli.starting import importing, over, say
from fedast.cli.tables import result_table, saturation_warnings
from fedast.cli.ui import new_folder, page_for
from fedast.config.schema import RunConfig
from fedast.core.protocol import Algorithm, Observer, Observers
from fedast.parts.errors import ConfigError
from fedast.records.metrics import RunMetrics
from fedast.records.run import CONFIG
from fedast.run.gpu_start import start_driver, start_gpu

if TYPE_CHECKING:
    from fedast.run.simulate import Outcome, Watch


def run_config(
    path: str,
    *,
    out: str | None,
    settings: Sequence[str],
    seed: int | None,
    algorithm: str | None,
    device: str | None,
    trainer: str | None,
    precision: str | None,
    checkpoint_every: str | None,
    events: bool,
    track: Sequence[str],
    overwrite: bool,
    ui: bool,
    offline: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    config, found = load_noted(
        path,
        settings,
        algorithm=algorithm,
        seed=seed,
        device=device,
        trainer=trainer,
        precision=precision,
        track=track,
        note=silent if quiet else print_note,
    )
    tasks = ", ".join(task.name or task.use for task in config.tasks)
    say(f"{config.algorithm.name} with {tasks} over {config.simulation.clients} clients: preparing")
    if ui and out is None:
        out = new_folder()
    check_out(out, events)
    start_driver(config.compute.device)
    with importing():
        from fedast.run.checkpointing import Every  # which load torch
        from fedast.run.execute import data_notes, execute
    start_gpu(config.compute.device)

    every = None if checkpoint_every is None else Every.parse(checkpoint_every)
    if every is not None and out is None:
        raise ConfigError("", "--checkpoint-every needs --out, the folder to write them to")
    prepare_data([config], offline)
    if not quiet:
        warn(found, config)
        for note in data_notes(config):
            click.echo(note, err=True)

    def go(watch: Sequence[Watch], stop: Stop) -> Outcome:
        return execute(
            config,
            None if out is None else Path(out),
            events=events,
            overwrite=overwrite,
            watch=watch,
            stop=stop,
            every=every,
        )

    _show(config, go, out, ui=ui, quiet=quiet, as_json=as_json)


def resume_run(
    folder: str,
    *,
    checkpoint_every: str | None,
    ui: bool,
    offline: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    with importing():
        from fedast.run.checkpointing import Every
        from fedast.run.execute import resume

    every = None if checkpoint_every is None else Every.parse(checkpoint_every)
    if not (Path(folder) / CONFIG).is_file():
        raise ConfigError("--resume", f"{folder} holds no run ({CONFIG} is missing)")
    config = load_resolved(str(Path(folder) / CONFIG), (), note=silent)
    prepare_data([config], offline)

    def go(watch: Sequence[Watch], stop: Stop) -> Outcome:
        return resume(
            Path(folder),
            every=every,
            watch=watch,
            stop=stop,
            say=lambda text: click.echo(text, err=True),
        )

    _show(config, go, folder, ui=ui, quiet=quiet, as_json=as_json)


def _show(
    config: RunConfig,
    go: Callable[[Sequence[Watch], Stop], Outcome],
    out: str | None,
    *,
    ui: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Show a run while it goes, and print its result."""
    console = Console(highlight=False)
    title = f"{config.algorithm.name} · {config.simulation.clients} clients · seed {config.seed}"
    with page_for(out if ui else None) as page, interruptible() as stop:
        view = None if quiet or as_json else _view(console, title, config)
        with ExitStack() as stack:

            def begun(algorithm: Algorithm, run_metrics: RunMetrics) -> Observer:
                over()
                if view is None:
                    return Observers(())
                watching = view.watch(algorithm, run_metrics)
                if isinstance(view, LiveView):
                    stack.enter_context(view)
                return watching

            outcome = go((begun,), stop)
        over()
        result = outcome.result
        if as_json:
            click.echo(json.dumps(result.to_json(), indent=2))
        else:
            console.print(result_table(result, title, wanted=wanted(config)))
            for line in ending_lines(result, config):
                console.print(line, style="bold red", markup=False, soft_wrap=True)
            if out is not None:
                click.echo(f"Records: {out}")
        for line in saturation_warnings([result]):
            click.echo(line, err=True)
        if outcome.starved:
            click.echo("warning: no client will ever be available again; the run ends", err=True)
        elif stop.requested:
            sys.exit(130)
        page.stay()
    if outcome.starved or missed(result, config):
        sys.exit(NOT_REACHED)


def _view(console: Console, title: str, config: RunConfig) -> LiveView | LineView:
    if not console.is_terminal:
        return LineView(click.echo, title)
    limits = {
        task.name or task.use: _earliest(task.max_time, config.simulation.max_time)
        for task in config.tasks
    }
    return LiveView(console, title, limits)


def _earliest(*times: float | None) -> float | None:
    given = [time for time in times if time is not None]
    return min(given) if given else None
