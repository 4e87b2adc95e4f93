"""Evaluation by clients: whom it asks, whom it waits for, what it says."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fedast.federation.evaluation import Polls

KEY = ("digits", 3)


def test_who_is_asked_follows_from_the_seed_and_each_question_has_its_own_token() -> None:
    here = list(range(10, 30))
    one, other = (Polls(7, 5, 10.0).ask(KEY, here, 0.0) for _ in range(2))
    assert one[1] == other[1]
    assert len(set(one[1])) == 5
    assert one[0] != other[0]
    assert Polls(8, 5, 10.0).ask(KEY, here, 0.0)[1] != one[1]
    assert Polls(7, 5, 10.0).ask(("digits", 4), here, 0.0)[1] != one[1]
    assert sorted(Polls(7, 5, 10.0).ask(KEY, [3, 4], 0.0)[1]) == [3, 4]


def test_it_waits_for_everybody_who_is_there() -> None:
    polls, now = Polls(1, 3, 10.0), 1.0
    token, (a, b, c) = polls.ask(KEY, [0, 1, 2], 0.0)
    assert polls.about(token) == KEY
    assert polls.about("another") is None
    polls.answer(KEY, a, 0.5, 1.0, 10)
    assert not polls.waits_for(KEY, a)
    assert polls.close(now) == []
    polls.give_up(KEY, b)
    assert polls.close(now) == []
    polls.pass_time(1.0, [a, b])  # c is gone
    (verdict,) = polls.close(now)
    assert (verdict.key, verdict.metric, verdict.loss) == (KEY, 0.5, 1.0)
    assert polls.may_ask(KEY, now)
    assert not polls.waits_for(KEY, c)


def test_nobody_answers_so_it_is_asked_again_with_more_patience() -> None:
    polls = Polls(1, 2, 10.0)
    now = 0.0
    for patience in (10.0, 20.0, 40.0):
        polls.ask(KEY, [0, 1], now)
        polls.pass_time(now + patience, [0, 1])
        assert polls.close(now) == []
        assert not polls.may_ask(KEY, now + 1e9)
        polls.pass_time(now + patience + 0.1, [0, 1])
        now += patience + 0.1
        assert polls.close(now) == []
        assert not polls.may_ask(KEY, now)  # not again at once
        now += 30.0
        assert polls.may_ask(KEY, now)
    _, (first, _) = polls.ask(KEY, [0, 1], now)
    polls.answer(KEY, first, 0.9, 0.1, 1)
    polls.pass_time(now + 80.1, [0, 1])
    assert [verdict.metric for verdict in polls.close(now)] == [0.9]
    polls.ask(KEY, [0, 1], now)  # the patience is as at the beginning
    polls.pass_time(now + 10.1, [0, 1])
    polls.close(now + 10.1)
    assert polls.may_ask(KEY, now + 11.0)


def test_those_who_cannot_answer_are_not_the_only_ones_who_are_asked() -> None:
    polls, here = Polls(1, 2, 10.0), list(range(10))
    asked: set[int] = set()
    for _ in range(20):
        _, chosen = polls.ask(KEY, here, 0.0)
        asked.update(chosen)
        for client in chosen:
            polls.give_up(KEY, client)
        polls.close(0.0)
    assert asked == set(here)


numbers = st.floats(-1e3, 1e3)


@given(st.lists(st.tuples(numbers, numbers, st.integers(1, 10**9)), min_size=1, max_size=8))
def test_the_verdict_is_the_mean_weighted_by_points(
    answers: list[tuple[float, float, int]],
) -> None:
    polls = Polls(1, 8, 10.0)
    _, chosen = polls.ask(KEY, list(range(len(answers))), 0.0)
    for client, (metric, loss, points) in zip(chosen, answers, strict=True):
        polls.answer(KEY, client, metric, loss, points)
    (verdict,) = polls.close(0.0)
    weights = [min(points, 1_000_000) for _, _, points in answers]
    for place, value in ((0, verdict.metric), (1, verdict.loss)):
        mean = math.fsum(a[place] * w for a, w in zip(answers, weights, strict=True))
        assert math.isclose(value, mean / sum(weights), rel_tol=1e-9, abs_tol=1e-6)
