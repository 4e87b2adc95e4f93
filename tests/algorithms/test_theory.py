"""Theorem 1, Corollary 1 and the wall-clock model against numbers worked out by hand."""

from __future__ import annotations

import pytest

from fedast.algorithms.theory import (
    Moving,
    Problem,
    Setting,
    conditions,
    corollary,
    error_terms,
    fill_time,
    synchronous_round,
)

SETTING = Setting(
    local_steps=4, buffer_size=4, active_requests=16, client_lr=0.01, server_lr=0.5, staleness=9
)


def test_conditions() -> None:
    """sqrt(tau b) = 4; 6 tau sqrt(tau b) = 96 and 4 tau sqrt(tau R gamma) = 16 sqrt(576) = 384."""
    found = conditions(SETTING, Problem(smoothness=2.0))
    assert found.server_limit == pytest.approx(4.0)
    assert found.client_limit == pytest.approx(1 / (2 * 384))
    assert found.smoothness_limit == pytest.approx(1 / (0.01 * 384))
    fresh = Setting(**{**vars(SETTING), "staleness": 0.0})
    assert conditions(fresh, Problem()).client_limit == pytest.approx(1 / 96)


def test_error_terms() -> None:
    problem = Problem(smoothness=2.0, gap=3.0, local_variance=1.0, heterogeneity=0.5)
    found = error_terms(SETTING, problem, rounds=100)
    assert found.optimisation == pytest.approx(3.0 / (100 * 0.01 * 0.5 * 4))
    # (2 * 0.01 * 0.5 / 4 + 4 * 0.0001 * 4) (1 + 4 * 0.5)
    assert found.averaging == pytest.approx((0.0025 + 0.0016) * 3.0)
    # 4 * 0.25 * 0.0001 * 4 * 16 / 16 (1 + 4 * 16 * 0.5)
    assert found.asynchrony == pytest.approx(0.0004 * 33.0)


def test_option_d_has_conditions_of_its_own() -> None:
    """For the least b, the most b and R: kappa^1.5 = (9 / 1)^1.5 = 27; sqrt(tau b_min) = 2;
    24 tau sqrt(tau b_max) = 576; 16 tau sqrt(tau R_max gamma) = 64 * 36 = 2304."""
    moving = Moving(min_buffer=1, max_buffer=9, max_requests=36)
    found = conditions(SETTING, Problem(smoothness=2.0), moving)
    assert found.server_limit == pytest.approx(2.0 / 27)
    assert found.client_limit == pytest.approx(1 / (2 * 27 * 2304))
    assert found.smoothness_limit == pytest.approx(1 / (0.01 * 27 * 2304))
    fresh = Setting(**{**vars(SETTING), "staleness": 0.0})
    assert conditions(fresh, Problem(), moving).client_limit == pytest.approx(1 / (27 * 576))


def test_option_d_has_terms_of_its_own() -> None:
    problem = Problem(smoothness=2.0, gap=3.0, local_variance=1.0, heterogeneity=0.5)
    moving = Moving(min_buffer=2, max_buffer=8, max_requests=32)
    found = error_terms(SETTING, problem, rounds=100, moving=moving)
    assert found.optimisation == pytest.approx(4 * 3.0 / (100 * 0.01 * 0.5 * 4))
    # (64 * 2 * 0.01 * 0.5 / 2 + 16 * 4 * 0.0001 * 4) (1 + 4 * 0.5)
    assert found.averaging == pytest.approx((0.32 + 0.0256) * 3.0)
    # 16 * 4 * 0.25 * 0.0001 * 4 * 32 / 4 (1 + 4 * 32 * 0.5)
    assert found.asynchrony == pytest.approx(0.0512 * 65.0)


def test_the_terms_grow_with_smoothness_as_they_should() -> None:
    """Linearly in L where it is averaged, otherwise with its square."""
    found = [error_terms(SETTING, Problem(smoothness=smooth), 100) for smooth in (1.0, 3.0)]
    assert found[1].optimisation == found[0].optimisation
    # (0.01 * 0.5 / 4 L + 0.0001 * 4 L^2) (1 + 4)
    assert found[1].averaging == pytest.approx((0.00125 * 3 + 0.0004 * 9) * 5)
    assert found[1].asynchrony == pytest.approx(9 * found[0].asynchrony)


def test_corollary() -> None:
    found = corollary(SETTING, Problem(smoothness=2.0), rounds=400)
    assert found.client_lr == pytest.approx(1 / (4 * 2 * 20))
    assert found.server_lr == pytest.approx(4.0)
    assert found.least_rounds == 4 * 16 * 16 * 9
    fresh = Setting(**{**vars(SETTING), "staleness": 0.0})
    assert corollary(fresh, Problem(), rounds=400).least_rounds == 4 * 36 * 4


def test_round_times() -> None:
    assert fill_time(3, 96, mean_work=8.0) == pytest.approx(0.25)
    assert synchronous_round(4, mean_work=12.0) == pytest.approx(12 + 6 + 4 + 3)
