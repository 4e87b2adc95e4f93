"""The best value of a sweep, and whether seeds can tell it from the paper's choice."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping

from fedast.reproduce.claims import Claim
from fedast.reproduce.final_measures import final_value
from fedast.reproduce.findings import Finding, along, every_run, number
from fedast.reproduce.results import Key, Missing, StudyResults, Unreached
from fedast.reproduce.verdicts import NEAR, NEAR_POINTS, above_zero, explained

_MANY = 10
"""Up to this many values, a remark lists all of them."""


def best(results: StudyResults, claim: Claim) -> Finding:
    """The label with the shortest time. The paper's does not agree if another is faster by more
    than seeds explain, and agrees if it is the fastest or near."""
    axis = along(results, claim)
    keys = {label: results.variant({**claim.at, axis.name: label}) for label in axis.labels}
    seeds = results.common_seeds(list(keys.values()))
    if not seeds:
        raise Missing("a common seed")
    reached = {
        label: key
        for label, key in keys.items()
        if all(t is not None for s, t in results.times(key, claim.task).items() if s in seeds)
    }
    if not reached:
        raise Unreached("no target was reached", *keys.values())
    times = {
        label: {s: t for s, t in results.at_least(key, claim.task).items() if s in seeds}
        for label, key in keys.items()
    }
    means = {label: statistics.fmean(times[label].values()) for label in reached}
    return _judge_best(
        claim, {label: {s: -t for s, t in by.items()} for label, by in times.items()},
        able=means.keys(), variants=tuple(keys.values()),
        near=lambda best, theirs: -theirs <= (1 + NEAR) * -best,
        listed=lambda best, theirs: f"times {_listed(means, best, theirs)}",
        shown=lambda value: f"{value:+.0f}",
    )  # fmt: skip


def best_final(results: StudyResults, claim: Claim) -> Finding:
    """The label with the highest final value, judged in the same way."""
    axis = along(results, claim)
    keys = {label: results.variant({**claim.at, axis.name: label}) for label in axis.labels}
    seeds = results.common_seeds(list(keys.values()))
    finals = {}
    for label, key in keys.items():
        values = every_run(results, key, final_value, claim.task)
        finals[label] = {seed: 100 * value for seed, value in values.items() if seed in seeds}
    if not seeds:
        raise Missing("a common seed")
    means = {label: statistics.fmean(by.values()) for label, by in finals.items()}

    def listed(best: str, theirs: str) -> str:
        return ", ".join(f"{label}: {mean:.1f} %" for label, mean in means.items())

    return _judge_best(
        claim, finals, able=means.keys(), variants=tuple(keys.values()),
        near=lambda best, theirs: best - theirs <= NEAR_POINTS,
        listed=listed, shown=lambda value: f"{value:+.1f}",
    )  # fmt: skip


def _judge_best(
    claim: Claim,
    values: Mapping[str, Mapping[int, float]],
    *,
    able: Collection[str],
    variants: tuple[Key, ...],
    near: Callable[[float, float], bool],
    listed: Callable[[str, str], str],
    shown: Callable[[float], str],
) -> Finding:
    """``values`` by label and seed, larger is better; ``able`` are the labels that may be best."""
    means = {label: statistics.fmean(by.values()) for label, by in values.items()}
    best = max(able, key=lambda label: means[label])
    theirs = number(claim).removesuffix(" %")
    seeds = len(values[best])
    note = listed(best, theirs)
    if theirs not in able:
        note += f"; {theirs} did not get there"
    if seeds < 2:
        return Finding(best, "cannot be told", variants, f"{note}; one seed", seeds=seeds)
    if theirs == best:
        return Finding(best, "agrees", variants, note, seeds=seeds)
    better = {
        label: [values[label][seed] - values[theirs][seed] for seed in sorted(values[theirs])]
        for label in able
        if label != theirs
    }
    among = max(1, len(values) - 1)
    beaten = [label for label, by in better.items() if above_zero(by, among=among) == "agrees"]
    noise = explained(better[best], sides=1, among=among)
    each = ", ".join(shown(value) for value in better[best])
    note += f"; {best} better by seed {each}, seeds explain {shown(noise or 0.0)}"
    if beaten:
        return Finding(best, "does not agree", variants, note, seeds=seeds)
    close = theirs in able and near(means[best], means[theirs])
    return Finding(best, "agrees" if close else "cannot be told", variants, note, seeds=seeds)


def _listed(means: Mapping[str, float], best: str, theirs: str) -> str:
    """All times; if there are many, only the best and the paper's."""
    if len(means) <= _MANY:
        return ", ".join(f"{label}: {mean:.0f}" for label, mean in means.items())
    text = f"{best}: {means[best]:.0f}"
    if theirs in means and theirs != best:
        place = 1 + sum(mean < means[theirs] for mean in means.values())
        text += f", {theirs}: {means[theirs]:.0f} (number {place} of {len(means)})"
    return text
