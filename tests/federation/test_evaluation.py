"""Evaluation by clients: whom it asks, whom it waits for, what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedast.federation.evaluation import FederatedEvaluation
from fedast.federation.pooling import Answer, pool, problem
from fedast.tasks.metrics import RMSE, Accuracy, MetricOptions, Perplexity, Sums

KEY = ("digits", 3)
FINE = Answer(0.5, 1.0, 10)


def test_who_is_asked_follows_from_the_seed_and_each_client_has_a_token_of_its_own() -> None:
    here = list(range(10, 30))
    one, other = (FederatedEvaluation(7, 5, 10.0).ask(KEY, here, 0.0) for _ in range(2))
    assert list(one) == list(other)
    assert len(one) == 5
    assert len({*one.values(), *other.values()}) == 10
    assert list(FederatedEvaluation(8, 5, 10.0).ask(KEY, here, 0.0)) != list(one)
    assert list(FederatedEvaluation(7, 5, 10.0).ask(("digits", 4), here, 0.0)) != list(one)
    assert sorted(FederatedEvaluation(7, 5, 10.0).ask(KEY, [3, 4], 0.0)) == [3, 4]


def test_only_who_was_asked_can_answer_and_only_once() -> None:
    evaluation = FederatedEvaluation(1, 2, 10.0)
    tokens = evaluation.ask(KEY, [0, 1], 0.0)
    assert evaluation.about(0, tokens[0]) == KEY
    assert evaluation.about(0, tokens[1]) is None
    assert evaluation.about(1, tokens[0]) is None
    assert evaluation.about(2, tokens[0]) is None
    evaluation.answer(KEY, 0, FINE)
    assert evaluation.about(0, tokens[0]) is None
    assert evaluation.about(1, tokens[1]) == KEY


def test_it_waits_for_everybody_who_is_there() -> None:
    evaluation, now = FederatedEvaluation(1, 3, 10.0), 1.0
    tokens = evaluation.ask(KEY, [0, 1, 2], 0.0)
    a, b, c = tokens
    evaluation.answer(KEY, a, FINE)
    assert evaluation.close(now) == []
    evaluation.give_up(KEY, b)
    assert evaluation.close(now) == []
    evaluation.pass_time(1.0, [a, b])  # c is gone
    (answered,) = evaluation.close(now)
    assert (answered.key, answered.answers) == (KEY, {a: FINE})
    assert evaluation.may_ask(KEY, now)
    assert evaluation.about(c, tokens[c]) is None


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
    first, _ = evaluation.ask(KEY, [0, 1], now)
    evaluation.answer(KEY, first, FINE)
    evaluation.pass_time(now + 80.1, [0, 1])
    assert [answered.answers for answered in evaluation.close(now)] == [{first: FINE}]
    evaluation.ask(KEY, [0, 1], now)  # the patience is as at the beginning
    evaluation.pass_time(now + 10.1, [0, 1])
    evaluation.close(now + 10.1)
    assert evaluation.may_ask(KEY, now + 11.0)


def test_those_who_cannot_answer_are_not_the_only_ones_who_are_asked() -> None:
    evaluation, here = FederatedEvaluation(1, 2, 10.0), list(range(10))
    asked: set[int] = set()
    for _ in range(20):
        chosen = evaluation.ask(KEY, here, 0.0)
        asked.update(chosen)
        for client in chosen:
            evaluation.give_up(KEY, client)
        evaluation.close(0.0)
    assert asked == set(here)


# --- pooling ------------------------------------------------------------------------------------


class F1(MetricOptions):
    """From three sums, as somebody's own metric may be."""

    name: ClassVar[str] = "f1"
    lowest = 0.0
    highest = 1.0

    def build(self) -> Sums | None:
        raise NotImplementedError

    def finish(self, means: Sequence[float]) -> float:
        right, wrong, missed = means
        return right / (right + (wrong + missed) / 2)


def rmse(square: float, samples: int) -> Answer:
    return Answer(math.sqrt(square), square, samples, (square,))


