"""From the file and options of a command to a resolved configuration, its notes and its data."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import click

from fedast.config.load import load
from fedast.config.no_effect import notes_of
from fedast.config.notes import Note, lines
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError
from fedast.records.observers import OBSERVERS, ObserverOptions
from fedast.tasks.options import TASKS


def print_note(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def silent(text: str) -> None:
    pass


def load_resolved(
    path: str,
    settings: Sequence[str],
    *,
    device: str | None = None,
    precision: str | None = None,
    track: Sequence[str] = (),
    note: Callable[[str], None] = print_note,
) -> RunConfig:
    return load_noted(path, settings, device=device, precision=precision, track=track, note=note)[0]


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
    track: Sequence[str] = (),
    note: Callable[[str], None] = print_note,
) -> tuple[RunConfig, list[Note]]:
    """The resolved configuration, and notes about the configuration as it was given.

    ``track`` names observers beside the configuration's own. ``note`` gets the keys of earlier
    versions, when the file is read.
    """
    where = {"device": device, "trainer": trainer, "precision": precision}
    chosen = [f'compute.{key}="{value}"' for key, value in where.items() if value is not None]
    if device is not None or trainer is not None or any("compute.trainer=" in s for s in settings):
        # The trainers that a calibration chose were chosen for another device or trainer.
        settings = ["compute.trainers={}", *settings]
    settings = [*settings, *chosen]
    config = load(Path(path), settings, algorithm=algorithm, beside=beside, seed=seed, note=note)
    try:
        resolved = resolve(config, Path(path).parent)
        found = notes_of(config.model_copy(update={"path": resolved.path}))
    except ConfigError as error:
        raise error.within(path) from None
    given = {observer.name for observer in resolved.observers}
    more = [observer for observer in trackers(track) if observer.name not in given]
    return resolved.model_copy(update={"observers": (*resolved.observers, *more)}), found


def trackers(names: Sequence[str]) -> list[ObserverOptions]:
    """What ``--track`` names, ready to be used."""
    found = [OBSERVERS.parse(name, "--track") for name in dict.fromkeys(names)]
    for observer in found:
        observer.check()
    return found


def warn(found: Sequence[Note], config: RunConfig) -> None:
    """Print a line on stderr for each note."""
    for line in lines(found, len(config.tasks)):
        print_note(line)


def check_out(out: str | None, events: bool) -> None:
    if out == "":
        raise ConfigError("--out", "is empty; name a folder")
    if events and out is None:
        raise ConfigError("", "--events needs --out, the folder to write events.jsonl to")


def check_every(text: str | None) -> None:
    """Refuse what ``--checkpoint-every`` does not take, before anything runs."""
    if text is not None:
        from fedast.run.checkpointing import Every  # which loads torch

        Every.parse(text)


def prepare_data(configs: Sequence[RunConfig], offline: bool) -> None:
    """Fetch the data sets that are not cached yet, once, before anything runs."""
    from fedast.tasks.data.sources import load

    if offline:
        os.environ["FEDAST_OFFLINE"] = "1"  # worker processes see it too
    tasks = [task.use for config in configs for task in config.tasks]
    for use in dict.fromkeys(tasks):
        for name in TASKS.find(use, use).datasets:
            load(name, lambda step: click.echo(step, err=True))
