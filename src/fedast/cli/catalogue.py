"""``fedast list``: what a configuration can name, from the classes that define it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape

from fedast.aggregation.settings import Calibration
from fedast.config.kinds import KINDS as CONFIGURED
from fedast.parts.errors import ConfigError, nearest
from fedast.parts.options import Options, Section, meanings
from fedast.reproduce.figures.registry import FIGURES
from fedast.run.executors import EXECUTORS
from fedast.sweeps.samplers import SAMPLERS
from fedast.tasks.options import TaskOptions

KINDS = {
    **CONFIGURED,
    **{registry.kind: registry for registry in (EXECUTORS, SAMPLERS, FIGURES)},
}


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
    source: str = "fedast"
    """The package it comes from."""


def entries(kind: str) -> list[Entry]:
    """Everything of a kind; what other packages have installed is there too."""
    kind = kind.replace("-", "_")
    if kind == "server":  # what version 0.1 called all that happens to a round's updates
        side = (("server_optimizer", "server_optimizers"), ("aggregator", "aggregators"))
        found = [
            replace(entry, name=f"{key}.{entry.name}")
            for key, several in side
            for entry in _parts(several)
        ]
        return [*found, _section_entry("calibration", Calibration)]
    if kind not in KINDS:
        raise ConfigError("list", f"there is no kind {kind!r}{nearest(kind, KINDS)}")
    return list(_parts(kind))


def _parts(kind: str) -> Iterator[Entry]:
    for part in KINDS[kind].listed():
        if part.options is None:
            yield Entry(part.name, f"cannot be loaded: {part.problem}", (), part.source)
        elif issubclass(part.options, TaskOptions):
            yield _task_entry(part.name, part.options, part.source)
        else:
            yield _section_entry(part.name, part.options, part.source)


def _task_entry(name: str, kind: type[TaskOptions], source: str) -> Entry:
    found, usual = _section_entry(name, kind, source), kind.defaults
    if usual is None:
        return found
    what = found.summary.removesuffix(".")
    levels = _levels(kind.targets_by_level(usual))
    goal = f"target {usual.metric.name} {levels}" if levels else f"measured by {usual.metric.name}"
    return replace(found, summary=f"{what}; {goal}")


def _levels(targets: Mapping[str, float]) -> str:
    return ", ".join(f"{value} ({level})" for level, value in targets.items())


def _section_entry(name: str, section: type[BaseModel], source: str = "fedast") -> Entry:
    meaning = meanings(section)
    options = tuple(
        Option(key, _default(field), _with_choices(meaning[key], field.annotation))
        for key, field in section.model_fields.items()
    )
    return Entry(name, inspect.getdoc(section) or "", options, source)


def _default(field: FieldInfo) -> Any:
    """A default as a file would have it; a part by its name, a table by what it uses."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Options):
        return default.name
    if isinstance(default, Section):
        table = default.model_dump(mode="json")
        return table.get("use", table)
    return default


def _with_choices(note: str, annotation: Any) -> str:
    """Add the values that an option takes, unless its explanation names them all."""
    words = [word for word in _words(annotation) if word not in note]
    return f"{note} Values: {', '.join(_words(annotation))}." if words else note


def _words(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _words(part)]


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
        if entry.source != "fedast":
            continue  # the page is of fedast's own
        lines += ["", f"## {entry.name}", "", entry.summary]
        module = KINDS["algorithms"].builtin[entry.name].__module__
        if module not in described:
            described.add(module)
            text = inspect.getdoc(sys.modules[module]) or ""
            lines += ["", *text.splitlines()[2:]]
        lines += _option_table(entry)
    lines += [
        "",
        "## A task's optimizers and its server side",
        "",
        'With any algorithm, under a `[[tasks]]`: `server_optimizer = "momentum"`, or with options',
        '`server_optimizer = { name = "momentum", beta = 0.5 }`; so too `client_optimizer` and',
        "`aggregator`. And",
        '`calibration = "auto"`, or `calibration = { use = "auto", precision = "half" }`.',
    ]
    for title, module, kind in (
        ("Client optimizers", "tasks.client_optimizers", "client_optimizers"),
        ("Server optimizers", "aggregation.server_optimizers", "server_optimizers"),
        ("Aggregators", "aggregation.aggregators", "aggregators"),
        ("Cached calibration", "aggregation.calibration", None),
        ("Allocation rules", "algorithms.allocation", "allocations"),
        ("Client selection", "algorithms.selection", "selections"),
        ("Weights by staleness", "algorithms.staleness", "staleness"),
    ):
        text = inspect.getdoc(import_module(f"fedast.{module}")) or ""
        lines += ["", f"## {title}", "", *text.splitlines()]
        found = [_section_entry("calibration", Calibration)] if kind is None else entries(kind)
        for entry in found:
            lines += ["", f"### {entry.name}", "", entry.summary]
            lines += _option_table(entry) if entry.options else []
    return "\n".join(lines) + "\n"


def _option_table(entry: Entry) -> list[str]:
    lines = ["", "| option | default | meaning |", "|---|---|---|"]
    for option in entry.options:
        default = "–" if option.default is None else option.default
        lines.append(f"| `{option.name}` | {default} | {' '.join(option.help.split())} |")
    return lines


def show(kind: str | None, as_json: bool, as_markdown: bool = False) -> None:
    if kind is None:
        for name in KINDS:
            click.echo(name)
        return
    if as_markdown:
        if kind != "algorithms":
            raise click.UsageError("--markdown is for algorithms")
        click.echo(reference(), nl=False)
        return
    found = entries(kind)
    if as_json:
        table = {
            entry.name: {
                "summary": entry.summary,
                "source": entry.source,
                "options": {o.name: {"default": o.default, "help": o.help} for o in entry.options},
            }
            for entry in found
        }
        click.echo(json.dumps(table, indent=2))
        return
    console = Console(highlight=False)
    for entry in found:
        source = "" if entry.source == "fedast" else f"  [dim]({escape(entry.source)})[/]"
        console.print(
            f"[bold]{escape(entry.name)}[/]  {escape(entry.summary)}{source}", soft_wrap=True
        )
        for option in entry.options:
            default = "–" if option.default is None else option.default
            console.print(
                f"    {option.name} = {escape(str(default))}  [dim]{escape(option.help)}[/]",
                soft_wrap=True,
            )