def test_an_rmse_is_pooled_from_squares() -> None:
    found = pool([rmse(0.0, 10), rmse(4.0, 10)], RMSE(), "mean")
    assert math.isclose(found.metric, math.sqrt(2.0))
    assert found.loss == 2.0
    assert not found.averaged


def test_perplexity_and_own_metrics_are_finished_from_pooled_means() -> None:
    parts = [Answer(math.exp(loss), loss, 5, (loss,)) for loss in (0.0, 2.0)]
    assert math.isclose(pool(parts, Perplexity(), "mean").metric, math.e)
    sums = [(0.5, 0.1, 0.0), (0.1, 0.0, 0.7)]
    answers = [Answer(F1().finish(means), 1.0, 7, means) for means in sums]
    pooled = pool(answers, F1(), "mean")
    assert math.isclose(pooled.metric, F1().finish((0.3, 0.05, 0.35)))
    assert pooled.metric != pytest.approx(sum(a.metric for a in answers) / 2)


def test_without_its_parts_a_metric_is_averaged_and_that_is_said() -> None:
    old = Answer(2.0, 4.0, 10)  # a client of an earlier version
    found = pool([rmse(0.0, 10), old], RMSE(), "mean")
    assert found.metric == 1.0
    assert found.averaged


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 10), st.integers(1, 10**6)), min_size=1, max_size=8
    )
)
def test_no_client_weighs_more_than_twice_the_median(
    answers: list[tuple[float, float, int]],
) -> None:
    given_ = [Answer(metric, loss, samples, (metric,)) for metric, loss, samples in answers]
    found = pool(given_, Accuracy(), "mean")
    samples = sorted(answer.samples for answer in given_)
    middle = (samples[(len(samples) - 1) // 2] + samples[len(samples) // 2]) / 2
    weights = [min(answer.samples, 2 * middle) for answer in given_]
    mean = math.fsum(a.metric * w for a, w in zip(given_, weights, strict=True)) / sum(weights)
    assert math.isclose(found.metric, mean, rel_tol=1e-9, abs_tol=1e-9)


def test_a_median_is_where_most_clients_are() -> None:
    answers = [Answer(0.2, 2.0, 10, (0.2,)), Answer(0.3, 1.5, 10, (0.3,)), Answer(1.0, 0.0, 10)]
    found = pool(answers, Accuracy(), "median")
    assert (found.metric, found.loss) == (0.3, 1.5)


def test_not_finite_if_most_clients_say_so() -> None:
    bad = Answer(math.nan, math.inf, 10)
    assert math.isnan(pool([bad, bad, FINE], Accuracy(), "mean").metric)
    assert pool([bad, FINE, FINE], Accuracy(), "mean").metric == 0.5


@pytest.mark.parametrize(
    ("answer", "metric"),
    [
        (Answer(1.5, 1.0, 10), Accuracy()),
        (Answer(-0.1, 1.0, 10), Accuracy()),
        (Answer(0.5, 1.0, 0), Accuracy()),
        (Answer(0.9, 1.0, 10, (0.1,)), Accuracy()),
        (Answer(0.9, 1.0, 10, ()), Accuracy()),
        (Answer(0.9, 1.0, 10, (0.9,) * 100), Accuracy()),
        (Answer(-1.0, 1.0, 10), RMSE()),
        (Answer(1.0, 1.0, 10, (-1.0,)), RMSE()),
        (Answer(0.5, 1.0, 10), Perplexity()),
        (Answer(0.5, 1.0, 10, (0.0, 0.0, 0.0)), F1()),
    ],
)
def test_impossible_answers_are_refused(answer: Answer, metric: MetricOptions) -> None:
    assert problem(answer, metric) is not None


@pytest.mark.parametrize(
    ("answer", "metric"),
    [
        (FINE, Accuracy()),
        (rmse(3.0, 4), RMSE()),
        (Answer(math.exp(2.0), 2.0, 3, (2.0,)), Perplexity()),
        (Answer(math.nan, math.nan, 3, (math.nan,)), Accuracy()),
    ],
)
def test_possible_ones_are_not(answer: Answer, metric: MetricOptions) -> None:
    assert problem(answer, metric) is None
