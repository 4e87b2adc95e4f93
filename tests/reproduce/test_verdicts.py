"""What a few seeds can say, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from fedast.reproduce.verdicts import Verdict, above_zero, all_hold, quantile, rising, within


def test_students_t() -> None:
    """From the tables: two-sided 95 %, then one-sided."""
    assert [quantile(n) for n in (1, 2, 10, 11, 30)] == pytest.approx(
        [12.706, 4.303, 2.228, 2.201, 2.042], abs=1e-3
    )
    assert quantile(2, sides=1) == pytest.approx(2.920, abs=1e-3)
    assert quantile(2, among=2) == pytest.approx(6.205, abs=1e-3)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        # mean 3, error 1 / sqrt(3), t 2.92: 1.69 by chance
        ([2.0, 3.0, 4.0], "agrees"),
        ([-2.0, -3.0, -4.0], "does not agree"),
        ([0.0, 1.0, 2.0], "cannot be told"),
        ([0.0, -1.0, -2.0], "cannot be told"),
        ([5.0], "cannot be told"),
        ([1.0, 1.0], "agrees"),
        ([0.0, 0.0], "does not agree"),
    ],
)
def test_above_zero(differences: list[float], verdict: Verdict) -> None:
    assert above_zero(differences) == verdict


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        # error 1 / sqrt(3), t 2.92: 1.69 by chance
        ([-1.0, 0.0, 1.0], "agrees"),
        ([0.0, 1.0, 2.0], "cannot be told"),
        ([2.0, 3.0, 4.0], "cannot be told"),
        ([3.0, 4.0, 5.0], "does not agree"),
        ([-3.0, -4.0, -5.0], "does not agree"),
        ([0.0], "cannot be told"),
    ],
)
def test_within_two(differences: list[float], verdict: Verdict) -> None:
    assert within(differences, 2.0) == verdict


def test_a_trend_may_have_steps_that_chance_explains() -> None:
    assert rising([[1, 2, 3], [5, 6, 7], [5, 6, 8]]) == "agrees"
    assert rising([[1, 2, 3], [5, 6, 7], [5, 5, 7]]) == "cannot be told"  # the mean falls a little
    assert rising([[1, 2, 3], [9, 10, 11], [5, 6, 7]]) == "does not agree"
    assert rising([[1, 5, 9], [2, 4, 11]]) == "cannot be told"
    # no step down is more than chance, but all of them together are
    assert rising([[9, 9, 9], [8, 9, 7], [7, 6, 7], [5, 6, 4]]) == "does not agree"


def test_a_claim_of_several_parts() -> None:
    assert all_hold(["agrees", "agrees"]) == "agrees"
    assert all_hold(["agrees", "cannot be told"]) == "cannot be told"
    assert all_hold(["cannot be told", "does not agree", "agrees"]) == "does not agree"
