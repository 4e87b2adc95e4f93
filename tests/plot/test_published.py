"""The figures of the published results: readable at both widths, one colour per algorithm."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fedast.report.looks import colour_of
from fedast.reproduce.collect import collect
from fedast.reproduce.figures.bars import bar_panels, gain_panel
from fedast.reproduce.figures.drawing import WIDTHS, series_looks
from fedast.reproduce.figures.save import draw_figures
from fedast.reproduce.load import find_studies, studies
from fedast.reproduce.results import Columns, StudyResults
from tests.plot.overlaps import overlaps

REPOSITORY = Path(__file__).parents[2]
STUDIES = [
    name
    for name in studies()
    if name != "larger-model"  # whose data nobody may publish
]

FEW = ("heterogeneous", "homogeneous", "faster", "first-k")
"""Studies that between them have a figure of nearly every kind."""


def published(name: str) -> StudyResults:
    return _published(name.startswith("faster"))[name]


@lru_cache
def _published(faster: bool) -> dict[str, StudyResults]:
    place = REPOSITORY / "results" / ("faster" if faster else "")
    names = [name for name in STUDIES if name.startswith("faster") == faster]
    return {found.name: found for found in collect(find_studies(names), place, "full")}


@pytest.mark.parametrize(
    ("name", "columns"),
    [(name, 2) for name in STUDIES]
    + [(name, 1) for name in FEW]
    + [pytest.param(name, 1, marks=pytest.mark.slow) for name in STUDIES if name not in FEW],
)
def test_no_text_overlaps_another(name: str, columns: Columns) -> None:
    figures = draw_figures(replace(published(name), columns=columns))
    assert figures
    for kind, figure in figures.items():
        assert figure.get_figwidth() == WIDTHS[columns]
        assert overlaps(figure) == [], kind
        assert len(figure.legends) <= 1, kind


def test_overlapping_text_is_found() -> None:
    figure = Figure(figsize=(3, 2))
    figure.text(0.4, 0.5, "one")
    figure.text(0.45, 0.52, "two")
    figure.text(0.9, 0.1, "long text at the edge")
    assert overlaps(figure) == ["'long text at the edge' is cut off", "'one' overlaps 'two'"]


def test_bars_say_times_and_gains() -> None:
    (panel,) = bar_panels(published("heterogeneous"))
    assert list(panel.groups) == ["MNIST", "Fashion-MNIST", "CIFAR-10", "Shakespeare", "all tasks"]
    bars = {bar.series: bar for bar in panel.groups["all tasks"]}
    results = published("heterogeneous")
    gain, _ = results.gains(("FedAST(D)",), ("Sync-ST",))
    times = results.times(("FedAST(D)",)).values()
    mean = sum(time for time in times if time is not None) / len(times)
    assert bars["FedAST(D)"].length == pytest.approx(mean)
    assert bars["FedAST(D)"].text == f"{mean:.0f} (+{gain:.0f} %)"
    assert bars["Sync-ST"].text == f"{bars['Sync-ST'].length:.0f}", "the baseline has no gain"
    gains = {bar.series: bar for bar in gain_panel(results).groups["all tasks"]}
    assert "Sync-ST" not in gains
    assert gains["FedAST(D)"].dots == pytest.approx(results.gains(("FedAST(D)",), ("Sync-ST",))[1])


def test_an_algorithm_has_one_colour_everywhere() -> None:
    seen: dict[str, set[str]] = {}
    for name in STUDIES:
        results = published(name)
        first: dict[str, str] = {}
        for label, look in series_looks(results).items():
            keys = [key for key in results.targets if label in key or not label]
            algorithm = results.algorithm(keys[0])
            first.setdefault(algorithm, look.colour)  # others have a tint of it
        for algorithm, colour in first.items():
            seen.setdefault(algorithm, set()).add(colour)
    assert {"fedast-d", "fedast-s", "sync-st", "fedast-plus"} <= seen.keys()
    assert all(colours == {colour_of(algorithm)} for algorithm, colours in seen.items())
    race = draw_figures(published("faster"))["race"]
    drawn = {to_hex(bar.get_facecolor()).upper() for bar in race.axes[0].patches}
    assert drawn == {colour_of("fedast-plus"), colour_of("fedast-d")}
