"""Evaluation by clients: whom it asks, whom it waits for, what it says."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fedast.federation.evaluation import FederatedEvaluation

KEY = ("digits", 3)


def test_who_is_asked_follows_from_the_seed_and_each_question_has_its_own_token() -> None:
    here = list(range(10, 30))
    one, other = (FederatedEvaluation(7, 5, 10.0).ask(KEY, here, 0.0) for _ in range(2))
    assert one[1] == other[1]
    assert len(set(one[1])) == 5
    assert one[0] != other[0]
    assert FederatedEvaluation(8, 5, 10.0).ask(KEY, here, 0.0)[1] != one[1]
    assert FederatedEvaluation(7, 5, 10.0).ask(("digits", 4), here, 0.0)[1] != one[1]
    assert sorted(FederatedEvaluation(7, 5, 10.0).ask(KEY, [3, 4], 0.0)[1]) == [3, 4]


def test_it_waits_for_everybody_who_is_there() -> None:
    evaluation, now = FederatedEvaluation(1, 3, 10.0), 1.0
    token, (a, b, c) = evaluation.ask(KEY, [0, 1, 2], 0.0)
    assert evaluation.about(token) == KEY
    assert evaluation.about("another") is None
    evaluation.answer(KEY, a, 0.5, 1.0, 10)
    assert not evaluation.waits_for(KEY, a)
    assert evaluation.close(now) == []
    evaluation.give_up(KEY, b)
    assert evaluation.close(now) == []
    evaluation.pass_time(1.0, [a, b])  # c is gone
    (outcome,) = evaluation.close(now)
    assert (outcome.key, outcome.metric, outcome.loss) == (KEY, 0.5, 1.0)
    assert evaluation.may_ask(KEY, now)
    assert not evaluation.waits_for(KEY, c)


def test_nobody_answers_so_it_is_asked_again_with_more_patience() -> None:
    evaluation = FederatedEvaluation(1, 2, 10.0)
    now = 0.0
    for patience in (10.0, 20.0, 40.0):
        evaluation.ask(KEY, [0, 1], now)
        evaluation.pass_time(now + patience, [0, 1])
        assert evaluation.close(now) == []
        assert not evaluation.may_ask(KEY, now + 1e9)
        evaluation.pass_time(now + patience + 0.1, [0, 1])
        now += patience + 0.1
        assert evaluation.close(now) == []
        assert not evaluation.may_ask(KEY, now)  # not again at once
        now += 30.0
        assert evaluation.may_ask(KEY, now)
    _, (first, _) = evaluation.ask(KEY, [0, 1], now)
    evaluation.answer(KEY, first, 0.9, 0.1, 1)
    evaluation.pass_time(now + 80.1, [0, 1])
    assert [outcome.metric for outcome in evaluation.close(now)] == [0.9]
    evaluation.ask(KEY, [0, 1], now)  # the patience is as at the beginning
    evaluation.pass_time(now + 10.1, [0, 1])
    evaluation.close(now + 10.1)
    assert evaluation.may_ask(KEY, now + 11.0)


def test_those_who_cannot_answer_are_not_the_only_ones_who_are_asked() -> None:
    evaluation, here = FederatedEvaluation(1, 2, 10.0), list(range(10))
    asked: set[int] = set()
    for _ in range(20):
        _, chosen = evaluation.ask(KEY, here, 0.0)
        asked.update(chosen)
        for client in chosen:
            evaluation.give_up(KEY, client)
        evaluation.close(0.0)
    assert asked == set(here)


numbers = st.floats(-1e3, 1e3)


@given(st.lists(st.tuples(numbers, numbers, st.integers(1, 10**9)), min_size=1, max_size=8))
def test_the_verdict_is_the_mean_weighted_by_points(
    answers: list[tuple[float, float, int]],
) -> None:
    evaluation = FederatedEvaluation(1, 8, 10.0)
    _, chosen = evaluation.ask(KEY, list(range(len(answers))), 0.0)
    for client, (metric, loss, points) in zip(chosen, answers, strict=True):
        evaluation.answer(KEY, client, metric, loss, points)
    (outcome,) = evaluation.close(0.0)
    weights = [min(points, 1_000_000) for _, _, points in answers]
    for place, value in ((0, outcome.metric), (1, outcome.loss)):
        mean = math.fsum(a[place] * w for a, w in zip(answers, weights, strict=True))
        assert math.isclose(value, mean / sum(weights), rel_tol=1e-9, abs_tol=1e-6)
