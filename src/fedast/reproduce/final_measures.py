"""Measures of requests, and of what models are worth in the end: accuracies, losses, steadiness."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping

from fedast.records.compact import CompactRun, TaskRecord
from fedast.reproduce.findings import (
    Finding,
    along,
    every_run,
    paired,
    per_seed,
    sides,
    with_spread,
)
from fedast.reproduce.results import Chapter, Claim, Key, Unreached
from fedast.reproduce.verdicts import Verdict, above_zero, all_hold, within


def fewer(chapter: Chapter, claim: Claim) -> Finding:
    """A task's active requests, averaged from the first reallocation until a task has ended."""
    key = chapter.cell(claim.at)
    assert claim.task is not None
    means, first = [], 0
    for run in chapter.found(key):
        first = run.tasks[claim.task].requests[0][1]
        mean = mean_requests(run, claim.task)
        if mean is None:
            raise Unreached("requests were never reallocated", key)
        means.append(mean)
    note = "mean from the first reallocation until the first task is done"
    text = with_spread(statistics.fmean(means), means, f" of {first}")
    return Finding(text, above_zero([first - mean for mean in means]), (key,), note)


def mean_requests(run: CompactRun, task: str) -> float | None:
    """Active requests by time, from the first reallocation until the first task has ended."""
    ends = [t.result.time_to_target for t in run.tasks.values()]
    end = min([time for time in ends if time is not None], default=run.finish_time)
    steps = [(min(time, end), count) for time, count in run.tasks[task].requests[1:]]
    if not steps or steps[0][0] >= end:
        return None
    times = [*(time for time, _ in steps), end]
    area = sum(count * (times[i + 1] - times[i]) for i, (_, count) in enumerate(steps))
    return area / (end - times[0])


def final_value(task: TaskRecord) -> float | None:
    """What a model is worth in the end, also one that diverged."""
    return task.result.final if task.diverged else task.final


def _divergence(chapter: Chapter, claim: Claim, *, counted: bool = False) -> str:
    """A remark, if a run of either side diverged, and whether the verdict is without it."""
    counts = {key: chapter.diverged(key, claim.task) for key in sides(chapter, claim)}
    text = ", ".join(
        f"{key[-1]}: {count} of {len(chapter.found(key))} runs diverged"
        for key, count in counts.items()
        if count
    )
    return text + (", left out" if text and not counted else "")


def _final_pairs(chapter: Chapter, claim: Claim) -> tuple[list[float], str, str, tuple[Key, Key]]:
    """Differences by seed in points, both sides and the differences as text, the cells."""
    key, over = sides(chapter, claim)
    ours = every_run(chapter, key, final_value, claim.task)
    theirs = every_run(chapter, over, final_value, claim.task)

    def per_cent(values: Mapping[int, float]) -> str:
        each = [100 * value for value in values.values()]
        return with_spread(statistics.fmean(each), each, " %")

    differences = [100 * (a - b) for a, b in paired(ours, theirs)]
    text = f"{per_cent(ours)} against {per_cent(theirs)}"
    return differences, text, per_seed(differences), (key, over)


def _better(
    chapter: Chapter,
    claim: Claim,
    of: Callable[[TaskRecord], float | None],
    margin: float = 0.0,
) -> tuple[Verdict, list[tuple[float, float]]]:
    """Whether one side is better by a margin, and the pairs of values that say so.

    A run in which a model diverged is worse than any, by no number that could be averaged: it is
    left out, and must only not speak against the claim.
    """
    worth: list[dict[int, float]] = []
    for side in sides(chapter, claim):
        lost = {
            seed: -math.inf
            for seed, run in chapter.runs[side].items()
            if any(task.diverged for name, task in run.tasks.items() if claim.task in (None, name))
        }
        worth.append(every_run(chapter, side, of, claim.task, without=lost) | lost)
    pairs = paired(*worth)
    known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    verdict = above_zero([a - b - margin for a, b in known]) if known else "cannot be told"
    if any(math.isinf(a) and math.isfinite(b) for a, b in pairs):
        verdict = all_hold([verdict, "cannot be told"]) if known else "does not agree"
    return verdict, known


