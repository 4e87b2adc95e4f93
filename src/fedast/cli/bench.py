"""``fedast bench``: measure, then print tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean

import click
from rich.console import Console

from fedast.cli.loading import load_resolved, prepare_data
from fedast.cli.starting import over, say
from fedast.cli.tables import new_table
from fedast.config.schema import Compute
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.registry import make_importable
from fedast.run import bench
from fedast.run.build import build_tasks, check_inputs
from fedast.run.compute import resolve_compute
from fedast.training.options import TRAINERS
from fedast.training.processes import can_fork


def run_bench(
    path: str | None,
    *,
    trainers: Sequence[str],
    clients: int | None,
    seconds: float,
    updates: int | None,
    whole: bool,
    settings: Sequence[str],
    device: str | None,
    precision: str | None,
    as_json: bool,
) -> None:
    console = Console(highlight=False)
    config = None
    if path is None and (settings or whole or updates):
        raise click.UsageError("--set, --updates and --whole need a CONFIG")
    if whole and updates:
        raise click.UsageError("--whole takes no --updates")
    if path is None:
        compute = _compute(device, precision)
        tasks = bench.paper_shapes()
    else:
        config = load_resolved(path, settings, device=device, precision=precision)
        check_inputs(config)
        prepare_data([config], offline=False)
        compute = resolve_compute(config.compute)
        tasks = build_tasks(config)
    trainers = _trainers(trainers, compute)
    over()
    if not as_json:
        where = f"{compute.device}, {compute.precision}, {compute.workers} cores"
        console.print(f"Local training on {where}; the better of several tries, in one run")
    count = len(tasks) * len(trainers)
    seen = 0

    def measured(speed: bench.Speed) -> None:
        nonlocal seen
        seen += 1
        say(f"{speed.task}, {speed.trainer}: {_ms(speed.ms)} ms/update ({seen} of {count})")

    say(f"measuring {tasks[0].name} (0 of {count})")
    speeds = bench.measure_tasks(
        tasks, compute, trainers, together=clients or 48, seconds=seconds, seen=measured
    )
    say("measuring matrix products and copies")
    rates = bench.measure_rates(compute)
    floors = bench.floors(tasks, rates)
    shares = None
    if config is not None:
        limit = None if whole else (updates or 500)
        say("measuring a run")
        shares = bench.measure_run(config, limit)
    over()
    if as_json:
        table = {
            "device": compute.device,
            "precision": compute.precision,
            "speeds": [asdict(speed) for speed in speeds],
            "rates": asdict(rates),
            "floors": [asdict(floor) for floor in floors],
            "run": None if shares is None else asdict(shares),
        }
        click.echo(json.dumps(table, indent=2))
        return
    _print_speeds(console, speeds, floors, rates)
    if shares is not None:
        _print_shares(console, shares)


def _compute(device: str | None, precision: str | None) -> Compute:
    given = (("device", device), ("precision", precision))
    return resolve_compute(Compute.model_validate({k: v for k, v in given if v is not None}))


def _trainers(names: Sequence[str], compute: Compute) -> Sequence[str]:
    make_importable(())
    for name in names:
        if TRAINERS.find(name, "--trainer").forks and not can_fork():
            raise ConfigError("--trainer", f"{name} need a system that forks, without a GPU")
    if names:
        return names
    cuda = compute.device == "cuda" or not can_fork()
    return ("serial", "batched") if cuda else ("serial", "processes", "batched")


def run_models(
    *,
    only: Sequence[str],
    quick: bool,
    markdown: bool,
    trainers: Sequence[str],
    clients: int | None,
    seconds: float,
    device: str | None,
    precision: str | None,
    as_json: bool,
) -> None:
    from fedast.run import bench_models

    for name in only:
        if name not in bench_models.NAMES:
            hint = nearest(name, bench_models.NAMES)
            raise ConfigError("--only", f"there is no model {name!r}{hint}")
    compute = _compute(device, precision)
    names = [name for name in bench_models.NAMES if name in only or not only]
    found = bench_models.measure_models(
        bench_models.model_tasks(names, quick=quick),
        compute,
        _trainers(trainers, compute),
        together=clients or (48 if compute.device == "cuda" else 4),
        seconds=0.0 if quick else seconds,
        seen=lambda one: click.echo(f"{one.model}, {one.trainer}: {_ms(one.ms)} ms", err=True),
    )
    if as_json:
        about = {"device": compute.device, "precision": compute.precision, "quick": quick}
        click.echo(json.dumps(about | {"models": [asdict(one) for one in found]}, indent=2))
        return
    serial = {one.model: one.ms for one in found if one.trainer == "serial"}
    rows = [
        (
            one.model,
            one.trainer,
            str(one.clients),
            f"{one.parameters:,}",
            str(one.steps),
            _ms(one.ms),
            f"{serial[one.model] / one.ms:.2f}" if one.model in serial else "–",
            _ms(one.floor_ms),
            f"{one.gib:.2f}",
        )
        for one in found
    ]
    if markdown:
        lines = [_MODEL_COLUMNS, ("---", "---", *["---:"] * 7), *rows]
        click.echo("\n".join(f"| {' | '.join(line)} |" for line in lines))
    else:
        where = f"{compute.device}, {compute.precision}, {compute.workers} cores"
        table = new_table("", _MODEL_COLUMNS, f"{where}; the best of several tries, in one run")
        for row in rows:
            table.add_row(*row)
        Console(highlight=False).print(table)
    for one in found:
        if one.note:
            click.echo(f"{one.model}: clients one by one: {one.note}", err=markdown)


_MODEL_COLUMNS = (
    "model",
    "trainer",
    "together",
    "parameters",
    "steps",
    "ms/update",
    "× serial",
    "floor ms",
    "GiB",
)


def run_estimate(names: Sequence[str], *, as_json: bool) -> None:
    from fedast.reproduce.estimate import estimate

    compute = _compute(None, None)
    together = 48 if compute.device == "cuda" else 2
    found = estimate(names, compute, _trainers((), compute), together=together)
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    click.echo(
        f"On {found.device} ({found.precision}), {found.trainer} with {found.clients} clients: "
        f"{found.ms:,.1f} ms per update, {found.evaluation_ms:,.0f} ms per evaluation"
    )
    columns = ("tasks", "algorithm", "evaluations per task", "hours")
    table = new_table("", columns, f"one run of {found.updates:,} updates per task")
    for run in found.runs:
        hours = f"{run.hours:,.1f}"
        table.add_row(str(run.tasks), run.algorithm, f"{run.evaluations:,.0f}", hours)
    Console(highlight=False).print(table)


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.3f}"


def _print_speeds(
    console: Console,
    speeds: Sequence[bench.Speed],
    floors: Sequence[bench.Floor],
    rates: bench.Rates,
) -> None:
    table = new_table(
        "",
        ("task", "trainer", "together", "ms/update", "updates/s", "× serial", "floor ms"),
        f"floor: {rates.teraflops:.3g} TFLOP/s of matrix products, {rates.gigabytes:.0f} GB/s "
        "of copying, measured here",
    )
    serial = {speed.task: speed.ms for speed in speeds if speed.trainer == "serial"}
    floor = {one.task: one.ms for one in floors}
    for speed in speeds:
        gain = f"{serial[speed.task] / speed.ms:.1f}" if speed.task in serial else "–"
        table.add_row(
            speed.task,
            speed.trainer,
            str(speed.clients),
            _ms(speed.ms),
            f"{1e3 / speed.ms:,.0f}",
            gain,
            _ms(floor[speed.task]),
        )
    console.print(table)
    for speed in speeds:
        if speed.note and speed.trainer == "batched":
            console.print(f"{speed.task}: clients one by one: {speed.note}")


def _print_shares(console: Console, shares: bench.Shares) -> None:
    console.print(
        f"A run of {shares.updates} updates, to simulated time {shares.until:.1f}: "
        f"{shares.wall:.1f} s, "
        f"{shares.updates / shares.wall:,.0f} updates/s, the first after "
        f"{shares.first_update:.1f} s"
    )
    chosen = ", ".join(f"{task}: {kind}" for task, kind in shares.trainers.items())
    console.print(f"Trainers: {chosen}")
    table = new_table(
        "",
        ("where", "seconds", "share"),
        f"host {shares.host_gib:.1f} GiB"
        + ("" if shares.gpu_gib is None else f", GPU {shares.gpu_gib:.1f} GiB"),
    )
    for name, value in (
        ("training", shares.training),
        ("  of it drawing batches", shares.data),
        ("evaluation", shares.evaluation),
        ("aggregation", shares.aggregation),
        ("control and start-up", shares.control),
    ):
        table.add_row(name, f"{value:.2f}", f"{100 * value / shares.wall:.0f} %")
    console.print(table)
    for task, sizes in shares.sizes.items():
        console.print(
            f"{task}: {len(sizes)} batches of {mean(sizes):.1f} clients on average, "
            f"{max(sizes)} at most"
        )
