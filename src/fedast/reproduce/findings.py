"""A measure's finding, and what measures share: pairing by seed, text with deviations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from fedast.records.run import TaskResult
from fedast.reproduce.claims import Claim
from fedast.reproduce.results import Axis, Key, Missing, StudyResults, Unreached
from fedast.reproduce.verdicts import Verdict, compare_number


@dataclass(frozen=True)
class Finding:
    ours: str
    verdict: Verdict
    variants: tuple[Key, ...]
    note: str = ""
    conclusive: bool = False
    """Whether missing runs could not change the verdict any more."""
    seeds: int | None = None
    """How many it was computed from; None: those that every variant has."""


def number(claim: Claim) -> str:
    if not isinstance(claim.paper, float | int):
        return claim.paper or ""
    return f"{claim.paper:g} %" if "gain" in claim.measure else f"{claim.paper:g}"


def spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def with_spread(mean: float, values: Sequence[float], unit: str = "", digits: int = 1) -> str:
    deviation = spread(values)
    middle = f"{mean:.{digits}f}"
    return middle + (f" ± {deviation:.{digits}f}" if deviation is not None else "") + unit


def per_seed(differences: Sequence[float], unit: str = "", digits: int = 1) -> str:
    return "by seed " + ", ".join(f"{value:+.{digits}f}" for value in differences) + unit


def against(
    claim: Claim, mean: float, deviation: float | None, freedom: int, seeds: int
) -> tuple[Verdict, str]:
    if not isinstance(claim.paper, float | int):
        return "agrees", ""
    found = compare_number(
        mean, deviation, freedom, seeds, claim.paper, claim.paper_seeds,
        points="gain" in claim.measure,
    )  # fmt: skip
    return found.verdict, found.note


def sides(results: StudyResults, claim: Claim) -> tuple[Key, Key]:
    return results.variant(claim.at), results.variant({**claim.at, **claim.over})


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[tuple[float, float]]:
    """The values of each seed that both have."""
    found = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    if not found:
        raise Missing("a common seed")
    return found


def along(results: StudyResults, claim: Claim) -> Axis:
    return next(axis for axis in results.axes if axis.name == claim.along)


def columns(values: Sequence[Mapping[int, float]]) -> list[list[float]]:
    """For each mapping, the values of the seeds that all have."""
    seeds = sorted(set.intersection(*(set(each) for each in values)))
    if not seeds:
        raise Missing("a common seed")
    return [[each[seed] for seed in seeds] for each in values]


def others(results: StudyResults, key: Key) -> str:
    """The labels of a variant, without its series."""
    series = results.axis("series")
    pairs = zip(results.axes, key, strict=True)
    return ", ".join(label for axis, label in pairs if axis is not series)


def every_run(
    results: StudyResults,
    key: Key,
    of: Callable[[TaskResult], float | None],
    task: str | None,
    *,
    without: Collection[int] = (),
) -> dict[int, float]:
    """Values by seed, except seeds in ``without``; ``Unreached`` if any other run has none."""
    values, runs = results.values(key, of, task), results.runs_of(key)
    short = results.runs[key].keys() - values.keys() - set(without)
    if short:
        raise Unreached(f"no value in {len(short)} of {len(runs)} runs", key)
    return {seed: value for seed, value in values.items() if seed not in without}
