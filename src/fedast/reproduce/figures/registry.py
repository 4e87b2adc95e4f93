"""The figures that a study's file can name.

Built-in ones have a name here; anybody's own are named as ``package.module:function``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from fedast.parts.errors import ConfigError, nearest
from fedast.reproduce.figures.allocation import allocation
from fedast.reproduce.figures.bars import bars
from fedast.reproduce.figures.curves import curves, losses
from fedast.reproduce.figures.dots import dots, ranking
from fedast.reproduce.figures.sweep import sweep_final, sweep_rounds, sweep_time
from fedast.reproduce.figures.tasks import tasks
from fedast.reproduce.results import StudyResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class StudyFigure(Protocol):
    """Draws the results of a study of which at least one run has been made.

    Other runs may be missing: their place stays empty. It returns a new figure and neither shows
    nor saves it; the same results give the same figure.
    """

    def __call__(self, results: StudyResults, /) -> Figure: ...


FIGURES: Mapping[str, StudyFigure] = {
    "tasks": tasks,
    "bars": bars,
    "dots": dots,
    "ranking": ranking,
    "curves": curves,
    "losses": losses,
    "allocation": allocation,
    "sweep-time": sweep_time,
    "sweep-rounds": sweep_rounds,
    "sweep-final": sweep_final,
}


def find_figure(name: str) -> StudyFigure:
    """A built-in figure, or the function at ``package.module:function``."""
    if name in FIGURES:
        return FIGURES[name]
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise ConfigError("figures", f"there is no figure {name!r}{nearest(name, FIGURES)}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError("figures", f"{name}: cannot import {module_name!r}: {error}") from error
    figure: StudyFigure | None = getattr(module, function_name, None)
    if not callable(figure):
        raise ConfigError("figures", f"{name}: {module_name!r} has no function {function_name!r}")
    return figure
