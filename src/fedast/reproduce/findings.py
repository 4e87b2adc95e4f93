"""What a measure finds, and what measures share: pairing by seed, text with deviations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from fedast.records.compact import TaskRecord
from fedast.reproduce.results import Axis, Chapter, Claim, Key, Missing, Unreached
from fedast.reproduce.verdicts import Verdict, compare_number


@dataclass(frozen=True)
class Finding:
    ours: str
    verdict: Verdict
    cells: tuple[Key, ...]
    note: str = ""
    settled: bool = False
    """Whether runs that are missing could not change it."""
    seeds: int | None = None
    """Those that it was computed from; None: all that every cell has."""


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


def sides(chapter: Chapter, claim: Claim) -> tuple[Key, Key]:
    return chapter.cell(claim.at), chapter.cell({**claim.at, **claim.over})


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[tuple[float, float]]:
    """Of the seeds that both have."""
    found = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    if not found:
        raise Missing("a seed that both have")
    return found


def along(chapter: Chapter, claim: Claim) -> Axis:
    return next(axis for axis in chapter.axes if axis.name == claim.along)


def columns(values: Sequence[Mapping[int, float]]) -> list[list[float]]:
    """The values of the seeds that all have, one list each."""
    seeds = sorted(set.intersection(*(set(each) for each in values)))
    if not seeds:
        raise Missing("a seed that all have been run with")
    return [[each[seed] for seed in seeds] for each in values]


def others(chapter: Chapter, key: Key) -> str:
    """The labels of a cell, but for its series."""
    series = chapter.axis("series")
    pairs = zip(chapter.axes, key, strict=True)
    return ", ".join(label for axis, label in pairs if axis is not series)


def every_run(
    chapter: Chapter,
    key: Key,
    of: Callable[[TaskRecord], float | None],
    task: str | None,
    *,
    without: Collection[int] = (),
) -> dict[int, float]:
    """Values by seed, but for those ``without``; ``Unreached`` if another run has none."""
    values, runs = chapter.values(key, of, task), chapter.found(key)
    short = chapter.runs[key].keys() - values.keys() - set(without)
    if short:
        raise Unreached(f"no value in {len(short)} of {len(runs)} runs", key)
    return {seed: value for seed, value in values.items() if seed not in without}
