"""The commands that run something: load, run while showing it, print what came out."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedast.cli.live import LineView, LiveView
from fedast.cli.tables import (
    against,
    comparison_table,
    new_table,
    result_table,
    saturation_warnings,
)
from fedast.config.errors import ConfigError
from fedast.config.load import load, nearest
from fedast.config.no_effect import Note, for_all, lines, notes_of
from fedast.config.resolve import resolve
from fedast.config.schema import ALGORITHMS, RunConfig
from fedast.records import toml
from fedast.records.files import write_atomically
from fedast.records.run import CONFIG, RunResult, claim_folder
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
from fedast.tasks.presets import PRESETS

if TYPE_CHECKING:
    from fedast.run.simulate import Outcome, Watch

DEMO_ALGORITHMS = ("fedast-d", "fedast-s", "fedast-nobuffer", "sync-st")


class Stop:
    """Set by the first Ctrl-C; a second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        return self.requested

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def interruptible() -> Iterator[Stop]:
    stop = Stop()
    before = signal.signal(signal.SIGINT, stop.handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def load_resolved(
    path: str,
    settings: Sequence[str],
    *,
    device: str | None = None,
    precision: str | None = None,
) -> RunConfig:
    return load_noted(path, settings, device=device, precision=precision)[0]


def load_noted(
    path: str,
    settings: Sequence[str],
    *,
    algorithm: str | None = None,
    beside: Collection[str] = (),
    seed: int | None = None,
    device: str | None = None,
    trainer: str | None = None,
    precision: str | None = None,
) -> tuple[RunConfig, list[Note]]:
    """A configuration, resolved, and what is to be said about it as it was given."""
    given = {"device": device, "trainer": trainer, "precision": precision}
    chosen = [f'compute.{key}="{value}"' for key, value in given.items() if value is not None]
    if device is not None or trainer is not None or any("compute.trainer=" in s for s in settings):
        settings = ["compute.trainers={}", *settings]  # what a calibration found for another way
    settings = [*settings, *chosen]
    config = load(Path(path), settings, algorithm=algorithm, beside=beside, seed=seed)
    try:
        resolved = resolve(config, Path(path).parent)
        found = notes_of(config.model_copy(update={"path": resolved.path}))
    except ConfigError as error:
        raise error.within(path) from None
    return resolved, found


def warn(found: Sequence[Note], config: RunConfig, label: str = "") -> None:
    """A line on stderr for each note."""
    for line in lines(found, len(config.tasks)):
        click.echo(f"warning: {label}{': ' if label else ''}{line}", err=True)


def _check_out(out: str | None, events: bool) -> None:
    if out == "":
        raise ConfigError("--out", "is empty; name a folder")
    if events and out is None:
        raise ConfigError("", "--events needs --out, the folder to write events.jsonl to")


def prepare_data(configs: Sequence[RunConfig], offline: bool) -> None:
    """Fetch what the tasks need and is not there yet, once, before anything runs."""
    from fedast.tasks.data.sources import load

    if offline:
        os.environ["FEDAST_OFFLINE"] = "1"  # worker processes see it too
    tasks = [task.use for config in configs for task in config.tasks]
    for use in dict.fromkeys(tasks):
        for name in PRESETS[use].datasets if use in PRESETS else ():
            load(name, lambda step: click.echo(step, err=True))


def check(path: str, settings: Sequence[str], resolved: bool) -> None:
    config, found = load_noted(path, settings)
    check_inputs(config)
    warn(found, config)
    if resolved:
        click.echo(toml.dumps(config.model_dump(mode="json", exclude={"algorithms"})), nl=False)
        return
    names = ", ".join(task.name or task.use for task in config.tasks)
    click.echo(
        f"{path}: valid: {config.algorithm.name}, {config.simulation.clients} clients, "
        f"{len(config.tasks)} tasks ({names})"
    )


# --- one run ----------------------------------------------------------------------------------


def run_one(
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
    overwrite: bool,
    offline: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    from fedast.run.checkpointing import Every
    from fedast.run.execute import execute, memory_notes

    config, found = load_noted(
        path,
        settings,
        algorithm=algorithm,
        seed=seed,
        device=device,
        trainer=trainer,
        precision=precision,
    )
    _check_out(out, events)
    every = None if checkpoint_every is None else Every.parse(checkpoint_every)
    if every is not None and out is None:
        raise ConfigError("", "--checkpoint-every needs --out, the folder to write them to")
    prepare_data([config], offline)
    if not quiet:
        warn(found, config)
        for note in memory_notes(config):
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

    _show(config, go, out, quiet=quiet, as_json=as_json)


def resume_one(
    folder: str, *, checkpoint_every: str | None, offline: bool, quiet: bool, as_json: bool
) -> None:
    from fedast.run.checkpointing import Every
    from fedast.run.execute import resume

    every = None if checkpoint_every is None else Every.parse(checkpoint_every)
    if not (Path(folder) / CONFIG).is_file():
        raise ConfigError("--resume", f"{folder} holds no run ({CONFIG} is missing)")
    config = load_resolved(str(Path(folder) / CONFIG), ())
    prepare_data([config], offline)

    def go(watch: Sequence[Watch], stop: Stop) -> Outcome:
        return resume(
            Path(folder),
            every=every,
            watch=watch,
            stop=stop,
            say=lambda text: click.echo(text, err=True),
        )

    _show(config, go, folder, quiet=quiet, as_json=as_json)


def _show(
    config: RunConfig,
    go: Callable[[Sequence[Watch], Stop], Outcome],
    out: str | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Watch a run go by and print what came out."""
    console = Console(highlight=False)
    title = f"{config.algorithm.name} · {config.simulation.clients} clients · seed {config.seed}"
    with interruptible() as stop:
        view: LiveView | LineView | None = None
        if not quiet and not as_json:
            limits = {
                task.name or task.use: _earliest(task.max_time, config.simulation.max_time)
                for task in config.tasks
            }
            terminal = console.is_terminal
            view = LiveView(console, title, limits) if terminal else LineView(click.echo, title)
        with view if isinstance(view, LiveView) else nullcontext():
            outcome = go(() if view is None else (view.watch,), stop)
        result = outcome.result
        if as_json:
            click.echo(json.dumps(result.to_json(), indent=2))
        else:
            console.print(result_table(result, title))
            if out is not None:
                click.echo(f"Records: {out}")
        for line in saturation_warnings([result]):
            click.echo(line, err=True)
        if outcome.starved:
            click.echo("warning: no client will ever be available again; the run ends", err=True)
        elif stop.requested:
            sys.exit(130)


def _earliest(*times: float | None) -> float | None:
    given = [time for time in times if time is not None]
    return min(given) if given else None


# --- several runs -----------------------------------------------------------------------------


def run_demo(
    *, out: str, seeds: int, jobs: int | None, overwrite: bool, quiet: bool, as_json: bool
) -> None:
    with as_file(files("fedast.run") / "demo.toml") as path:
        run_comparison(
            (str(path),),
            algorithms=DEMO_ALGORITHMS,
            seeds=seeds,
            baseline="sync-st",
            out=out,
            jobs=jobs,
            settings=(),
            device="cpu",
            trainer="serial",
            precision=None,
            events=False,
            overwrite=overwrite,
            offline=True,
            quiet=quiet,
            as_json=as_json,
        )


def run_comparison(
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
    _check_out(out, events)
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
        _Board(console, left) if show and left else nullcontext() as board,
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


class _Board:
    """The live board of a batch: a row per run in a terminal, a line per finished run elsewhere."""

    def __init__(self, console: Console, runs: Sequence[BatchRun]) -> None:
        self._console = console
        self._runs = runs
        self._pulses: dict[int, Pulse] = {}
        self._live = Live(console=console, refresh_per_second=6) if console.is_terminal else None
        self._announced: set[int] = set()

    def __enter__(self) -> _Board:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.__exit__(None, None, None)

    def pulse(self, pulse: Pulse) -> None:
        self._pulses[pulse.run] = pulse
        if self._live is not None:
            self._live.update(self._table())
        elif pulse.done == len(pulse.tasks) and pulse.run not in self._announced:
            self._announced.add(pulse.run)
            run = self._runs[pulse.run]
            self._console.print(
                f"{run.label} seed {run.config.seed}: done at t={pulse.time:.1f} "
                f"after {pulse.updates} updates"
            )

    def _table(self) -> Table:
        names = [task.name or task.use for task in self._runs[0].config.tasks]
        table = new_table("Runs", ("algorithm", "seed", "time", "updates", *names))
        for number, run in enumerate(self._runs):
            pulse = self._pulses.get(number)
            if pulse is None:
                table.add_row(run.label, str(run.config.seed), "waiting", style="dim")
                continue
            targets = {task.name: task.target for task in run.config.tasks}
            done = pulse.done == len(pulse.tasks)
            table.add_row(
                run.label,
                str(run.config.seed),
                f"{pulse.time:.1f}",
                str(pulse.updates),
                *(against(value, targets.get(name)) for name, value in pulse.tasks),
                style="green" if done else "",
            )
        return table
