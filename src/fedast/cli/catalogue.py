"""``fedast list``: what a configuration can name, from the classes that define it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel
from rich.console import Console

from fedast.aggregation.aggregators import AGGREGATORS
from fedast.aggregation.server_optimizers import SERVER_OPTIMIZERS
from fedast.aggregation.settings import Calibration
from fedast.algorithms.options import ALGORITHMS
from fedast.sim.availability import AVAILABILITY
from fedast.sim.delays import DELAYS
from fedast.tasks.metrics import METRICS
from fedast.tasks.options import TASKS, TaskDefaults, TaskOptions
from fedast.tasks.partitions import PARTITIONS


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    default: Any
    help: str


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    summary: str
    options: tuple[Option, ...]


def entries(what: str) -> list[Entry]:
    sections: Mapping[str, Mapping[str, type[BaseModel]]] = {
        "algorithms": ALGORITHMS.builtin,
        "delays": DELAYS.builtin,
        "availability": AVAILABILITY.builtin,
        "partitions": PARTITIONS.builtin,
        "metrics": METRICS.builtin,
        "server": {
            **{f"server_optimizer.{n}": kind for n, kind in SERVER_OPTIMIZERS.builtin.items()},
            **{f"aggregator.{n}": kind for n, kind in AGGREGATORS.builtin.items()},
            "calibration": Calibration,
        },
    }
    if what in sections:
        return [_section_entry(name, section) for name, section in sections[what].items()]
    tasks = [_task_entry(name, kind) for name, kind in TASKS.builtin.items()]
    plugins = TASKS.installed().items()
    return tasks + [Entry(name, f"plug-in: {entry.value}", ()) for name, entry in plugins]


def _task_entry(name: str, kind: type[TaskOptions]) -> Entry:
    found, usual = _section_entry(name, kind), kind.defaults or TaskDefaults()
    what = found.summary.removesuffix(".")
    summary = f"{what}; target {usual.metric.name} {_levels(usual.targets)}"
    return Entry(name, summary, found.options)


def _levels(targets: Mapping[str, float]) -> str:
    return ", ".join(f"{value} ({level})" for level, value in targets.items())


def _section_entry(name: str, section: type[BaseModel]) -> Entry:
    options = tuple(
        Option(
            key,
            "required" if field.is_required() else _plain(field.default),
            _with_choices(" ".join((field.description or "").split()), field.annotation),
        )
        for key, field in section.model_fields.items()
        if key not in ("name", "model") and not (key == "rule" and field.description is None)
    )
    return Entry(name, inspect.getdoc(section) or "", options)


def _with_choices(note: str, annotation: Any) -> str:
    """Add the values that an option takes, unless its explanation names them all."""
    words = [word for word in _words(annotation) if word not in note]
    return f"{note} Values: {', '.join(_words(annotation))}." if words else note


def _words(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _words(part)]


def _plain(default: Any) -> Any:
    """A default as a configuration file would have it."""
    return default.model_dump() if isinstance(default, BaseModel) else default


_RULES = {
    "fedast-d": "fedast",
    "fedast-s": "fedast",
    "fedast-nobuffer": "fedast",
    "sync-st": "sync_st",
    "sync-bayes-st": "sync_bayes_st",
    "sync-ucb-st": "sync_ucb_st",
    "sequential-fedavg": "sequential_fedavg",
    "fedbuff": "fedbuff",
    "centralized": "centralized",
}
"""The module whose docstring has an algorithm's reference and rule."""


def reference() -> str:
    """The reference page of all algorithms (docs/algorithms.md)."""
    lines = [
        "# The algorithms",
        "",
        "Made by `fedast list algorithms --markdown`; do not edit. Every option goes under",
        "`[algorithm]` in a configuration, or under `[algorithms.NAME]` for comparisons.",
    ]
    described: set[str] = set()
    for entry in entries("algorithms"):
        lines += ["", f"## {entry.name}", "", entry.summary]
        module = _RULES[entry.name]
        if module not in described:
            described.add(module)
            text = inspect.getdoc(import_module(f"fedast.algorithms.{module}")) or ""
            lines += ["", *text.splitlines()[2:]]
        lines += _option_table(entry)
    lines += [
        "",
        "# The server side of a task",
        "",
        'With any algorithm, under a `[[tasks]]`: `server_step = "momentum"`, or with options',
        '`server_step = { rule = "momentum", beta = 0.5 }`; so too `combining` and `calibration`.',
    ]
    for module, key in (
        ("server_optimizers", "server_step"),
        ("aggregators", "combining"),
        ("calibration", "calibration"),
    ):
        text = inspect.getdoc(import_module(f"fedast.aggregation.{module}")) or ""
        lines += ["", *text.splitlines()]
        for entry in entries("server"):
            if entry.name.startswith(key):
                lines += ["", f"## {entry.name}", "", entry.summary]
                lines += _option_table(entry) if entry.options else []
    for module, title in (("allocation", "Allocation"), ("selection", "Client selection")):
        text = inspect.getdoc(import_module(f"fedast.algorithms.{module}")) or ""
        lines += ["", f"# {title}", "", *text.splitlines()]
    return "\n".join(lines) + "\n"


def _option_table(entry: Entry) -> list[str]:
    lines = ["", "| option | default | meaning |", "|---|---|---|"]
    for option in entry.options:
        default = "–" if option.default is None else option.default
        lines.append(f"| `{option.name}` | {default} | {' '.join(option.help.split())} |")
    return lines


def show(what: str, as_json: bool, as_markdown: bool = False) -> None:
    if as_markdown:
        if what != "algorithms":
            raise click.UsageError("--markdown is for algorithms")
        click.echo(reference(), nl=False)
        return
    found = entries(what)
    if as_json:
        table = {
            entry.name: {
                "summary": entry.summary,
                "options": {o.name: {"default": o.default, "help": o.help} for o in entry.options},
            }
            for entry in found
        }
        click.echo(json.dumps(table, indent=2))
        return
    console = Console(highlight=False)
    for entry in found:
        console.print(f"[bold]{entry.name}[/]  {entry.summary}", soft_wrap=True)
        for option in entry.options:
            default = "–" if option.default is None else option.default
            console.print(f"    {option.name} = {default}  [dim]{option.help}[/]", soft_wrap=True)
