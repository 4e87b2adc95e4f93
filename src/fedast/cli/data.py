"""``fedast data``: fetch datasets, list the cached ones, show what is in them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from fedast.cli.starting import over
from fedast.cli.tables import new_table
from fedast.parts.errors import ConfigError, nearest
from fedast.tasks.data import cache
from fedast.tasks.data.cache import DataError, Stored
from fedast.tasks.data.sources import DATASETS, fetch, load
from fedast.tasks.paper import ImageTask
from fedast.tasks.partitions import Dirichlet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STEPS = 4
"""Downloading, checking and reading, storing, done."""


def known(names: Sequence[str]) -> list[str]:
    for name in names:
        if name != "all" and name not in DATASETS:
            raise ConfigError("", f"unknown dataset {name!r}{nearest(name, [*DATASETS, 'all'])}")
    if "all" in names:
        return [name for name, dataset in DATASETS.items() if dataset.package is not None]
    return list(dict.fromkeys(names))


def fetch_all(names: Sequence[str], source: str | None, again: bool, quiet: bool) -> None:
    """Fetch each dataset; one that fails does not stop the others."""
    wanted = known(names)
    if source is not None and len(wanted) > 1:
        raise ConfigError("--source", "is for one dataset at a time")
    console = Console(highlight=False, soft_wrap=True)
    bars = console.is_terminal and not quiet
    failed = []
    columns = (
        SpinnerColumn(),
        BarColumn(24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not bars) as progress:
        for name in wanted:
            bar = progress.add_task(f"{name}: looking", total=_STEPS)

            def say(step: str, name: str = name, bar: TaskID = bar) -> None:
                progress.update(bar, description=f"{name}: {step}", advance=1)
                if not bars and not quiet:
                    click.echo(f"{name}: {step}", err=True)

            try:
                stored, fetched = fetch(name, source, again, say)
            except DataError as error:
                failed.append(str(error) if str(error).startswith(name) else f"{name}: {error}")
                continue
            finally:
                progress.remove_task(bar)
            state = "fetched and verified" if fetched else "already cached"
            console.print(f"{name}: {state} ({_size(stored.size)} in {stored.folder})")
            if fetched:
                _tell_notes(stored, console)
    if failed:
        raise DataError("; ".join(failed))


def _tell_notes(stored: Stored, console: Console) -> None:
    for key, value in stored.notes.items():
        shown = ", ".join(value) if isinstance(value, list) else f"{value:,}"
        console.print(f"    {key}: {shown}")


def show_list(as_json: bool) -> None:
    rows = []
    for name, dataset in DATASETS.items():
        try:
            stored = cache.find(name)
            state = "not cached"
            if stored is not None:
                state = "verified" if cache.verify(stored) else "CHECKSUM WRONG: fetch --again"
        except DataError:
            stored, state = None, "damaged: fetch --again"
        package = (
            dataset.package.label if dataset.package else f"--source FOLDER or hf:{dataset.hub}"
        )
        rows.append(
            {
                "name": name,
                "state": state,
                "size": 0 if stored is None else stored.size,
                "source": package if stored is None else stored.source,
            }
        )
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = new_table(f"Datasets in {cache.cache_folder()}", ("name", "state", "size", "source"))
    for row in rows:
        size = _size(int(str(row["size"]))) if row["size"] else "–"
        table.add_row(str(row["name"]), str(row["state"]), size, str(row["source"]))
    Console(highlight=False).print(table)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def show_one(name: str, options: ImageTask, clients: int, seed: int, out: str | None) -> None:
    from fedast.report import datasets as report
    from fedast.reproduce.figures.save import save

    if name == "all":
        raise ConfigError("", "name one dataset to show")
    (name,) = known([name])
    kind = Path(out or "x.png").suffix.lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError("--out", f"ends in {kind!r}; use .png, .svg or .pdf")
    stored = load(name, lambda step: click.echo(step, err=True))
    over()
    title = f"{DATASETS[name].title} ({stored.source})"
    if name == "shakespeare":
        figure = _text(stored, title)
    else:
        labels = np.array(stored.array("train_y"))
        parts = options.split(labels, clients, np.random.default_rng(seed))
        found = report.spread(labels, parts, int(labels.max()) + 1)
        how = options.partition.name
        if isinstance(options.partition, Dirichlet):
            how += f" with alpha {options.partition.alpha}"
        click.echo(
            f"{name}: {clients} clients, {how}: a client's most frequent class is "
            f"{100 * found.mean_largest_share:.0f} % of its data on average"
        )
        figure = report.image_figure(
            f"{title}; {clients} clients, {how}", found, stored.array("train_x"), labels
        )
    path = Path(out or f"{name}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = save(figure, path.parent, path.stem, kinds=(kind,))
    click.echo(f"Figure: {written[0]}")


def _text(stored: Stored, title: str) -> Figure:
    from fedast.report import datasets as report
    from fedast.tasks.data.shakespeare import ALPHABET, windows

    starts, codes = np.array(stored.array("starts")), stored.array("codes")
    names = [str(name) for name in stored.array("names")]
    sizes = np.array([len(windows(starts, role)[0]) for role in range(len(names))])
    role = int(sizes.argmax())
    excerpt = "".join(ALPHABET[code] for code in codes[starts[role] : starts[role] + 700])
    click.echo(
        f"shakespeare: {len(names)} roles, {len(codes):,} characters, {sizes.sum():,} windows"
    )
    _tell_notes(stored, Console(highlight=False, soft_wrap=True))
    text = f"{names[role]}\n\n" + textwrap.fill(excerpt, 52)
    return report.text_figure(title, sizes, names, text)
