"""Measures of requests, and of what models are worth in the end: accuracies, losses, steadiness."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping

from fedast.records.compact import CompactRun, TaskRecord
from fedast.report.chapter import Chapter, Claim, Key, Unreached
from fedast.report.findings import (
    Finding,
    along,
    every_run,
    paired,
    per_seed,
    sides,
    with_spread,
)
from fedast.report.verdicts import Verdict, above_zero, all_hold, within


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


def _divergence(chapter: Chapter, claim: Claim) -> str:
    """A remark, if a run of either side diverged."""
    counts = {key: chapter.diverged(key, claim.task) for key in sides(chapter, claim)}
    return ", ".join(
        f"{key[-1]}: {count} of {len(chapter.found(key))} runs diverged"
        for key, count in counts.items()
        if count
    )


def _final_pairs(chapter: Chapter, claim: Claim) -> tuple[list[float], str, str, tuple[Key, Key]]:
    """Differences by seed in points, both sides as text, a remark, the cells."""
    key, over = sides(chapter, claim)
    ours = every_run(chapter, key, final_value, claim.task)
    theirs = every_run(chapter, over, final_value, claim.task)

    def per_cent(values: Mapping[int, float]) -> str:
        each = [100 * value for value in values.values()]
        return with_spread(statistics.fmean(each), each, " %")

    differences = [100 * (a - b) for a, b in paired(ours, theirs)]
    notes = (_divergence(chapter, claim), per_seed(differences))
    text = f"{per_cent(ours)} against {per_cent(theirs)}"
    return differences, text, "; ".join(filter(None, notes)), (key, over)


def equal_final(chapter: Chapter, claim: Claim) -> Finding:
    differences, text, note, cells = _final_pairs(chapter, claim)
    return Finding(text, within(differences, 100 * claim.tolerance), cells, note)


def higher_final(chapter: Chapter, claim: Claim) -> Finding:
    differences, text, note, cells = _final_pairs(chapter, claim)
    least = 100 * claim.tolerance
    return Finding(text, above_zero([d - least for d in differences]), cells, note)


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
    """Final losses; a model that diverged has the highest of all."""

    def final_loss(task: TaskRecord) -> float | None:
        return math.inf if task.diverged else task.final_loss

    key, over = sides(chapter, claim)
    ours = every_run(chapter, key, final_loss, claim.task)
    theirs = every_run(chapter, over, final_loss, claim.task)
    pairs = paired(ours, theirs)
    known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    lost = [math.copysign(1.0, b - a) for a, b in pairs if math.isinf(a) != math.isinf(b)]
    # A loss beyond all numbers has no difference to average: it must only not speak against it.
    verdict = above_zero([b - a for a, b in known]) if known else "cannot be told"
    if any(sign < 0 for sign in lost):
        verdict = "does not agree" if not known else all_hold([verdict, "cannot be told"])
    text = " against ".join(
        f"{statistics.fmean(side):.2f}" for side in zip(*known, strict=True)
    ) if known else "no finite loss"  # fmt: skip
    notes = (_divergence(chapter, claim), per_seed([b - a for a, b in known], digits=2))
    return Finding(text, verdict, (key, over), "; ".join(filter(None, notes)))


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
