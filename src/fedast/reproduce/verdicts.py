"""Verdicts over a few seeds: agrees, cannot be told, does not agree.

Two runs with the same seed share clients, data and delays, so they are compared in pairs
wherever both exist. The test is Student's t at 95 %.

A *number* of the paper is inside what seeds explain if ours differs from it by no more than
``t s sqrt(1/n + 1/k)``, where ``s`` is our standard deviation over ``n`` seeds and the paper's mean
of ``k`` runs is assumed to scatter as ours does (the paper gives no deviations). Inside and near,
it agrees; inside but further off, it cannot be told; outside, it does not agree.

A *statement* is about differences that should be above zero, or within a tolerance. One that
holds by more than seeds explain (one-sided, 95 %) agrees, one that fails by more than they explain
does not, and the rest cannot be told. Where one of several candidates is selected first, the level
is divided by the number of candidates (Bonferroni).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal[
    "agrees", "cannot be told", "does not agree", "partly run", "not run", "not compared"
]

NEAR = 0.10
"""A number within this fraction of the paper's is near it."""
NEAR_POINTS = 4.0
"""Percentages (gains, accuracies) within this many points are near."""


def quantile(freedom: float, *, sides: Literal[1, 2] = 2, among: int = 1) -> float:
    """Student's t for 95 %, for one of ``among`` comparisons."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - 0.05 / sides / among))


def explained(values: Sequence[float], *, sides: Literal[1, 2] = 2, among: int = 1) -> float | None:
    """How far from zero the mean of such values may be by chance; None for a single value."""
    if len(values) < 2:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values))
    return quantile(len(values) - 1, sides=sides, among=among) * error


@dataclass(frozen=True)
class NumberVerdict:
    verdict: Verdict
    note: str


def compare_number(
    ours: float,
    deviation: float | None,
    freedom: int,
    seeds: int,
    paper: float,
    paper_runs: int,
    *,
    points: bool,
) -> NumberVerdict:
    """``deviation`` is the standard deviation over seeds, with ``freedom`` degrees of freedom."""
    if deviation is None:
        return NumberVerdict("cannot be told", "one seed: no deviation")
    noise = quantile(freedom) * deviation * math.sqrt(1 / seeds + 1 / paper_runs)
    off = ours - paper
    note = f"{off:+.1f}, seeds explain ±{noise:.1f}"
    if abs(off) > noise:
        return NumberVerdict("does not agree", note)
    near = NEAR_POINTS if points else NEAR * abs(paper)
    return NumberVerdict("agrees" if abs(off) <= near else "cannot be told", note)


def above_zero(differences: Sequence[float], *, among: int = 1) -> Verdict:
    """Whether differences by seed that should be positive are."""
    noise = explained(differences, sides=1, among=among)
    if noise is None:
        return "cannot be told"
    mean = statistics.fmean(differences)
    if mean - noise > 0:
        return "agrees"
    return "does not agree" if mean + noise < 0 or (noise == 0 and mean <= 0) else "cannot be told"


def within(differences: Sequence[float], tolerance: float) -> Verdict:
    """Whether differences by seed that should be small are."""
    noise = explained(differences, sides=1)
    if noise is None:
        return "cannot be told"
    mean = abs(statistics.fmean(differences))
    if mean + noise <= tolerance:
        return "agrees"
    return "does not agree" if mean - noise > tolerance else "cannot be told"


def all_above_zero(groups: Sequence[Sequence[float]]) -> list[Verdict]:
    """A verdict for each of several groups that should all be positive.

    Whether one of them fails is tested with the pooled deviation, since a few seeds say little
    about a single group's, and at a level divided by the number of groups.
    """
    known = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in known)
    squares = sum((len(values) - 1) * statistics.variance(values) for values in known)
    found: list[Verdict] = []
    for values in groups:
        verdict = above_zero(values)
        if verdict != "agrees" and freedom:
            error = math.sqrt(squares / freedom / len(values))
            noise = quantile(freedom, sides=1, among=len(groups)) * error
            worst = statistics.fmean(values) + noise
            verdict = "does not agree" if worst < 0 or worst == noise == 0 else "cannot be told"
        found.append(verdict)
    return found


def all_hold(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a claim with several parts: that of the worst."""
    found = set(verdicts)
    worst: Verdict
    for worst in ("does not agree", "cannot be told"):
        if worst in found:
            return worst
    return "agrees"


def rising(columns: Sequence[Sequence[float]]) -> Verdict:
    """Whether values (one column per step, over the same seeds) rise or stay.

    They do if the means do and the last column is above the first by more than seeds explain;
    they do not if a step down is more than seeds explain.
    """
    steps = [
        [after - before for before, after in zip(a, b, strict=True)]
        for a, b in itertools.pairwise(columns)
    ]
    down = [above_zero([-value for value in step], among=len(steps)) for step in steps]
    overall = above_zero([b - a for a, b in zip(columns[0], columns[-1], strict=True)])
    if "agrees" in down or overall == "does not agree":
        return "does not agree"
    means = [statistics.fmean(column) for column in columns]
    monotone = all(a <= b for a, b in itertools.pairwise(means))
    return "agrees" if monotone and overall == "agrees" else "cannot be told"
