"""The running average of a task's models: its formula, and what is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch

from fedast.aggregation.averaging import Averaging, RunningAverage
from fedast.aggregation.settings import ServerSide
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.learner.protocol import Evaluation
from fedast.learner.replay import RecordingLearner, ResumableLearner
from fedast.records.run import RunResult
from fedast.run.execute import execute

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_formula() -> None:
    average = RunningAverage(2.0, torch.tensor([9.0]))
    average.follow(torch.tensor([1.0]), 1)
    assert average.value.item() == 1.0, "c = 1: nothing is left of the initial model"
    average.follow(torch.tensor([5.0]), 2)
    assert average.value.item() == pytest.approx(1.0 + 0.75 * 4.0)  # c = 3 / 4


@pytest.mark.parametrize("exponent", [0.0, 12.0])
def test_it_covers_a_part_of_the_rounds_that_grows_with_them(exponent: float) -> None:
    """Of models that are the number of their round, it is about t (p + 1) / (p + 2)."""
    average = RunningAverage(exponent, torch.zeros(1, dtype=torch.float64))
    for number in range(1, 2001):
        average.follow(torch.tensor([float(number)], dtype=torch.float64), number)
    assert average.value.item() == pytest.approx(2000 * (exponent + 1) / (exponent + 2), rel=0.01)


def test_an_algorithm_s_defaults_hold_where_a_task_says_nothing() -> None:
    defaults = {"averaging": {"use": "always"}, "rate_control": {"use": "always"}}
    assert ServerSide().with_defaults(defaults).averaging.use == "always"
    own = ServerSide(averaging=Averaging(use="never")).with_defaults(defaults)
    assert (own.averaging.use, own.rate_control.use) == ("never", "always")
    side = ServerSide()
    assert side.with_defaults({}) is side


def run(average: bool, raw_every: int) -> RunResult:
    """Training never sees the average, so all of these train the same models."""
    path = EXAMPLES / "quickstart.toml"
    settings = [
        "simulation.max_time=10", "simulation.clients=30", "simulation.until=time",
        f"algorithm.average={str(average).lower()}",
    ]  # fmt: skip
    if average:
        settings += [f"tasks.{i}.averaging={{use='always', raw_every={raw_every}}}" for i in (0, 1)]
    return execute(resolve(load(path, settings, algorithm="fedast-plus"), path.parent), None).result


def test_the_newest_model_has_a_curve_beside_the_average() -> None:
    """It is the curve of the run without an average; and what decides is as if it were not there"""
    plain, both, some, none = run(False, 0), run(True, 1), run(True, 3), run(True, 0)
    assert both.raw_curves == plain.curves
    assert both.curves == some.curves == none.curves != plain.curves
    assert some.raw_curves == {task: curve[::3] for task, curve in both.raw_curves.items()}
    assert all(len(curve) > 3 for curve in both.curves.values())
    assert plain.raw_curves == none.raw_curves == {}


def test_answers_from_before_there_were_raw_curves_are_replayed() -> None:
    class Learner:
        def evaluate(self, task: str) -> Evaluation:
            return Evaluation(0.9, 0.1, raw=(0.8, 0.2))

    recording = RecordingLearner(cast("ResumableLearner", Learner()))
    found = recording.evaluate("a")
    again = RecordingLearner(cast("ResumableLearner", Learner()), [0.5, 0.7, *recording.take()])
    assert again.evaluate("a") == Evaluation(0.5, 0.7)
    assert again.evaluate("a") == found