def equal_final(chapter: Chapter, claim: Claim) -> Finding:
    differences, text, note, cells = _final_pairs(chapter, claim)
    notes = (_divergence(chapter, claim, counted=True), note)
    verdict = within(differences, 100 * claim.tolerance)
    return Finding(text, verdict, cells, "; ".join(filter(None, notes)))


def higher_final(chapter: Chapter, claim: Claim) -> Finding:
    _, text, note, cells = _final_pairs(chapter, claim)
    verdict, _ = _better(chapter, claim, lambda task: task.final, claim.tolerance)
    notes = (_divergence(chapter, claim), note)
    return Finding(text, verdict, cells, "; ".join(filter(None, notes)))


def ceiling(chapter: Chapter, claim: Claim) -> Finding:
    """One side ends higher than the other wherever that is on an axis."""
    axis = along(chapter, claim)
    verdicts: list[Verdict] = []
    texts: list[str] = []
    cells: list[Key] = []
    for label in axis.labels:
        at = {**claim.at, axis.name: label}
        key, over = chapter.cell(at), chapter.cell({**at, **claim.over})
        ours = every_run(chapter, key, final_value, claim.task)
        theirs = every_run(chapter, over, final_value, claim.task)
        verdicts.append(above_zero([a - b for a, b in paired(ours, theirs)]))
        if not texts:
            texts.append(f"{100 * statistics.fmean(ours.values()):.1f} % against")
        texts.append(f"{label}: {100 * statistics.fmean(theirs.values()):.1f} %,")
        cells += [key, over]
    return Finding(" ".join(texts).rstrip(","), all_hold(verdicts), tuple(cells))


def lower_loss(chapter: Chapter, claim: Claim) -> Finding:
    def gain(task: TaskRecord) -> float | None:
        return None if task.final_loss is None else -task.final_loss

    verdict, known = _better(chapter, claim, gain)
    if not known:
        return Finding(
            "every pair diverged", verdict, sides(chapter, claim), _divergence(chapter, claim)
        )
    ours, theirs = (statistics.fmean(side) for side in zip(*known, strict=True))
    notes = (_divergence(chapter, claim), per_seed([a - b for a, b in known], digits=2))
    text = f"{-ours:.2f} against {-theirs:.2f}"
    return Finding(text, verdict, sides(chapter, claim), "; ".join(filter(None, notes)))


def _swings(
    chapter: Chapter, claim: Claim, of: Callable[[TaskRecord], float | None]
) -> tuple[list[tuple[float, float]], tuple[Key, Key]]:
    """Of both sides by seed. A run that diverged early has no second half to be steady in."""
    key, over = sides(chapter, claim)
    ours, theirs = (chapter.values(side, of, claim.task) for side in (key, over))
    if not ours or not theirs:
        raise Unreached("no run of one side has a second half", key, over)
    return paired(ours, theirs), (key, over)


def steadier(chapter: Chapter, claim: Claim) -> Finding:
    pairs, cells = _swings(chapter, claim, lambda task: task.swing)
    ours, theirs = (100 * statistics.fmean(side) for side in zip(*pairs, strict=True))
    text = f"{ours:.2f} against {theirs:.2f} points"
    verdict = above_zero([b - a for a, b in pairs])
    return Finding(text, verdict, cells, _divergence(chapter, claim))


def steadier_loss(chapter: Chapter, claim: Claim) -> Finding:
    pairs, cells = _swings(chapter, claim, loss_swing)
    ours, theirs = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    text = f"{ours:.3f} against {theirs:.3f}"
    verdict = above_zero([b - a for a, b in pairs])
    return Finding(text, verdict, cells, _divergence(chapter, claim))


def loss_swing(task: TaskRecord) -> float | None:
    """Mean change of the loss from one kept evaluation to the next, over the run's second half."""
    if task.diverged or not task.curve:
        return None
    half = task.curve[-1].time / 2
    late = [point.loss for point in task.curve if point.time >= half]
    steps = [abs(b - a) for a, b in itertools.pairwise(late)]
    return statistics.fmean(steps) if steps and all(map(math.isfinite, steps)) else None
