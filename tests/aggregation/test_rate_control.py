"""Rate control on models whose dynamics are known: a line, and a spring with a delay."""

from __future__ import annotations

import math
from collections import deque

import pytest
import torch
from pydantic import ValidationError

from fedast.aggregation.rate_control import RateControl, RateController
from fedast.aggregation.server import Server
from fedast.aggregation.settings import ServerSide

DELAY = 10
SIZE = 200


def delayed(kappa: float, control: RateController | None, rounds: int = 600) -> list[float]:
    """x <- x - (kappa / delay) x(t - delay), which is unstable for kappa above pi/2."""
    models = deque([torch.ones(SIZE)] * (DELAY + 1), maxlen=DELAY + 1)
    sizes = []
    for _ in range(rounds):
        step = kappa / DELAY * models[0]
        step = step if control is None else control.scale(step, DELAY)
        models.append(models[-1] - step)
        sizes.append(float(models[-1].norm()))
    return sizes


def controller(**options: float) -> RateController:
    return RateController(RateControl(use="always", **options), torch.zeros(SIZE), SIZE)


def factor(control: RateController) -> float:
    return math.exp(float(control.state()["log_factor"]))


def test_it_saves_a_model_that_would_be_lost() -> None:
    assert delayed(2.2, None)[-1] > 1e3
    control = controller()
    assert delayed(2.2, control)[-1] < 1.0
    assert 0.25 <= factor(control) < 0.9


def test_it_leaves_a_steady_model_alone() -> None:
    control = controller()
    assert delayed(0.3, control) == delayed(0.3, None)  # above 1/e it would swing a little
    assert factor(control) == 1.0


def test_noise_is_no_oscillation() -> None:
    torch.manual_seed(1)
    control = controller()
    for _ in range(500):
        control.scale(torch.randn(SIZE), DELAY)
    assert factor(control) == 1.0


def test_where_there_is_room_it_may_rise() -> None:
    control = controller(highest=1.5)
    for _ in range(400):
        control.scale(torch.ones(SIZE), DELAY)
    assert factor(control) == pytest.approx(1.5)
    slow = controller(highest=1.5, rise=0.001)
    for _ in range(400):
        slow.scale(torch.ones(SIZE), DELAY)
    assert 1.0 < factor(slow) < 1.2


def test_the_bounds_and_the_tolerance_hold() -> None:
    tight, loose = controller(lowest=0.8), controller(tolerance=1.0)
    delayed(3.0, tight, 300)
    delayed(3.0, loose, 300)
    assert factor(tight) == pytest.approx(0.8)
    assert factor(loose) == pytest.approx(1.0)
    gentle = controller(gain=0.01)
    delayed(3.0, gentle, 300)
    assert factor(tight) < factor(gentle) < 1.0


def test_a_model_that_is_lost_does_not_break_it() -> None:
    control = controller()
    for value in [1.0] * 60 + [math.nan] * 60:
        control.scale(torch.full((SIZE,), value), DELAY)
    assert factor(control) == pytest.approx(0.25)


def test_it_goes_on_from_its_state_and_needs_no_more_than_some_parameters() -> None:
    torch.manual_seed(2)
    side = ServerSide(rate_control=RateControl(use="always", highest=2.0))
    size = 120_000

    def server() -> Server:
        return Server(side, lr=0.5, scale=1.0, initial=torch.zeros(size), trained=size, clients=3)

    first, second = server(), server()
    assert sum(value.numel() for value in first.state().values()) < 4 * size
    for _ in range(40):
        first.step([0], torch.randn(1, size), None, [4])
    second.restore({name: value.clone() for name, value in first.state().items()})
    for _ in range(20):
        updates = torch.randn(1, size)
        assert torch.equal(
            first.step([0], updates, None, [4]), second.step([0], updates, None, [4])
        )


def test_bounds_of_its_options() -> None:
    with pytest.raises(ValidationError):
        RateControl(lowest=0.0)
    with pytest.raises(ValidationError):
        RateControl(highest=0.5)
