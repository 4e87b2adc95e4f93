from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedast.core.apportion import apportion, largest_remainder

weights = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=8)


@given(st.integers(0, 10_000), weights)
def test_parts_sum_to_the_total_and_are_within_one_of_the_quota(
    total: int, weights: list[float]
) -> None:
    parts = largest_remainder(total, weights)
    assert sum(parts) == total
    whole = sum(weights)
    if whole > 0:
        for part, weight in zip(parts, weights, strict=True):
            assert abs(part - total * weight / whole) < 1.0 + 1e-6


def test_by_hand() -> None:
    # Quotas 4.2, 2.52, 3.28: whole parts 4, 2, 3; the one left goes to the remainder of 0.52.
    assert largest_remainder(10, [42.0, 25.2, 32.8]) == [4, 3, 3]
    assert largest_remainder(2, [1.0, 1.0, 1.0]) == [1, 1, 0]
    assert largest_remainder(300, [100, 84, 48, 68]) == [100, 84, 48, 68]
    assert largest_remainder(4, [0.0, 0.0]) == [2, 2]


@given(weights, st.data())
def test_minima_hold(weights: list[float], data: st.DataObject) -> None:
    least = [data.draw(st.integers(1, 20)) for _ in weights]
    total = data.draw(st.integers(sum(least), sum(least) + 500))
    parts = apportion(total, weights, least)
    assert sum(parts) == total
    assert all(part >= low for part, low in zip(parts, least, strict=True))


@given(st.integers(1, 60), weights, st.data())
def test_minima_that_are_met_anyway_change_nothing(
    total: int, weights: list[float], data: st.DataObject
) -> None:
    plain = largest_remainder(total, weights)
    least = [data.draw(st.integers(part // 2, part)) for part in plain]
    assert apportion(total, weights, least) == plain


def test_minima_by_hand() -> None:
    # Without minima 90, 9, 1; the last is lifted to 20 and the other 80 are split 10 : 1.
    assert apportion(100, [90, 9, 1], [20, 1, 20]) == [73, 7, 20]
    # Minima that just fit are the whole answer, whatever the weights.
    assert apportion(5, [1, 100], [4, 1]) == [4, 1]
    # When the minima do not fit they fall to one each.
    assert apportion(4, [90, 9, 1], [20, 20, 20]) == [2, 1, 1]
    assert apportion(3, [90, 9, 1], [20, 20, 20]) == [1, 1, 1]


def test_too_little_for_one_each_is_refused() -> None:
    with pytest.raises(ValueError, match="one each"):
        apportion(2, [1, 1, 1], [1, 1, 1])
