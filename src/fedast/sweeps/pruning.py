"""When a trial is stopped because it cannot win.

**exact**, for times (``finish_time``, ``time_to_target``) that are to be small. A run under way at
simulated time t will not end before t, so its number is at least t; that of a run that has not
begun is at least 0, and that of a run that has ended is known. A trial is stopped when the mean of
these over its seeds is above the value of the best finished trial. Its value would have been above
it too: the winner is never stopped, nor one that ties with it.

**median**, for ``final``: a trial is stopped when, at simulated time t >= ``after``, at least
``trials`` others are complete and its latest evaluations are worse than the median of what those
had at t with the same seed. That is a guess, and may stop a slow starter that would have won.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from pydantic import Field

from fedast.parts.errors import ConfigError
from fedast.parts.options import Section
from fedast.parts.parsing import parse_section
from fedast.records.run import RunResult
from fedast.run.batch import Pulse
from fedast.sweeps.objective import Objective

Rule: TypeAlias = Literal["exact", "median", "off"]


class Prune(Section):
    """The ``prune`` of a file."""

    rule: Rule = "exact"
    trials: int = Field(5, ge=1)
    """``median``: so many trials must be complete."""
    after: float = Field(0.0, ge=0, strict=False)
    """``median``: not before this simulated time."""


def prune_of(given: Any, objective: Objective) -> Prune:
    """From what a file says. What it leaves open is exact where that is possible, else off."""
    exact = objective.value in ("finish_time", "time_to_target")
    exact = exact and objective.direction == "minimize"
    if given is None:
        return Prune(rule="exact" if exact else "off")
    table = {"rule": given} if isinstance(given, str) else given
    prune = parse_section(Prune, table, "prune")
    if prune.rule == "exact" and not exact:
        raise ConfigError(
            "prune",
            "the exact rule is for finish_time and time_to_target, minimized; "
            'use "median" (for final) or "off"',
        )
    if prune.rule == "median" and objective.value != "final":
        raise ConfigError("prune", "the median rule is for the objective final")
    return prune


def cannot_win(bounds: Iterable[float], best: float | None) -> bool:
    """The exact rule. ``bounds``: for each seed, what its number is at least."""
    return best is not None and statistics.fmean(bounds) > best


def falls_behind(
    prune: Prune,
    objective: Objective,
    pulse: Pulse,
    others: Mapping[int, RunResult],
) -> float | None:
    """The median rule: the run's latest number if it is to be stopped.

    ``others``: runs with the same seed, by trial.
    """
    latest = objective.latest(pulse)
    if latest is None or pulse.time < prune.after or len(others) < prune.trials:
        return None
    there = [
        value
        for result in others.values()
        if (value := objective.at(result, pulse.time)) is not None
    ]
    if len(there) < prune.trials:
        return None
    return latest if objective.better(statistics.median(there), latest) else None
