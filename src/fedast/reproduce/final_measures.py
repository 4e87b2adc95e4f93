"""Measures of active requests and of final models: accuracy, loss, stability."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping

from fedast.records.compact import CompactRun
from fedast.records.run import TaskResult
from fedast.reproduce.claims import Claim
from fedast.reproduce.findings import (
    Finding,
    along,
    every_run,
    paired,
    per_seed,
    sides,
    with_spread,
)
from fedast.reproduce.results import Key, StudyResults, Unreached
from fedast.reproduce.verdicts import Verdict, above_zero, all_hold, within


def fewer(results: StudyResults, claim: Claim) -> Finding:
    """A task's active requests fall below their initial number (see ``mean_requests``)."""
    key = results.variant(claim.at)
    assert claim.task is not None
    means, first = [], 0
    for run in results.runs_of(key):
        first = run.tasks[claim.task].requests[0][1]
        mean = mean_requests(run, claim.task)
        if mean is None:
            raise Unreached("requests were never reallocated", key)
        means.append(mean)
    note = "mean from the first reallocation until the first task is done"
    text = with_spread(statistics.fmean(means), means, f" of {first}")
    return Finding(text, above_zero([first - mean for mean in means]), (key,), note)


def mean_requests(run: CompactRun, task: str) -> float | None:
    """Time average, from the first reallocation until the first task is done."""
    ends = [t.time_to_target for t in run.tasks.values()]
    end = min([time for time in ends if time is not None], default=run.finish_time)
    steps = [(min(time, end), count) for time, count in run.tasks[task].requests[1:]]
    if not steps or steps[0][0] >= end:
        return None
    times = [*(time for time, _ in steps), end]
    area = sum(count * (times[i + 1] - times[i]) for i, (_, count) in enumerate(steps))
    return area / (end - times[0])


def final_value(task: TaskResult) -> float | None:
    """The final metric, also of a model that diverged."""
    return task.final if task.diverged else task.final_mean


def _divergence(results: StudyResults, claim: Claim, *, counted: bool = False) -> str:
    """A remark if a run of either side diverged; ``counted``: the verdict includes such runs."""
    counts = {key: results.diverged(key, claim.task) for key in sides(results, claim)}
    text = ", ".join(
        f"{key[-1]}: {count} of {len(results.runs_of(key))} runs diverged"
        for key, count in counts.items()
        if count
    )
    return text + (", left out" if text and not counted else "")


def _final_pairs(
    results: StudyResults, claim: Claim
) -> tuple[list[float], str, str, tuple[Key, Key]]:
    """Differences by seed in percentage points; both sides as text; the differences as text; the
    variants."""
    key, over = sides(results, claim)
    ours = every_run(results, key, final_value, claim.task)
    theirs = every_run(results, over, final_value, claim.task)

    def per_cent(values: Mapping[int, float]) -> str:
        each = [100 * value for value in values.values()]
        return with_spread(statistics.fmean(each), each, " %")

    differences = [100 * (a - b) for a, b in paired(ours, theirs)]
    text = f"{per_cent(ours)} against {per_cent(theirs)}"
    return differences, text, per_seed(differences), (key, over)


def _better(
    results: StudyResults,
    claim: Claim,
    of: Callable[[TaskResult], float | None],
    margin: float = 0.0,
) -> tuple[Verdict, list[tuple[float, float]]]:
    """Whether one side is better by a margin, and the pairs of values behind the verdict.

    A run in which a model diverged is worse than any other, but by no amount that could be
    averaged: it is left out, and only weakens the verdict if it speaks against the claim.
    """
    worth: list[dict[int, float]] = []
    for side in sides(results, claim):
        lost = {
            seed: -math.inf
            for seed, run in results.runs[side].items()
            if any(task.diverged for name, task in run.tasks.items() if claim.task in (None, name))
        }
        worth.append(every_run(results, side, of, claim.task, without=lost) | lost)
    pairs = paired(*worth)
    known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    verdict = above_zero([a - b - margin for a, b in known]) if known else "cannot be told"
    if any(math.isinf(a) and math.isfinite(b) for a, b in pairs):
        verdict = all_hold([verdict, "cannot be told"]) if known else "does not agree"
    return verdict, known


