"""``fedast reproduce`` runs the paper's experiments, ``fedast report`` makes a page of them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding

from fedast.cli.interrupt import interruptible
from fedast.cli.loading import prepare_data
from fedast.cli.report_runs import holds_runs, report_runs
from fedast.cli.starting import over
from fedast.config.load import check_running
from fedast.parts.errors import ConfigError
from fedast.records.files import write_atomically
from fedast.records.lock import locked
from fedast.records.run import RunResult
from fedast.reproduce.collect import collect, studies_with_runs
from fedast.reproduce.jobs import Job, check_only, jobs_of, run_jobs
from fedast.reproduce.load import find_studies, studies
from fedast.reproduce.results import Columns, StudyResults
from fedast.reproduce.store import Manifest, prepare_results, read_manifest, stored_runs
from fedast.reproduce.study import Scale, Study
from fedast.run.batch import Interrupted
from fedast.run.compute import pick_device
from fedast.run.executors import EXECUTORS, Executor


def list_studies(as_json: bool) -> None:
    entries = [
        {
            "name": study.name,
            "title": study.config.title,
            "where": study.config.where,
            "runs": len(jobs_of([study], "full")),
            "in_all": not study.config.optional,
        }
        for study in studies().values()
    ]
    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    console = Console(highlight=False)
    for entry in entries:
        apart = "" if entry["in_all"] else "; not part of all"
        console.print(f"[bold]{entry['name']}[/bold]  {entry['title']}")
        text = f"{entry['where']}; {entry['runs']} runs{apart}"
        console.print(Padding(text, (0, 0, 0, 4)))
    console.print("Experiments share some of their runs.")


def reproduce(
    names: Sequence[str],
    *,
    seeds: int | None,
    scale: Scale,
    jobs: int | None,
    on: str | Mapping[str, Any],
    out: str | None,
    only: Sequence[str],
    settings: Sequence[str],
    again: bool,
    dry_run: bool,
    offline: bool,
    quiet: bool,
) -> None:
    folder = Path(out or ("results" if scale == "full" else "results-quick"))
    where = EXECUTORS.parse(on, "--on")
    executor = where.build()
    if any(setting.partition("=")[0].strip() == "seed" for setting in settings):
        raise ConfigError("--set", "the study sets the seeds; use --seeds for their number")
    chosen = find_studies(names)
    if scale == "full" and "all" in names:
        chosen = _with_data(chosen, names)
    check_only(chosen, only)
    wanted = jobs_of(chosen, scale, seeds, settings=settings, only=only)
    check_running(settings, {job.config.algorithm.name for job in wanted})
    have = {} if again else stored_runs(folder)
    missing = [job for job in wanted if job.identity not in have]
    console = Console(highlight=False, soft_wrap=True)
    over()
    if not quiet:
        console.print(
            f"{len(wanted)} runs, {len(wanted) - len(missing)} of them are in {folder}: "
            f"{len(missing)} to go"
        )
    if dry_run:
        for job in missing:
            click.echo(job.label)
        return
    if missing:
        with locked(folder):
            prepare_results(folder, Manifest(scale, tuple(settings)))
            prepare_data([job.config for job in missing], offline)
            alone = where.name == "local" and pick_device("auto") == "cuda"
            at_a_time = jobs or (1 if alone else where.jobs())
            _run_jobs(missing, folder, scale, at_a_time, executor, console, quiet)
    named = " ".join(study.source for study in chosen if study.source.endswith(".toml"))
    click.echo(f"Results: {folder}. Now: fedast report {folder} {named}".rstrip() + "\n", nl=False)


def _with_data(chosen: Sequence[Study], names: Sequence[str]) -> list[Study]:
    """Those of ``all`` whose data can be downloaded, or is there."""
    from fedast.tasks.data.cache import find
    from fedast.tasks.data.sources import DATASETS
    from fedast.tasks.options import TASKS

    kept = []
    for study in chosen:
        uses = {
            task.use for variant in study.variants() for task in variant.config(0, "full").tasks
        }
        needed = {name for use in uses for name in TASKS.find(use, use).datasets}
        lacking = [name for name in needed if DATASETS[name].package is None and find(name) is None]
        if lacking and study.source not in names:
            click.echo(
                f"skipping {study.name}: it needs {', '.join(lacking)}, which you must provide "
                f"(fedast data fetch {lacking[0]} --source FOLDER)",
                err=True,
            )
        else:
            kept.append(study)
    return kept


def _run_jobs(
    missing: Sequence[Job], folder: Path, scale: Scale, at_a_time: int, executor: Executor,
    console: Console, quiet: bool,
) -> None:  # fmt: skip
    began, count = time.monotonic(), 0
    failures: list[str] = []

    def failed(job: Job, error: Exception) -> None:
        failures.append(job.label)
        click.echo(f"failed: {job.label}: {error}", err=True)

    def done(job: Job, result: RunResult) -> None:
        nonlocal count
        count += 1
        if quiet:
            return
        left = (time.monotonic() - began) / count * (len(missing) - count)
        reached = [task.time_to_target for task in result.tasks.values()]
        known = [time for time in reached if time is not None]
        console.print(
            f"[{count}/{len(missing)}] {job.label}: {len(known)} of {len(reached)} targets"
            + (f", the last at {max(known):.1f}" if known else "")
            + f", {result.wall_seconds:.1f} s; about {_span(left)} to go",
            markup=False,
        )

    with interruptible() as stop:
        try:
            run_jobs(
                missing,
                folder,
                scale,
                at_a_time=at_a_time,
                executor=executor,
                done=done,
                failed=failed,
                say=lambda text: click.echo(text, err=True),
                stop=stop,
            )
        except Interrupted:
            click.echo(
                f"interrupted; {count} runs are stored, the same command continues from here",
                err=True,
            )
            sys.exit(130)
    if failures:
        click.echo(
            f"{len(failures)} of {len(missing)} runs failed; the others are stored", err=True
        )
        sys.exit(1)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


# --- the report -----------------------------------------------------------------------------------


def report(
    folder: str,
    names: Sequence[str],
    *,
    update: Sequence[str],
    page: bool,
    columns: Columns,
    as_json: bool,
) -> None:
    from fedast.parts.registry import make_importable
    from fedast.reproduce.figures.save import draw_figures, save_figures
    from fedast.reproduce.gains import gains_table
    from fedast.reproduce.page import write_page
    from fedast.reproduce.rows import rows_of
    from fedast.reproduce.tables import between_markers, markdown_table, summary

    place = Path(folder)
    if holds_runs(place):
        if names or update:
            problem = "belongs to results of fedast reproduce; leave it out"
            raise ConfigError("--update" if update else names[0], problem)
        report_runs(place, page=page, columns=columns, as_json=as_json)
        return
    kind = read_manifest(place)
    wanted = find_studies(names) if names else studies_with_runs(place, kind.scale, kind.settings)
    # A study's own figures are found beside its file.
    make_importable([str(Path(s.source).parent) for s in wanted if s.source.endswith(".toml")])
    chosen = [
        replace(results, columns=columns)
        for results in collect(wanted, place, kind.scale, kind.settings)
    ]
    over()
    if as_json:
        table = [
            {"experiment": results.name, **asdict(row)}
            for results in chosen
            for row in rows_of(results)
        ]
        click.echo(json.dumps(table, indent=2))
        return
    for path in map(Path, update):
        text = path.read_text(encoding="utf-8")
        back = os.path.relpath(place, path.parent)
        if "<!-- gains -->" in text:
            write_atomically(path, between_markers(text, "gains", gains_table(chosen)))
            click.echo(f"Updated: {path}")
            continue
        short = "<!-- results-short -->" in text
        table_text = markdown_table(chosen, short=short, folder=Path(back).as_posix())
        try:
            text = between_markers(text, "results-short" if short else "results", table_text)
        except (KeyError, ValueError):
            raise ConfigError(
                "--update", f"{path} has no <!-- results --> and <!-- /results --> in it"
            ) from None
        write_atomically(path, text)
        click.echo(f"Updated: {path}")
    if page:
        drawn = {
            results.name: save_figures(draw_figures(results), place / "figures", results.name)
            for results in chosen
        }
        write_page(
            place / "report.html", chosen, drawn, scale=kind.scale, settings=kind.settings,
            folder=place.as_posix(),
        )  # fmt: skip
    _print_rows(chosen)
    click.echo(summary(chosen))
    if page:
        click.echo(f"Page: {place / 'report.html'}; figures: {place / 'figures'}")


def _print_rows(chosen: Sequence[StudyResults]) -> None:
    from fedast.cli.tables import new_table
    from fedast.reproduce.numbers import numbers_of
    from fedast.reproduce.rows import rows_of
    from fedast.reproduce.tables import verdict_text

    console = Console(highlight=False)
    for results in chosen:
        there, wanted = results.count
        console.print(f"\n[bold]{results.title}[/bold]  ({there} of {wanted} runs)")
        if not results.claims:
            numbers = numbers_of(results)
            table = new_table("", numbers.columns)
            for cells in numbers.rows:
                table.add_row(*cells)
            console.print(table)
        for row in rows_of(results):
            paper = "the paper claims it" if row.paper == "claim" else f"paper {row.paper}"
            line = f"{row.what}: {row.ours}; {paper}; {verdict_text(row, results)}"
            console.print(Padding(line, (0, 0, 0, 2)), markup=False)
    console.print()
