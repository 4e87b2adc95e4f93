"""Draw the figures of a study and save them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedast.reproduce.figures.registry import find_figure
from fedast.reproduce.results import StudyResults
from fedast.reproduce.study import slug

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 130


def draw_figures(results: StudyResults) -> dict[str, Figure]:
    """The study's figures by name; none if nothing of it has been run."""
    if not any(results.runs.values()):
        return {}
    figures = {name: find_figure(name)(results) for name in results.figures}
    if results.disclaimer:
        for figure in figures.values():
            _print_across(figure, results.disclaimer)
    return figures


def _print_across(figure: Figure, text: str) -> None:
    characters = int(11 * figure.get_figwidth())
    figure.suptitle(textwrap.fill(text, characters), fontsize=9, color="#b03000", weight="bold")


def save_figures(figures: Mapping[str, Figure], folder: Path, study: str) -> dict[str, Path]:
    """Write PDF, SVG and PNG, the same bytes for the same figure; returns the PNG by name."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    undated: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    saved = {}
    with matplotlib.rc_context({"svg.hashsalt": study, "svg.fonttype": "none"}):
        for name, figure in figures.items():
            stem = f"{study}-{slug(name)}"
            for suffix, metadata in undated.items():
                figure.savefig(folder / f"{stem}.{suffix}", dpi=DPI, metadata=metadata)
            saved[name] = folder / f"{stem}.png"
    return saved
