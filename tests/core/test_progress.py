"""How a task ends, on its own: every way, step by step."""

from __future__ import annotations

import math

import pytest

from fedast.core.progress import Progress
from fedast.core.protocol import (
    Aggregate,
    Evaluate,
    Evaluated,
    Finish,
    FinishReason,
    IllegalEvent,
    StopReason,
    TaskSpec,
)


def found(progress: Progress, version: int, metric: float = 0.1, loss: float = 1.0) -> Evaluated:
    return Evaluated(progress.spec.name, version, metric, loss)


def begun(**spec: object) -> Progress:
    """A task whose initial model is being evaluated."""
    progress = Progress(TaskSpec("a", **spec))  # type: ignore[arg-type]
    assert progress.evaluate() == Evaluate("a", 0)
    return progress


def test_an_evaluation_that_was_not_asked_for_is_refused() -> None:
    fresh = Progress(TaskSpec("a", evaluate_every=2))
    with pytest.raises(IllegalEvent, match="round 0 was not to be evaluated"):
        fresh.check(found(fresh, 0))
    fresh.evaluate()
    fresh.check(found(fresh, 0))
    fresh.advance([1])
    with pytest.raises(IllegalEvent, match="round 1 was not to be evaluated"):
        fresh.check(found(fresh, 1))


def test_rounds_are_evaluated_every_so_often_and_at_the_limit() -> None:
    progress = begun(evaluate_every=2, max_rounds=3)
    assert progress.advance([4, 7], [1.0, 0.5]) == [Aggregate("a", 1, (4, 7), (1.0, 0.5))]
    assert progress.advance([5]) == [Aggregate("a", 2, (5,)), Evaluate("a", 2)]
    assert progress.open
    assert progress.advance([6]) == [Aggregate("a", 3, (6,)), Evaluate("a", 3)]
    assert not progress.open
    assert progress.finished is None, "its last model is still to be judged"
    assert progress.judge(found(progress, 2)) is None, "that was the model before"
    assert progress.judge(found(progress, 3)) is FinishReason.ROUNDS


@pytest.mark.parametrize(
    ("higher", "metric", "reason"),
    [
        (True, 0.8, FinishReason.TARGET),  # at the target is there
        (True, 0.79, None),
        (False, 0.8, FinishReason.TARGET),
        (False, 0.81, None),
    ],
)
def test_a_target_is_reached_from_its_own_side(
    higher: bool, metric: float, reason: FinishReason | None
) -> None:
    progress = begun(target=0.8, higher_is_better=higher)
    assert progress.judge(found(progress, 0, metric)) is reason
    assert begun().judge(found(progress, 0, metric)) is None, "no target, nothing to reach"


@pytest.mark.parametrize(("metric", "loss"), [(math.nan, 1.0), (0.9, math.inf)])
def test_what_is_not_finite_has_diverged_whatever_the_target(metric: float, loss: float) -> None:
    progress = begun(target=0.8)
    assert progress.judge(found(progress, 0, metric, loss)) is FinishReason.DIVERGED


def test_a_finished_task_is_judged_no_more() -> None:
    progress = begun(target=0.8)
    assert progress.finish(FinishReason.REMOVED) == Finish("a", FinishReason.REMOVED)
    assert progress.judge(found(progress, 0, 0.9)) is None
    assert progress.finished is FinishReason.REMOVED


def test_time_is_up_while_the_model_is_being_evaluated() -> None:
    progress = begun()
    assert progress.stop(StopReason.TIME) is None, "the answer is on its way, and decides"
    assert not progress.open
    assert progress.judge(found(progress, 0)) is FinishReason.TIME


def test_time_is_up_and_the_model_is_not_evaluated_yet() -> None:
    progress = begun(evaluate_every=5)
    progress.judge(found(progress, 0))
    progress.advance([1])
    assert progress.stop(StopReason.TIME) == Evaluate("a", 1)
    assert progress.finished is None
    assert progress.judge(found(progress, 1)) is FinishReason.TIME


def test_time_is_up_and_the_model_is_known() -> None:
    progress = begun()
    progress.judge(found(progress, 0))
    assert progress.stop(StopReason.TIME) == Finish("a", FinishReason.TIME)
    assert progress.finished is FinishReason.TIME


def test_an_older_answer_does_not_hide_a_newer_one() -> None:
    progress = begun()
    progress.advance([1])
    progress.judge(found(progress, 1))
    progress.judge(found(progress, 0))
    assert progress.stop(StopReason.TIME) == Finish("a", FinishReason.TIME)


def test_the_round_limit_came_before_the_time_limit() -> None:
    progress = begun(max_rounds=1)
    progress.advance([1])
    assert progress.stop(StopReason.TIME) is None
    assert progress.judge(found(progress, 1)) is FinishReason.ROUNDS


@pytest.mark.parametrize("reason", [r for r in StopReason if r is not StopReason.TIME])
def test_other_reasons_end_it_at_once(reason: StopReason) -> None:
    progress = begun()
    assert progress.stop(reason) == Finish("a", FinishReason(reason.value))
    assert not progress.open


def test_a_target_that_must_be_held_is_judged_by_the_mean_of_evaluations() -> None:
    progress = begun(target=0.8, hold=3, evaluate_every=1)
    values = [0.95, 0.7, 0.6, 0.85, 0.96]  # lucky once; then means of 0.75, 0.72, 0.803
    reasons = []
    for version, value in enumerate(values):
        if version:
            progress.advance([version])
        reasons.append(progress.judge(found(progress, version, value)))
    assert reasons == [None, None, None, None, FinishReason.TARGET]
