"""A reproduction as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedast.records.files import write_atomically
from fedast.reproduce.figures.save import DPI
from fedast.reproduce.numbers import Numbers, numbers_of
from fedast.reproduce.results import Key, StudyResults
from fedast.reproduce.rows import Row, rows_of
from fedast.reproduce.tables import summary, verdict_text


@dataclass(frozen=True)
class _Figure:
    name: str
    width: int
    """In CSS pixels: as large as it was drawn."""
    data: str
    """The PNG file in base64."""


@dataclass(frozen=True)
class _Variant:
    """A line of the table of runs; means over seeds."""

    name: str
    command: str
    """Repeats the first seed's run, or makes those that are missing."""
    seeds: tuple[int, ...] = ()
    finish_time: float = 0.0
    wall_seconds: float = 0.0
    updates_per_second: float = 0.0
    machines: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Section:
    results: StudyResults
    rows: Sequence[Row]
    figures: Sequence[_Figure]
    variants: Sequence[_Variant]
    numbers: Numbers | None = None
    """Of a study without claims."""


def environment() -> Environment:
    return Environment(
        loader=PackageLoader("fedast.reproduce", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def write_page(
    path: Path,
    all_results: Sequence[StudyResults],
    figures: Mapping[str, Mapping[str, Path]],
    *,
    scale: str,
    settings: Sequence[str],
    folder: str,
) -> None:
    """``figures`` are PNG files by study and name; they become part of the page."""
    page = (
        environment()
        .get_template("report.html.jinja")
        .render(
            summary=summary(all_results),
            scale=scale,
            settings=settings,
            verdict_text=verdict_text,
            studies=[
                _Section(
                    results,
                    rows_of(results),
                    [embedded(name, file) for name, file in figures.get(results.name, {}).items()],
                    [_variant(results, key, folder, scale) for key in results.folders],
                    None if results.claims else numbers_of(results),
                )
                for results in all_results
            ],
        )
    )
    write_atomically(path, page)


def embedded(name: str, file: Path) -> _Figure:
    content = file.read_bytes()
    width = int.from_bytes(content[16:20], "big") * 96 // DPI  # the PNG's own, scaled to 96 dpi
    return _Figure(name, width, base64.b64encode(content).decode())


def _variant(results: StudyResults, key: Key, folder: str, scale: str) -> _Variant:
    name, runs = ", ".join(key), results.runs.get(key, {})
    if not runs:
        return _Variant(name, _missing_command(results, key, folder, scale))
    found = list(runs.values())
    machines = {
        f"{m['device']}, torch {m['torch']}, {m['at_a_time']} at a time"
        for m in (run.machine for run in found)
    }
    return _Variant(
        name,
        f"fedast run {folder}/{results.folders[key]}/seed-{min(runs)}.toml",
        tuple(sorted(runs)),
        statistics.fmean(run.finish_time for run in found),
        statistics.fmean(run.wall_seconds for run in found),
        statistics.fmean(run.updates_per_second for run in found),
        tuple(sorted(machines)),
    )


def _missing_command(results: StudyResults, key: Key, folder: str, scale: str) -> str:
    words = ["fedast reproduce", results.source]
    words += [f'--only "{label}"' for label in key]
    words += ["--scale quick"] if scale == "quick" else []
    words += [f"--set {setting}" for setting in results.settings]
    return " ".join([*words, "--out", folder])
