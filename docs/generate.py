"""What the site takes from the program itself: keys, parts, output of commands, figures of a run.

``conf.py`` calls ``quick`` before each build; ``make docs`` runs this file first, which also makes
what takes a few seconds. A file is written only if it has changed, so that Sphinx reads no more
than it must.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import figures
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedast.cli.catalogue import KINDS, Option, entries
from fedast.config.schema import (
    Compute,
    FederationConfig,
    RunConfig,
    Simulation,
    SpeedGroups,
    TaskConfig,
    TrainingOverrides,
)
from fedast.parts.options import Options, meanings
from fedast.parts.registry import Part

ROOT = Path(__file__).parents[1]

TABLES: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("The file", "", RunConfig),
    ("Simulation", "simulation", Simulation),
    ("Speeds", "simulation.speeds", SpeedGroups),
    ("Tasks", "tasks", TaskConfig),
    ("Settings for synchronous algorithms only", "tasks.sync", TrainingOverrides),
    ("Compute", "compute", Compute),
    ("Federation", "federation", FederationConfig),
)
ELSEWHERE = {"algorithms", "allocations", "selections", "staleness", "client_optimizers",
             "server_optimizers", "aggregators"}  # fmt: skip
"""Kinds of parts that are on the page of algorithms."""
TITLES = {"availability": "Availability models", "delays": "Delay models"}


SESSIONS = {
    "first-model": "python first_model.py",
    "first-model-run": "fedast run first-model.toml --out runs/first",
    "first-algorithm-run": "fedast run first-algorithm.toml --out runs/half-life",
    "first-algorithm-compare": "fedast compare first-algorithm.toml "
    "--algorithm half_life:half_life --algorithm fedast-s --seeds 3 --out runs/both",
    "results-compare": "fedast compare quickstart.toml --algorithm fedast-d --algorithm sync-st "
    "--seeds 3 --events --out runs/quickstart",
    "results-python": "python read_results.py",
    "migrate-fedavg": "python fedavg.py",
    "migrate-several": "python several.py",
}
"""Commands whose output the pages show, in the order of the pages."""


def quick(out: Path) -> None:
    out.mkdir(exist_ok=True)
    write(out / "keys.md", "\n".join(keys()))
    write(out / "parts.md", "\n".join(parts()))
    for name in ("analysis.ipynb", "quickstart.toml"):
        write(out / name, (ROOT / "examples" / name).read_text(encoding="utf-8"))
    shutil.rmtree(out / "runs", ignore_errors=True)  # the notebook makes them afresh


def everything(out: Path) -> None:
    quick(out)
    for name, text in sessions():
        write(out / f"{name}.txt", text)
    figures.everything(out / "figures")


def sessions() -> Iterator[tuple[str, str]]:
    """What each command prints, in a folder with the files that the pages show."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "COLUMNS": "96",
        "NO_COLOR": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        for place in ("start", "migrate"):
            for file in (ROOT / "docs" / place / "code").glob("*.*"):
                shutil.copy(file, folder)
        shutil.copy(ROOT / "examples" / "quickstart.toml", folder)
        for name, command in SESSIONS.items():
            done = subprocess.run(
                shlex.split(command), cwd=folder, env=environment, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            if done.returncode:
                raise SystemExit(f"{command}: exit status {done.returncode}\n{done.stdout}")
            yield name, "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# --- keys of a configuration ----------------------------------------------------------------


def keys() -> Iterator[str]:
    """A table for every table that a configuration file may have."""
    for title, table, section in TABLES:
        yield from (f"# {title}", "")
        if table:
            yield from (f"Under `[[{table}]]`:" if table == "tasks" else f"Under `[{table}]`:", "")
        yield from ("| key | type | default | meaning |", "|---|---|---|---|")
        meant = meanings(section)
        for name, field in section.model_fields.items():
            meaning = meant[name]
            key = f"`{name}`"
            if name in {path.rpartition(".")[2] for _, path, _ in TABLES if path}:
                inner = f"{table}.{name}".lstrip(".")
                meaning = f"{meaning} A table of its own: `{inner}`, below.".strip()
            yield f"| {key} | {kind_of(field)} | {default_of(field)} | {cell(meaning)} |"
        yield ""


def kind_of(field: FieldInfo) -> str:
    """A field's type in the words of a TOML file, with its bounds."""
    marks = [mark for mark in field.metadata if isinstance(mark, Part)]
    if marks:
        words = "".join(f", or `{word}`" for word in marks[0].words)
        return part_of(marks[0]) + words
    return cell(spelled(field.annotation) + bounds(field.metadata))


def part_of(mark: Part) -> str:
    return f"name or table: `fedast list {mark.registry.kind.replace('_', '-')}`"


def spelled(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *metadata = get_args(kind)
        marks = [mark for mark in metadata if isinstance(mark, Part)]
        if marks:
            return part_of(marks[0])
        return spelled(inner) + bounds(metadata)
    if origin in (Union, types.UnionType):
        some = [spelled(part) for part in get_args(kind) if part is not type(None)]
        return ", or ".join(dict.fromkeys(some))
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in get_args(kind))
    if origin is tuple:
        return f"list of {spelled(get_args(kind)[0])}"
    if origin is dict:
        return f"table of {spelled(get_args(kind)[1])}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "table"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(kind, "any value")


def bounds(metadata: Any) -> str:
    """Such as " > 0, ≤ 1"."""
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = []
    for mark in metadata:
        inner = getattr(mark, "metadata", [mark])  # a Field inside Annotated
        for one in inner:
            for name, sign in signs.items():
                value = getattr(one, name, None)
                if value is not None:
                    found.append(f"{sign} {value:g}" if value < 1e6 else f"{sign} {value:.3g}")
    return f" {', '.join(found)}" if found else ""


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "–"
    if isinstance(default, Options):
        return f"`{default.name}`"
    if isinstance(default, BaseModel):
        return "–"
    if isinstance(default, str):
        return f"`{default}`" if default else "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple | dict):
        return f"`{list(default)}`" if default else "none"
    return f"{default:g}" if isinstance(default, float) else str(default)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


# --- parts ------------------------------------------------------------------------------------


def parts() -> Iterator[str]:
    """Every kind of part that is not on the page of algorithms."""
    for kind in KINDS:
        if kind in ELSEWHERE:
            continue
        title = TITLES.get(kind, kind.replace("_", " ").capitalize())
        yield from (f"# {title}", "", f"`fedast list {kind.replace('_', '-')}`", "")
        for entry in entries(kind):
            if entry.source != "fedast":
                continue
            yield from (f"## {entry.name}", "", entry.summary, "")
            if entry.options:
                yield from ("| option | default | meaning |", "|---|---|---|")
                yield from (_row(option) for option in entry.options)
                yield ""


def _row(option: Option) -> str:
    default = "–" if option.default in (None, "") else f"`{option.default}`"
    meaning = cell(" ".join(option.help.split()))
    return f"| `{option.name}` | {default} | {meaning} |"


if __name__ == "__main__":
    everything(Path(sys.argv[1]))
