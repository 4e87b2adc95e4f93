from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedast.core.streams import Stream

seeds = st.integers(min_value=0, max_value=2**63 - 1)


@given(seeds, st.lists(st.one_of(st.text(max_size=5), st.integers(0, 2**40)), max_size=4))
def test_the_same_path_gives_the_same_stream(seed: int, path: list[str | int]) -> None:
    first, second = Stream.of(seed, *path), Stream.of(seed, *path)
    assert [first.bits() for _ in range(5)] == [second.bits() for _ in range(5)]


@given(seeds, st.integers(0, 2**40))
def test_at_is_child(seed: int, number: int) -> None:
    stream = Stream.of(seed, "x")
    assert stream.at(number).key == stream.child(number).key


def test_neighbouring_streams_do_not_look_alike() -> None:
    draws = [Stream.of(1, "delay").at(i).uniform() for i in range(20_000)]
    assert abs(statistics.fmean(draws) - 0.5) < 0.01
    assert abs(statistics.pvariance(draws) - 1 / 12) < 0.002
    lagged = statistics.correlation(draws[:-1], draws[1:])
    assert abs(lagged) < 0.02


def test_drawing_from_one_stream_does_not_disturb_another() -> None:
    quiet = [Stream.of(3, "a").uniform()]
    other = Stream.of(3, "b")
    for _ in range(100):
        other.bits()
    assert [Stream.of(3, "a").uniform()] == quiet


def test_the_numbers_are_splitmix64s() -> None:
    """As published for seed 0: runs made with an older version must come out the same."""
    stream = Stream(0)
    assert [stream.bits() for _ in range(3)] == [
        0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F
    ]  # fmt: skip


def test_a_normal_number_is_made_of_two_uniform_ones() -> None:
    """Box and Muller: sqrt(-2 ln u) cos(2 pi v)."""
    stream, same = Stream.of(7, "normal"), Stream.of(7, "normal")
    for _ in range(20):
        radius = math.sqrt(-2 * math.log(1 - same.uniform()))
        assert stream.normal() == pytest.approx(radius * math.cos(2 * math.pi * same.uniform()))


def test_below_covers_the_range_evenly() -> None:
    stream = Stream.of(0, "below")
    counts = [0] * 7
    for _ in range(70_000):
        counts[stream.below(7)] += 1
    assert all(abs(count - 10_000) < 500 for count in counts)


def test_moments_of_exponential_and_normal() -> None:
    stream = Stream.of(0, "moments")
    exponential = [stream.exponential() for _ in range(50_000)]
    normal = [stream.normal() for _ in range(50_000)]
    assert abs(statistics.fmean(exponential) - 1.0) < 0.02
    assert abs(statistics.fmean(normal)) < 0.02
    assert abs(statistics.pstdev(normal) - 1.0) < 0.02
    assert all(math.isfinite(x) for x in exponential + normal)


@given(seeds, st.integers(0, 200), st.data())
def test_sample_is_distinct_and_within(seed: int, population: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, population))
    picks = Stream.of(seed).sample(population, count)
    assert len(set(picks)) == len(picks) == count
    assert all(0 <= pick < population for pick in picks)


def test_sample_refuses_more_than_there_is() -> None:
    with pytest.raises(ValueError, match="cannot sample 3 of 2"):
        Stream.of(0).sample(2, 3)


@given(seeds, st.lists(st.integers(), max_size=30))
def test_shuffle_is_a_permutation(seed: int, items: list[int]) -> None:
    shuffled = list(items)
    Stream.of(seed).shuffle(shuffled)
    assert sorted(shuffled) == sorted(items)
