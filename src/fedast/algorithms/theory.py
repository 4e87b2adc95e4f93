"""What the paper's analysis says about a setting (Theorem 1, Corollary 1, section 4).

Theorem 1 is about option S: R and b stay as they are. Option D has a theorem of its own
(appendix), in which b moves between b_min and b_max and kappa = b_max / b_min makes every
condition and term worse: ``Moving`` carries that range, and None stands for option S. That
theorem's statement leaves a factor kappa out of its first term which its proof has; it is kept
here. Corollary 1 is about option S only.

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
    client_lr: float
    server_lr: float
    staleness: float


@dataclass(frozen=True, slots=True)
class Moving:
    """Option D: what a task's buffer size and active requests can become."""

    min_buffer: int
    max_buffer: int
    max_requests: int

    @property
    def skew(self) -> float:
        """kappa"""
        return self.max_buffer / self.min_buffer


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
    """The conditions on the learning rates."""

    server_limit: float
    """eta_s <= kappa^-3/2 sqrt(tau b); kappa is 1 with option S"""
    client_limit: float
    """eta_c <= kappa^-3/2 min{1 / (f L tau sqrt(tau b)), 1 / (s L tau sqrt(tau R gamma))},
    with f = 6, s = 4 for option S and f = 24, s = 16 for option D"""
    smoothness_limit: float
    """The largest L for which the client rate satisfies its condition."""


def conditions(setting: Setting, problem: Problem, moving: Moving | None = None) -> Conditions:
    tau, requests = setting.local_steps, setting.active_requests
    least = most = setting.buffer_size
    fresh_factor, stale_factor, worse = 6, 4, 1.0
    if moving is not None:  # what must hold whatever b and R become
        least, most, requests = moving.min_buffer, moving.max_buffer, moving.max_requests
        fresh_factor, stale_factor, worse = 24, 16, moving.skew**1.5
    stale = requests * max(setting.staleness, 0.0)
    # Both are of the form 1 / (L c); the larger c binds.
    scale = worse * tau * max(
        fresh_factor * math.sqrt(tau * most), stale_factor * math.sqrt(tau * stale)
    )  # fmt: skip
    return Conditions(
        server_limit=math.sqrt(tau * least) / worse,
        client_limit=1.0 / (problem.smoothness * scale),
        smoothness_limit=1.0 / (setting.client_lr * scale),
    )


@dataclass(frozen=True, slots=True)
class ErrorTerms:
    """The three terms of the bound on the mean squared gradient norm.

    With option D, b is b_min and R is R_max; with option S, kappa is 1.
    """

    optimisation: float
    """FedAvg error I: kappa gap / (T eta_c eta_s tau)"""
    averaging: float
    """FedAvg error II:
    (kappa^3 L eta_c eta_s / b + kappa^2 L^2 eta_c^2 tau) (sigma_l^2 + tau sigma_g^2)"""
    asynchrony: float
    """kappa^2 L^2 eta_s^2 eta_c^2 tau R / b^2 (sigma_l^2 + tau R sigma_g^2)"""


def error_terms(
    setting: Setting, problem: Problem, rounds: int, moving: Moving | None = None
) -> ErrorTerms:
    tau, b, r = setting.local_steps, setting.buffer_size, setting.active_requests
    skew = 1.0
    if moving is not None:
        b, r, skew = moving.min_buffer, moving.max_requests, moving.skew
    c, s, smooth = setting.client_lr, setting.server_lr, problem.smoothness
    local, across = problem.local_variance, problem.heterogeneity
    averaged = skew**3 * smooth * c * s / b + skew**2 * smooth**2 * c**2 * tau
    stale = skew**2 * smooth**2 * s**2 * c**2 * tau * r / b**2
    return ErrorTerms(
        optimisation=skew * problem.gap / (rounds * c * s * tau),
        averaging=averaged * (local + tau * across),
        asynchrony=stale * (local + tau * r * across),
    )


@dataclass(frozen=True, slots=True)
class CorollaryRates:
    """Corollary 1: the rates at which the bound falls as 1 / sqrt(T)."""

    client_lr: float
    """1 / (tau L sqrt(T))"""
    server_lr: float
    """sqrt(tau b)"""
    least_rounds: int
    """T >= tau max{36 b, 16 R gamma}"""


def corollary(setting: Setting, problem: Problem, rounds: int) -> CorollaryRates:
    tau, b = setting.local_steps, setting.buffer_size
    return CorollaryRates(
        client_lr=1.0 / (tau * problem.smoothness * math.sqrt(rounds)),
        server_lr=math.sqrt(tau * b),
        least_rounds=math.ceil(tau * max(36 * b, 16 * setting.active_requests * setting.staleness)),
    )


def fill_time(buffer_size: int, active_requests: int, mean_work: float) -> float:
    """Expected time of a round of FedAST if work takes Exp(1 / mean) and nobody queues."""
    return buffer_size / active_requests * mean_work


def synchronous_round(requests: int, mean_work: float) -> float:
    """Expected time of a synchronous round: the slowest of all requests, H_n / lambda."""
    return mean_work * math.fsum(1 / k for k in range(1, requests + 1))
