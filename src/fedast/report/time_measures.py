"""Measures of times to target: numbers and gains of the paper, claims about orders and trends."""

from __future__ import annotations

import math
import statistics

from fedast.report.chapter import Chapter, Claim, Key, Missing, Unreached
from fedast.report.findings import (
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
from fedast.report.verdicts import above_zero, all_hold, rising, within


def time(chapter: Chapter, claim: Claim) -> Finding:
    key = chapter.cell(claim.at)
    times = chapter.times(key, claim.task)
    known = [time for time in times.values() if time is not None]
    if len(known) < len(times):
        ours = f"{len(times) - len(known)} of {len(times)} not reached"
        return Finding(ours, "does not agree", (key,))
    mean = statistics.fmean(known)
    verdict, note = against(claim, mean, spread(known), len(known) - 1, len(known))
    return Finding(with_spread(mean, known), verdict, (key,), note)


def gain(chapter: Chapter, claim: Claim) -> Finding:
    key, over = sides(chapter, claim)
    gain, each = chapter.gains(key, over, claim.task)
    verdict, note = against(claim, gain, spread(each), len(each) - 1, len(each))
    return Finding(with_spread(gain, each, " %"), verdict, (key, over), note)


def _all_gains(
    chapter: Chapter, claim: Claim
) -> tuple[dict[Key, tuple[float, list[float]]], tuple[Key, ...]]:
    """Of every cell that has the labels of ``at``, as far as run; and all those cells."""
    found, cells = {}, []
    for key in chapter.places:
        labels = dict(zip((axis.name for axis in chapter.axes), key, strict=True))
        if any(labels[name] != label for name, label in claim.at.items()):
            continue
        over = chapter.cell({**labels, **claim.over})
        cells += [key, over]
        try:
            found[key] = chapter.gains(key, over)
        except (Missing, Unreached):
            continue
    if not found:
        raise Missing("all of them")
    return found, tuple(cells)


def largest_gain(chapter: Chapter, claim: Claim) -> Finding:
    """The largest of many: which cell that is, is chance too, so its own few seeds say too little
    about how uncertain it is. The deviation is that of all cells together."""
    gains, cells = _all_gains(chapter, claim)
    best = max(gains, key=lambda key: gains[key][0])
    gain, each = gains[best]
    known = [values for _, values in gains.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in known)
    squares = sum((len(values) - 1) * statistics.variance(values) for values in known)
    pooled = math.sqrt(squares / freedom) if freedom else None
    verdict, note = against(claim, gain, pooled, freedom, len(each))
    names = others(chapter, best)
    if pooled is not None and len(gains) > 1:
        note += f" (by the deviation of all {len(gains)} cells, {pooled:.1f})"
    note = f"at {names}; {note}" if names else note
    return Finding(with_spread(gain, each, " %"), verdict, cells, note)


def growing_gain(chapter: Chapter, claim: Claim) -> Finding:
    axis = along(chapter, claim)
    labels = axis.labels[::-1] if claim.backwards else axis.labels
    means, by_seed, cells = [], [], []
    for label in labels:
        key = chapter.cell({**claim.at, axis.name: label})
        over = chapter.cell({**claim.at, axis.name: label, **claim.over})
        means.append(chapter.gains(key, over)[0])
        seeds = sorted(chapter.runs[key].keys() & chapter.runs[over].keys())
        by_seed.append(dict(zip(seeds, chapter.gains(key, over)[1], strict=True)))
        cells += [key, over]
    text = ", ".join(f"{label}: {gain:.1f} %" for label, gain in zip(labels, means, strict=True))
    return Finding(text, rising(columns(by_seed)), tuple(cells))


def _ranked(chapter: Chapter, claim: Claim) -> tuple[dict[Key, dict[int, float]], str]:
    """Times of one and of others to be compared with it; a target that was missed counts with the
    time until which it was."""
    series = chapter.axis("series")
    assert series is not None
    keys = [chapter.cell({**claim.at, series.name: label}) for label in claim.others]
    keys.insert(0, chapter.cell(claim.at))
    times = {key: chapter.at_least(key) for key in keys}
    place = chapter.axes.index(series)
    texts = []
    for key in keys:
        missed = None in chapter.times(key).values()
        mean = statistics.fmean(times[key].values())
        texts.append(f"{key[place]} {'not reached' if missed else f'{mean:.0f}'}")
    return times, ", ".join(texts)


def first(chapter: Chapter, claim: Claim) -> Finding:
    times, text = _ranked(chapter, claim)
    mine, *others = times.values()
    verdict = all_hold(above_zero([b - a for a, b in paired(mine, other)]) for other in others)
    return Finding(text, verdict, tuple(times))


def last(chapter: Chapter, claim: Claim) -> Finding:
    times, text = _ranked(chapter, claim)
    mine, *others = times.values()
    factor = 1 + claim.tolerance
    verdict = all_hold(
        above_zero([a - factor * b for a, b in paired(mine, other)]) for other in others
    )
    return Finding(text, verdict, tuple(times))


def similar(chapter: Chapter, claim: Claim) -> Finding:
    times, text = _ranked(chapter, claim)
    mine, *others = times.values()
    verdict = all_hold(
        within([b / a - 1 for a, b in paired(mine, other)], claim.tolerance) for other in others
    )
    return Finding(text, verdict, tuple(times))


def linear(chapter: Chapter, claim: Claim) -> Finding:
    """The time until the last task is done, per task, is the same for any number of tasks."""
    axis = along(chapter, claim)
    per_task, cells, texts = [], [], []
    for label in axis.labels:
        key = chapter.cell({**claim.at, axis.name: label})
        if None in chapter.times(key).values():
            raise Unreached(f"{label}: a target was not reached", key)
        runs = chapter.runs[key]
        per_task.append({seed: run.finish_time / len(run.tasks) for seed, run in runs.items()})
        cells.append(key)
        texts.append(f"{label}: {statistics.fmean(run.finish_time for run in runs.values()):.0f}")
    by_label = columns(per_task)
    middles = [statistics.fmean(values) for values in zip(*by_label, strict=True)]
    verdict = all_hold(
        within([value / middle - 1 for value, middle in zip(column, middles, strict=True)],
               claim.tolerance)
        for column in by_label
    )  # fmt: skip
    return Finding(", ".join(texts), verdict, tuple(cells))


def positive_gain(chapter: Chapter, claim: Claim) -> Finding:
    """Faster everywhere: each gain by itself, and the smallest of them to be shown."""
    gains, cells = _all_gains(chapter, claim)
    worst = min(gains, key=lambda key: gains[key][0])
    gain, each = gains[worst]
    verdicts = {key: above_zero(values) for key, (_, values) in gains.items()}
    open_cells = [key for key, verdict in verdicts.items() if verdict == "cannot be told"]
    note = f"at {others(chapter, worst)}"
    if open_cells:
        note += "; cannot be told at " + " and ".join(others(chapter, k) for k in open_cells)
    refuted = any(
        verdict == "does not agree" and len(gains[key][1]) >= chapter.seeds
        for key, verdict in verdicts.items()
    )
    return Finding(
        f"least: {with_spread(gain, each, ' %')}",
        all_hold(verdicts.values()),
        cells,
        note,
        settled=refuted,  # by any one cell with all its seeds
    )


def falling_rounds(chapter: Chapter, claim: Claim) -> Finding:
    """Rounds to target fall, or stay, along an axis."""
    axis = along(chapter, claim)
    rounds, cells = [], []
    for label in axis.labels:
        key = chapter.cell({**claim.at, axis.name: label})
        cells.append(key)
        rounds.append(every_run(chapter, key, lambda task: task.rounds_to_target, claim.task))
    means = [statistics.fmean(column.values()) for column in rounds]
    text = ", ".join(f"{x}: {mean:.0f}" for x, mean in zip(axis.labels, means, strict=True))
    return Finding(text, rising(columns(rounds)[::-1]), tuple(cells))
