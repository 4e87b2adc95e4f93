"""What the paper's analysis says about a setting (Theorem 1, Corollary 1, section 4).

All bounds are up to constants: the paper states them in O-notation, and so the
terms here are those inside the O, to be compared with each other and over
settings, not read as errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One task: tau, b, R, eta_c, eta_s, and gamma, the largest staleness of its updates."""

    local_steps: int
    buffer_size: int
    active_requests: int
    client_rate: float
    server_rate: float
    staleness: float


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is known of the losses: smoothness L, the gap f(x0) - min f, the variance of a
    stochastic gradient and the distance of local gradients from the global one (both squared)."""

    smoothness: float = 1.0
    gap: float = 1.0
    local_variance: float = 1.0
    heterogeneity: float = 1.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """Theorem 1's conditions on the learning rates."""

    server_limit: float
    """eta_s <= sqrt(tau b)"""
    client_limit: float
    """eta_c <= min{1 / (6 L tau sqrt(tau b)), 1 / (4 L tau sqrt(tau R gamma))}"""
    smoothness_limit: float
    """The largest L for which the client rate satisfies its condition."""


def conditions(setting: Setting, problem: Problem) -> Conditions:
    tau, b = setting.local_steps, setting.buffer_size
    stale = setting.active_requests * max(setting.staleness, 0.0)
    # Both are of the form 1 / (L c); the larger c binds.
    scale = max(6 * tau * math.sqrt(tau * b), 4 * tau * math.sqrt(tau * stale))
    return Conditions(
        server_limit=math.sqrt(tau * b),
        client_limit=1.0 / (problem.smoothness * scale),
        smoothness_limit=1.0 / (setting.client_rate * scale),
    )


@dataclass(frozen=True, slots=True)
class ErrorTerms:
    """The three terms of Theorem 1's bound on the mean squared gradient norm."""

    optimisation: float
    """FedAvg error I: gap / (T eta_c eta_s tau)"""
    averaging: float
    """FedAvg error II: (L eta_c eta_s / b + L^2 eta_c^2 tau) (sigma_l^2 + tau sigma_g^2)"""
    asynchrony: float
    """L^2 eta_s^2 eta_c^2 tau R / b^2 (sigma_l^2 + tau R sigma_g^2)"""


def error_terms(setting: Setting, problem: Problem, rounds: int) -> ErrorTerms:
    tau, b, r = setting.local_steps, setting.buffer_size, setting.active_requests
    c, s, smooth = setting.client_rate, setting.server_rate, problem.smoothness
    local, across = problem.local_variance, problem.heterogeneity
    return ErrorTerms(
        optimisation=problem.gap / (rounds * c * s * tau),
        averaging=(smooth * c * s / b + smooth**2 * c**2 * tau) * (local + tau * across),
        asynchrony=smooth**2 * s**2 * c**2 * tau * r / b**2 * (local + tau * r * across),
    )


@dataclass(frozen=True, slots=True)
class CorollaryRates:
    """Corollary 1: the rates at which the bound falls as 1 / sqrt(T)."""

    client_rate: float
    """1 / (tau L sqrt(T))"""
    server_rate: float
    """sqrt(tau b)"""
    least_rounds: int
    """T >= tau max{36 b, 16 R gamma}"""


def corollary(setting: Setting, problem: Problem, rounds: int) -> CorollaryRates:
    tau, b = setting.local_steps, setting.buffer_size
    return CorollaryRates(
        client_rate=1.0 / (tau * problem.smoothness * math.sqrt(rounds)),
        server_rate=math.sqrt(tau * b),
        least_rounds=math.ceil(tau * max(36 * b, 16 * setting.active_requests * setting.staleness)),
    )


def fill_time(buffer_size: int, active_requests: int, mean_work: float) -> float:
    """Expected time of a round of FedAST if work takes Exp(1 / mean) and nobody queues."""
    return buffer_size / active_requests * mean_work


def synchronous_round(requests: int, mean_work: float) -> float:
    """Expected time of a synchronous round: the slowest of all requests, H_n / lambda."""
    return mean_work * math.fsum(1 / k for k in range(1, requests + 1))
