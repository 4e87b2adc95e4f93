"""A figure of one's own: named by its address in a study's file, or installed as a plug-in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedast.parts.errors import ConfigError
from fedast.reproduce.figures.registry import FIGURES
from fedast.reproduce.figures.save import draw_figures
from fedast.reproduce.load import load_study
from tests.plugin import install
from tests.reproduce.support import SMALL
from tests.reproduce.test_results import timed

SOURCE = '''
from matplotlib.figure import Figure

def count(results):
    """How many runs there are."""
    figure = Figure()
    figure.suptitle(f"{sum(map(len, results.runs.values()))} runs")
    return figure
'''


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    points = {"fedast.figures": "run-count = my_figures:count"}
    install(monkeypatch, tmp_path, "my_figures", SOURCE, points)


@pytest.mark.parametrize("name", ["run-count", "my_figures:count"])
def test_a_study_s_file_names_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(SMALL.replace('"bars", "curves"', f'"{name}", "curves"'))
    figures = load_study(path).config.figures
    assert figures[0] == name
    found = replace(timed([1.0, 2.0], [3.0]), figures=figures[:1])
    assert draw_figures(found)[name].get_suptitle() == "3 runs"


def test_it_is_listed_with_its_package_and_its_own_words() -> None:
    (mine,) = [part for part in FIGURES.listed() if part.name == "run-count"]
    assert mine.source == "my_figures"
    assert mine.options is not None
    assert mine.options.__doc__ == "How many runs there are."


def test_what_is_not_there_is_said() -> None:
    for name, message in (
        ("my_figures:nothing", "has no 'nothing'"),
        ("my_figure:count", "cannot be imported"),
        ("run-counts", "did you mean 'run-count'"),
    ):
        with pytest.raises(ConfigError, match=message):
            draw_figures(replace(timed([1.0], [2.0]), figures=(name,)))
