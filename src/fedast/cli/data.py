"""``fedast data``: fetch datasets and base models, list the cached ones, show what is in them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import numpy.typing as npt
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
from fedast.tasks.data.bases import BASES, BaseModel, base_folder, fetch_base
from fedast.tasks.data.cache import DataError, Stored
from fedast.tasks.data.messages import MIN_MESSAGES
from fedast.tasks.data.sources import DATASETS, DatasetSource, fetch, load
from fedast.tasks.data.texts import messages, reviews
from fedast.tasks.paper import ImageTask
from fedast.tasks.partitions import Dirichlet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STEPS = 4
"""Downloading, checking and reading, storing, done."""


def known(names: Sequence[str]) -> list[str]:
    for name in names:
        if name != "all" and name not in DATASETS and name not in BASES:
            there = [*DATASETS, *BASES, "all"]
            raise ConfigError("", f"unknown dataset or base model {name!r}{nearest(name, there)}")
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
                get = fetch_base if name in BASES else fetch
                stored, fetched = get(name, source, again, say)
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
    there: list[DatasetSource | BaseModel] = [*DATASETS.values(), *BASES.values()]
    for source in there:
        try:
            stored = cache.find(source.name)
            state = "not cached"
            if stored is not None:
                state = "verified" if cache.verify(stored) else "CHECKSUM WRONG: fetch --again"
        except DataError:
            stored, state = None, "damaged: fetch --again"
        package = source.package.label if source.package else f"--source FOLDER or hf:{source.hub}"
        rows.append(
            {
                "name": source.name,
                "kind": "base model" if isinstance(source, BaseModel) else "dataset",
                "state": state,
                "size": 0 if stored is None else stored.size,
                "source": package if stored is None else stored.source,
                "licence": source.licence,
            }
        )
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    columns = ("name", "state", "size", "source", "licence")
    table = new_table(f"Datasets and base models in {cache.cache_folder()}", columns)
    for column in table.columns[3:]:
        column.no_wrap, column.justify = False, "left"
    for row in rows:
        size = _size(int(str(row["size"]))) if row["size"] else "–"
        shown = {**row, "size": size}
        table.add_row(*(str(shown[column]) for column in columns))
    Console(highlight=False).print(table)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def show_one(name: str, options: ImageTask, clients: int, seed: int, out: str | None) -> None:
    from fedast.report import datasets as report
    from fedast.reproduce.figures.save import save

    if name == "all":
        raise ConfigError("", "name one dataset to show")
    (name,) = known([name])
    if name in BASES:
        _tell_base(BASES[name])
        return
    kind = Path(out or "x.png").suffix.lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError("--out", f"ends in {kind!r}; use .png, .svg or .pdf")
    stored = load(name, lambda step: click.echo(step, err=True))
    over()
    title = f"{DATASETS[name].title} ({stored.source})"
    if name == "shakespeare":
        figure = _roles(stored, title)
    elif name == "chitchat":
        figure = _messages(stored, title)
    else:
        labels = _labels(stored)
        parts = options.split(labels, clients, np.random.default_rng(seed))
        found = report.spread(labels, parts, int(labels.max()) + 1)
        how = options.partition.name
        if isinstance(options.partition, Dirichlet):
            how += f" with alpha {options.partition.alpha}"
        click.echo(
            f"{name}: {clients} clients, {how}: a client's most frequent class is "
            f"{100 * found.mean_largest_share:.0f} % of its data on average"
        )
        title = f"{title}; {clients} clients, {how}"
        if name == "imdb":
            _tell_notes(stored, Console(highlight=False, soft_wrap=True))
            figure = report.review_figure(title, found, _examples())
        else:
            figure = report.image_figure(title, found, stored.array("train_x"), labels)
    path = Path(out or f"{name}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = save(figure, path.parent, path.stem, kinds=(kind,))
    click.echo(f"Figure: {written[0]}")


def _tell_base(base: BaseModel) -> None:
    folder = base_folder(base.name, lambda step: click.echo(step, err=True))
    stored = cache.find(base.name)
    assert stored is not None
    click.echo(f"{base.title} ({stored.source}; licence: {base.licence})")
    click.echo(f"    folder: {folder}")
    _tell_notes(stored, Console(highlight=False, soft_wrap=True))


def _labels(stored: Stored) -> npt.NDArray[np.int64]:
    """Of the training samples."""
    if stored.name != "imdb":
        return stored.array("train_y")
    labels = reviews().train.labels
    assert labels is not None
    return labels


def _examples() -> str:
    """A review of each kind."""
    train = reviews().train
    assert train.labels is not None
    shown = []
    for label, kind in enumerate(("negative", "positive")):
        text = train.texts[int(np.flatnonzero(train.labels == label)[0])]
        shown += [f"{kind} ({label}):", textwrap.fill(textwrap.shorten(text, 330), 52), ""]
    return "\n".join(shown)


def _messages(stored: Stored, title: str) -> Figure:
    from fedast.report import datasets as report

    found = messages()
    assert found.train.people is not None
    sizes = np.bincount(found.train.people, minlength=len(found.people))
    click.echo(
        f"chitchat: {len(found.people)} senders have at least {MIN_MESSAGES} messages: "
        f"{len(found.train):,} to train on and {len(found.test):,} to test on"
    )
    _tell_notes(stored, Console(highlight=False, soft_wrap=True))
    largest = int(sizes.argmax())
    names = [name[:8] for name in found.people]
    first = int(np.searchsorted(found.train.people, largest))
    said = "\n".join(
        textwrap.fill(message, 52, subsequent_indent="  ")
        for message in found.train.texts[first : first + 14]
    )
    return report.text_figure(
        title, sizes, names, f"{names[largest]}\n\n{said}", "senders", "messages"
    )


def _roles(stored: Stored, title: str) -> Figure:
    from fedast.report import datasets as report
    from fedast.tasks.data.shakespeare import ALPHABET, windows

    starts, codes = stored.array("starts"), stored.array("codes")
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
