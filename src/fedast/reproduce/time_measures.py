"""Measures of times to target: numbers and gains, rankings and trends."""

from __future__ import annotations

import statistics

from fedast.reproduce.claims import Claim
from fedast.reproduce.findings import (
    Finding,
    against,
    along,
    columns,
    every_run,
    others,
    paired,
    sides,
    spread,
    with_spread,
)
from fedast.reproduce.results import Key, Missing, StudyResults, Unreached
from fedast.reproduce.verdicts import (
    Verdict,
    above_zero,
    all_above_zero,
    all_hold,
    rising,
    within,
)


def time(results: StudyResults, claim: Claim) -> Finding:
    key = results.variant(claim.at)
    times = results.times(key, claim.task)
    known = [time for time in times.values() if time is not None]
    if len(known) < len(times):
        ours = f"{len(times) - len(known)} of {len(times)} not reached"
        return Finding(ours, "does not agree", (key,))
    mean = statistics.fmean(known)
    verdict, note = against(claim, mean, spread(known), len(known) - 1, len(known))
    return Finding(with_spread(mean, known), verdict, (key,), note)


def gain(results: StudyResults, claim: Claim) -> Finding:
    key, over = sides(results, claim)
    try:
        gain, each = results.gains(key, over, claim.task)
    except Unreached as short:
        mine = None not in results.times(key, claim.task).values()
        return Finding(str(short), "cannot be told" if mine else "does not agree", short.variants)
    verdict, note = against(claim, gain, spread(each), len(each) - 1, len(each))
    return Finding(with_spread(gain, each, " %"), verdict, (key, over), note)


def _all_gains(
    results: StudyResults, claim: Claim
) -> tuple[dict[Key, tuple[float, list[float]]], tuple[Key, ...]]:
    """The gains of the variants with the labels of ``at`` that have been run, and the keys of all
    such variants."""
    found, variants = {}, []
    for key in results.folders:
        labels = dict(zip((axis.name for axis in results.axes), key, strict=True))
        if any(labels[name] != label for name, label in claim.at.items()):
            continue
        over = results.variant({**labels, **claim.over})
        variants += [key, over]
        try:
            found[key] = results.gains(key, over)
        except (Missing, Unreached):
            continue
    if not found:
        raise Missing("all of them")
    return found, tuple(variants)


def largest_gain(results: StudyResults, claim: Claim) -> Finding:
    """The largest of many gains. Which variant has it is partly chance, so the deviation is taken
    over each seed's own largest gain, not over the seeds of that variant."""
    gains, variants = _all_gains(results, claim)
    best = max(gains, key=lambda key: gains[key][0])
    gain, each = gains[best]
    by_seed: dict[int, list[float]] = {}
    for key, (_, values) in gains.items():
        for seed, value in zip(_gain_seeds(results, claim, key), values, strict=True):
            by_seed.setdefault(seed, []).append(value)
    largest = [max(values) for values in by_seed.values()]
    verdict, note = against(claim, gain, spread(largest), len(largest) - 1, len(each))
    names = others(results, best)
    note = f"at {names}; {note}" if names else note
    return Finding(with_spread(gain, each, " %"), verdict, variants, note)


def _gain_seeds(results: StudyResults, claim: Claim, key: Key) -> list[int]:
    """The seeds of a variant's gains, in their order."""
    labels = dict(zip((axis.name for axis in results.axes), key, strict=True))
    over = results.variant({**labels, **claim.over})
    return sorted(results.runs[key].keys() & results.runs[over].keys())


def growing_gain(results: StudyResults, claim: Claim) -> Finding:
    axis = along(results, claim)
    labels = axis.labels[::-1] if claim.backwards else axis.labels
    means, by_seed, variants = [], [], []
    for label in labels:
        key = results.variant({**claim.at, axis.name: label})
        over = results.variant({**claim.at, axis.name: label, **claim.over})
        means.append(results.gains(key, over)[0])
        seeds = _gain_seeds(results, claim, key)
        by_seed.append(dict(zip(seeds, results.gains(key, over)[1], strict=True)))
        variants += [key, over]
    text = ", ".join(f"{label}: {gain:.1f} %" for label, gain in zip(labels, means, strict=True))
    return Finding(text, rising(columns(by_seed)), tuple(variants))


def _ranked(results: StudyResults, claim: Claim) -> tuple[dict[Key, dict[int, float]], str]:
    """Times of a variant and of those it is compared with; for a missed target, the end of the
    run. And the times as text."""
    series = results.axis("series")
    assert series is not None
    keys = [results.variant({**claim.at, series.name: label}) for label in claim.others]
    keys.insert(0, results.variant(claim.at))
    times = {key: results.at_least(key) for key in keys}
    place = results.axes.index(series)
    texts = []
    for key in keys:
        missed = None in results.times(key).values()
        mean = statistics.fmean(times[key].values())
        texts.append(f"{key[place]} {'not reached' if missed else f'{mean:.0f}'}")
    return times, ", ".join(texts)


