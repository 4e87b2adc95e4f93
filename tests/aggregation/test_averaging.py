"""The running average of a task's models: its formula, and what is evaluated."""

from __future__ import annotations

import pytest
import torch

from fedast.aggregation.averaging import Averaging, RunningAverage
from fedast.aggregation.settings import ServerSide


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
