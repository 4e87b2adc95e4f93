"""Measures of times to target: numbers and gains of the paper, claims about orders and trends."""

from __future__ import annotations

import statistics

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
from fedast.reproduce.results import Chapter, Claim, Key, Missing, Unreached
from fedast.reproduce.verdicts import (
    Verdict,
    above_zero,
    all_above_zero,
    all_hold,
    rising,
    within,
)


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
    try:
        gain, each = chapter.gains(key, over, claim.task)
    except Unreached as short:
        mine = None not in chapter.times(key, claim.task).values()
        return Finding(str(short), "cannot be told" if mine else "does not agree", short.cells)
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
    """The largest of many: which cell that is, is chance too, so the deviation is not that of the
    cell, but of each seed's own largest gain."""
    gains, cells = _all_gains(chapter, claim)
    best = max(gains, key=lambda key: gains[key][0])
    gain, each = gains[best]
    by_seed: dict[int, list[float]] = {}
    for key, (_, values) in gains.items():
        for seed, value in zip(_gain_seeds(chapter, claim, key), values, strict=True):
            by_seed.setdefault(seed, []).append(value)
    largest = [max(values) for values in by_seed.values()]
    verdict, note = against(claim, gain, spread(largest), len(largest) - 1, len(each))
    names = others(chapter, best)
    note = f"at {names}; {note}" if names else note
    return Finding(with_spread(gain, each, " %"), verdict, cells, note)


def _gain_seeds(chapter: Chapter, claim: Claim, key: Key) -> list[int]:
    """The seeds of a cell's gains, in their order."""
    labels = dict(zip((axis.name for axis in chapter.axes), key, strict=True))
    over = chapter.cell({**labels, **claim.over})
    return sorted(chapter.runs[key].keys() & chapter.runs[over].keys())


def growing_gain(chapter: Chapter, claim: Claim) -> Finding:
    axis = along(chapter, claim)
    labels = axis.labels[::-1] if claim.backwards else axis.labels
    means, by_seed, cells = [], [], []
    for label in labels:
        key = chapter.cell({**claim.at, axis.name: label})
        over = chapter.cell({**claim.at, axis.name: label, **claim.over})
        means.append(chapter.gains(key, over)[0])
        seeds = _gain_seeds(chapter, claim, key)
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


def _sooner(chapter: Chapter, one: Key, other: Key, factor: float = 1.0) -> Verdict:
    """Whether one side is done before the other, by a factor.

    Where only the other missed its target, the time until which it did is a bound that counts;
    where only the one did, that speaks against it; where both did, nothing is known.
    """
    missed = [
        {seed for seed, time in chapter.times(key).items() if time is None} for key in (one, other)
    ]
    seeds = sorted(chapter.runs[one].keys() & chapter.runs[other].keys())
    if not seeds:
        raise Missing("a seed that both have")
    mine, theirs = chapter.at_least(one), chapter.at_least(other)
    known = [theirs[seed] - factor * mine[seed] for seed in seeds if seed not in missed[0]]
    lost = [seed for seed in seeds if seed in missed[0] - missed[1]]
    if not known:
        return "does not agree" if lost else "cannot be told"
    verdict = above_zero(known)
    return verdict if len(known) == len(seeds) else all_hold([verdict, "cannot be told"])


def first(chapter: Chapter, claim: Claim) -> Finding:
    times, text = _ranked(chapter, claim)
    mine, *others = times
    verdict = all_hold(_sooner(chapter, mine, other) for other in others)
    return Finding(text, verdict, tuple(times))


def last(chapter: Chapter, claim: Claim) -> Finding:
    times, text = _ranked(chapter, claim)
    mine, *others = times
    verdict = all_hold(_sooner(chapter, other, mine, 1 + claim.tolerance) for other in others)
    return Finding(text, verdict, tuple(times))


def similar(chapter: Chapter, claim: Claim) -> Finding:
    times, text = _ranked(chapter, claim)
    mine, *others = times.values()
    verdict = all_hold(
        within([b / a - 1 for a, b in paired(mine, other)], claim.tolerance) for other in others
    )
    if any(None in chapter.times(key).values() for key in times):
        verdict = all_hold([verdict, "cannot be told"])
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
    verdicts = dict(
        zip(gains, all_above_zero([values for _, values in gains.values()]), strict=True)
    )
    for key, over in zip(cells[::2], cells[1::2], strict=True):
        both_run = chapter.runs.get(key) and chapter.runs.get(over)
        if key not in gains and both_run:  # a target was missed
            verdicts[key] = _sooner(chapter, key, over)
    open_cells = [key for key, verdict in verdicts.items() if verdict == "cannot be told"]
    note = f"at {others(chapter, worst)}"
    if open_cells:
        note += "; cannot be told at " + " and ".join(others(chapter, k) for k in open_cells)
    missed = [key for key in verdicts if key not in gains]
    if missed:
        note += "; a target was missed at " + " and ".join(others(chapter, k) for k in missed)
    refuted = any(
        verdict == "does not agree" and len(chapter.runs[key]) >= chapter.seeds
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