def _sooner(results: StudyResults, one: Key, other: Key, factor: float = 1.0) -> Verdict:
    """Whether ``one`` reaches its target before ``other``, by a factor.

    Where only ``other`` missed its target, the end of its run is a lower bound of its time; where
    only ``one`` did, that speaks against it; where both did, nothing is known.
    """
    missed = [
        {seed for seed, time in results.times(key).items() if time is None} for key in (one, other)
    ]
    seeds = sorted(results.runs[one].keys() & results.runs[other].keys())
    if not seeds:
        raise Missing("a common seed")
    mine, theirs = results.at_least(one), results.at_least(other)
    known = [theirs[seed] - factor * mine[seed] for seed in seeds if seed not in missed[0]]
    lost = [seed for seed in seeds if seed in missed[0] - missed[1]]
    if not known:
        return "does not agree" if lost else "cannot be told"
    verdict = above_zero(known)
    return verdict if len(known) == len(seeds) else all_hold([verdict, "cannot be told"])


def first(results: StudyResults, claim: Claim) -> Finding:
    times, text = _ranked(results, claim)
    mine, *others = times
    verdict = all_hold(_sooner(results, mine, other) for other in others)
    return Finding(text, verdict, tuple(times))


def last(results: StudyResults, claim: Claim) -> Finding:
    times, text = _ranked(results, claim)
    mine, *others = times
    verdict = all_hold(_sooner(results, other, mine, 1 + claim.tolerance) for other in others)
    return Finding(text, verdict, tuple(times))


def similar(results: StudyResults, claim: Claim) -> Finding:
    times, text = _ranked(results, claim)
    mine, *others = times.values()
    verdict = all_hold(
        within([b / a - 1 for a, b in paired(mine, other)], claim.tolerance) for other in others
    )
    if any(None in results.times(key).values() for key in times):
        verdict = all_hold([verdict, "cannot be told"])
    return Finding(text, verdict, tuple(times))


def linear(results: StudyResults, claim: Claim) -> Finding:
    """The time until the last task is done grows in proportion to the number of tasks."""
    axis = along(results, claim)
    per_task, variants, texts = [], [], []
    for label in axis.labels:
        key = results.variant({**claim.at, axis.name: label})
        if None in results.times(key).values():
            raise Unreached(f"{label}: a target was not reached", key)
        runs = results.runs[key]
        per_task.append({seed: run.finish_time / len(run.tasks) for seed, run in runs.items()})
        variants.append(key)
        texts.append(f"{label}: {statistics.fmean(run.finish_time for run in runs.values()):.0f}")
    by_label = columns(per_task)
    middles = [statistics.fmean(values) for values in zip(*by_label, strict=True)]
    verdict = all_hold(
        within([value / middle - 1 for value, middle in zip(column, middles, strict=True)],
               claim.tolerance)
        for column in by_label
    )  # fmt: skip
    return Finding(", ".join(texts), verdict, tuple(variants))


def positive_gain(results: StudyResults, claim: Claim) -> Finding:
    """Faster everywhere: every gain is tested, the smallest is shown."""
    gains, variants = _all_gains(results, claim)
    worst = min(gains, key=lambda key: gains[key][0])
    gain, each = gains[worst]
    verdicts = dict(
        zip(gains, all_above_zero([values for _, values in gains.values()]), strict=True)
    )
    for key, over in zip(variants[::2], variants[1::2], strict=True):
        both_run = results.runs.get(key) and results.runs.get(over)
        if key not in gains and both_run:  # a target was missed
            verdicts[key] = _sooner(results, key, over)
    open_variants = [key for key, verdict in verdicts.items() if verdict == "cannot be told"]
    note = f"at {others(results, worst)}"
    if open_variants:
        note += "; cannot be told at " + " and ".join(others(results, k) for k in open_variants)
    missed = [key for key in verdicts if key not in gains]
    if missed:
        note += "; a target was missed at " + " and ".join(others(results, k) for k in missed)
    refuted = any(
        verdict == "does not agree" and len(results.runs[key]) >= results.seeds
        for key, verdict in verdicts.items()
    )
    return Finding(
        f"least: {with_spread(gain, each, ' %')}",
        all_hold(verdicts.values()),
        variants,
        note,
        conclusive=refuted,  # one complete variant is enough
    )


def falling_rounds(results: StudyResults, claim: Claim) -> Finding:
    """Rounds to target fall, or stay, along an axis."""
    axis = along(results, claim)
    rounds, variants = [], []
    for label in axis.labels:
        key = results.variant({**claim.at, axis.name: label})
        variants.append(key)
        rounds.append(every_run(results, key, lambda task: task.rounds_to_target, claim.task))
    means = [statistics.fmean(column.values()) for column in rounds]
    text = ", ".join(f"{x}: {mean:.0f}" for x, mean in zip(axis.labels, means, strict=True))
    return Finding(text, rising(columns(rounds)[::-1]), tuple(variants))
