"""Draw the figures of a study and save them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedast.reproduce.figures.drawing import head
from fedast.reproduce.figures.registry import find_figure
from fedast.reproduce.results import StudyResults
from fedast.reproduce.study import slug

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200
_UNDATED: Mapping[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}


def draw_figures(results: StudyResults) -> dict[str, Figure]:
    """The study's figures by name; none if nothing of it has been run."""
    if not any(results.runs.values()):
        return {}
    figures = {name: find_figure(name)(results) for name in results.figures}
    if results.disclaimer:
        for figure in figures.values():
            head(figure, results.disclaimer, color="#b03000", weight="bold")
    return figures


def save_figures(figures: Mapping[str, Figure], folder: Path, study: str) -> dict[str, Path]:
    """Write PDF, SVG and PNG, the same bytes for the same figure; returns the PNG by name."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = {}
    for name, figure in figures.items():
        *_, saved[name] = save(figure, folder, f"{study}-{slug(name)}")
    return saved


def save(
    figure: Figure, folder: Path, name: str, kinds: Sequence[str] = ("pdf", "svg", "png")
) -> list[Path]:
    """Write the same bytes for the same figure: PDF and SVG to publish, PNG to look at."""
    import matplotlib

    paths = [folder / f"{name}.{kind}" for kind in kinds]
    # PDF: fonts as publishers want them.
    with matplotlib.rc_context(
        {"svg.hashsalt": name, "svg.fonttype": "none", "pdf.fonttype": 42, "hatch.linewidth": 0.4}
    ):
        for kind, path in zip(kinds, paths, strict=True):
            figure.savefig(path, dpi=DPI, metadata=_UNDATED.get(kind, {}))
    return paths
