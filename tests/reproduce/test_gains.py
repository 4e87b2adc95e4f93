"""Gains over a baseline, on runs whose numbers are known, and on the published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedast.reproduce.collect import collect
from fedast.reproduce.figures.registry import find_figure
from fedast.reproduce.gains import gains_of, gains_table
from fedast.reproduce.load import find_studies
from fedast.reproduce.results import Axis, Key, StudyResults
from fedast.reproduce.tables import between_markers
from tests.reproduce.test_results import Variants, results, task

REPOSITORY = Path(__file__).parents[2]
METHODS = Axis("method", "series", ("ours", "slow"))
TIMES: dict[Key, list[float]] = {("ours",): [60.0, 75.0, 66.0], ("slow",): [100.0, 100.0, 110.0]}


def known() -> StudyResults:
    runs: Variants = {key: [{"a": task(time)} for time in times] for key, times in TIMES.items()}
    return results([METHODS], runs)


def test_gains_are_taken_in_pairs_of_seeds() -> None:
    ours, slow = gains_of(known())
    assert ours.gains == pytest.approx((40.0, 25.0, 40.0))
    assert ours.error == pytest.approx(5.0)
    assert ours.verdict == "earlier"
    assert slow.gains == (0.0, 0.0, 0.0)


def test_a_missed_target_is_said_and_decides_nothing() -> None:
    runs: Variants = {
        ("ours",): [{"a": task(None)}, {"a": task(50.0)}],
        ("slow",): [{"a": task(100.0)}] * 2,
    }
    ours, _ = gains_of(results([METHODS], runs))
    assert (ours.missed, ours.gains, ours.verdict) == (1, (50.0,), "–")
    assert "50 (1 of 2 not reached)" in gains_table([results([METHODS], runs)])


def test_held_is_another_time() -> None:
    held = task(10.0, time_held=14.0)
    runs: Variants = {("ours",): [{"a": held}], ("slow",): [{"a": held}]}
    first, by_held = (
        results([METHODS], runs, criterion=criterion) for criterion in ("first", "held")
    )
    assert first.times(("ours",)) == {1: 10.0}
    assert by_held.times(("ours",)) == {1: 14.0}


def test_the_race_says_how_much_earlier() -> None:
    figure = find_figure("race")(known())
    (panel,) = figure.axes
    assert [text.get_text() for text in panel.texts] == ["35 % earlier"] * 2
    lengths = [bar.get_extents().width for bar in panel.patches]
    assert lengths[1] / lengths[0] == pytest.approx(67.0 / 103.333, rel=1e-3)


def test_the_published_gains_are_current() -> None:
    names = ["faster", "faster-held", "faster-targets", "faster-homogeneous"]
    chosen = list(collect(find_studies(names), REPOSITORY / "results" / "faster", "full"))
    text = (REPOSITORY / "docs" / "faster.md").read_text(encoding="utf-8")
    assert between_markers(text, "gains", gains_table(chosen)) == text, "run make results"