def equal_final(results: StudyResults, claim: Claim) -> Finding:
    differences, text, note, variants = _final_pairs(results, claim)
    notes = (_divergence(results, claim, counted=True), note)
    verdict = within(differences, 100 * claim.tolerance)
    return Finding(text, verdict, variants, "; ".join(filter(None, notes)))


def higher_final(results: StudyResults, claim: Claim) -> Finding:
    _, text, note, variants = _final_pairs(results, claim)
    verdict, _ = _better(results, claim, lambda task: task.final_mean, claim.tolerance)
    notes = (_divergence(results, claim), note)
    return Finding(text, verdict, variants, "; ".join(filter(None, notes)))


def ceiling(results: StudyResults, claim: Claim) -> Finding:
    """One side ends higher than the other at every value of an axis."""
    axis = along(results, claim)
    verdicts: list[Verdict] = []
    texts: list[str] = []
    variants: list[Key] = []
    for label in axis.labels:
        at = {**claim.at, axis.name: label}
        key, over = results.variant(at), results.variant({**at, **claim.over})
        ours = every_run(results, key, final_value, claim.task)
        theirs = every_run(results, over, final_value, claim.task)
        verdicts.append(above_zero([a - b for a, b in paired(ours, theirs)]))
        if not texts:
            texts.append(f"{100 * statistics.fmean(ours.values()):.1f} % against")
        texts.append(f"{label}: {100 * statistics.fmean(theirs.values()):.1f} %,")
        variants += [key, over]
    return Finding(" ".join(texts).rstrip(","), all_hold(verdicts), tuple(variants))


def lower_loss(results: StudyResults, claim: Claim) -> Finding:
    def gain(task: TaskResult) -> float | None:
        return None if task.final_loss_mean is None else -task.final_loss_mean

    verdict, known = _better(results, claim, gain)
    if not known:
        return Finding(
            "every pair diverged", verdict, sides(results, claim), _divergence(results, claim)
        )
    ours, theirs = (statistics.fmean(side) for side in zip(*known, strict=True))
    notes = (_divergence(results, claim), per_seed([a - b for a, b in known], digits=2))
    text = f"{-ours:.2f} against {-theirs:.2f}"
    return Finding(text, verdict, sides(results, claim), "; ".join(filter(None, notes)))


def _swings(
    results: StudyResults, claim: Claim, of: Callable[[TaskResult], float | None]
) -> tuple[list[tuple[float, float]], tuple[Key, Key]]:
    """Both sides by seed. A run that diverged early has no second half to measure."""
    key, over = sides(results, claim)
    ours, theirs = (results.values(side, of, claim.task) for side in (key, over))
    if not ours or not theirs:
        raise Unreached("no run of one side has a second half", key, over)
    return paired(ours, theirs), (key, over)


def steadier(results: StudyResults, claim: Claim) -> Finding:
    pairs, variants = _swings(results, claim, lambda task: task.swing)
    ours, theirs = (100 * statistics.fmean(side) for side in zip(*pairs, strict=True))
    text = f"{ours:.2f} against {theirs:.2f} points"
    verdict = above_zero([b - a for a, b in pairs])
    return Finding(text, verdict, variants, _divergence(results, claim))


def steadier_loss(results: StudyResults, claim: Claim) -> Finding:
    pairs, variants = _swings(results, claim, loss_swing)
    ours, theirs = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    text = f"{ours:.3f} against {theirs:.3f}"
    verdict = above_zero([b - a for a, b in pairs])
    return Finding(text, verdict, variants, _divergence(results, claim))


def loss_swing(task: TaskResult) -> float | None:
    """Mean change of the loss from one kept evaluation to the next, over the run's second half."""
    if task.diverged or not task.curve:
        return None
    half = task.curve[-1].time / 2
    late = [point.loss for point in task.curve if point.time >= half]
    steps = [abs(b - a) for a, b in itertools.pairwise(late)]
    return statistics.fmean(steps) if steps and all(map(math.isfinite, steps)) else None
