"""What the runs of a study add up to, beside what the paper reports.

A ``Chapter`` holds the axes of a study and the runs found for each cell. Its measures are the
rows of the table: a number of the paper beside ours, or a claim that holds or does not. A row
whose runs are not all there says so.

The verdict on a number: ours agrees if it differs from the paper's by no more than seeds explain,
``t s sqrt(1/n + 1/k)``, where ``s`` is our standard deviation over ``n`` seeds, the paper's mean of
``k`` runs (three; one for a single run) is taken to be as uncertain as ours would be, and ``t`` is
Student's quantile for 95 % (4.30 for three seeds). The paper gives no deviations of its own.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fedast.records.compact import CompactRun, TaskRecord

Key: TypeAlias = tuple[str, ...]
"""A label for each axis."""
Measure: TypeAlias = Literal[
    "time", "gain", "largest-gain", "growing-gain", "first", "last", "similar", "linear", "best",
    "fewer", "positive-gain", "falling-rounds", "equal-final", "higher-final", "steadier",
]  # fmt: skip
Verdict: TypeAlias = Literal["yes", "no", "partly run", "not run", "not compared"]
Role: TypeAlias = Literal["panel", "x", "series"]


@dataclass(frozen=True)
class Axis:
    name: str
    role: Role
    labels: tuple[str, ...]
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels with the paper's star, and in which panels."""


@dataclass(frozen=True)
class Claim:
    """A number or statement of the paper, and which of our runs speak to it."""

    what: str
    where: str
    measure: Measure
    at: Mapping[str, str]
    over: Mapping[str, str]
    others: tuple[str, ...] = ()
    task: str | None = None
    along: str | None = None
    backwards: bool = False
    tolerance: float = 0.0
    paper: float | str | None = None
    paper_seeds: int = 3
    headline: bool = False


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    where: str
    paper: str
    ours: str
    verdict: Verdict
    seeds: int
    note: str = ""
    headline: bool = False
    """Among the few that a short table has."""
    runs: tuple[str, ...] = ()
    """Where the runs are that it was computed from."""


class Missing(Exception):
    """A measure needs runs that are not there."""


class Unreached(Exception):
    """The runs are there, but have not got to what is to be measured."""

    def __init__(self, said: str, *cells: Key) -> None:
        super().__init__(said)
        self.cells = cells


# Student's t: the two-sided 95 % quantile by degrees of freedom.
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23}


def quantile(freedom: int) -> float:
    return _T.get(freedom, 2.0)


@dataclass(frozen=True)
class Chapter:
    name: str
    title: str
    where: str
    says: str
    axes: tuple[Axis, ...]
    runs: Mapping[Key, Mapping[int, CompactRun]]
    """By cell and seed."""
    places: Mapping[Key, str]
    """The folder of each cell's runs, relative to the results'."""
    targets: Mapping[Key, Mapping[str, float | None]]
    claims: tuple[Claim, ...]
    per_run: Literal["last", "mean"]
    baseline: str
    seeds: int
    figures: tuple[str, ...]
    count: tuple[int, int] = (0, 0)
    """Runs that are there, runs that there should be; one that several cells share is one."""
    source: str = ""
    """What the commands call it: its name, or its file."""
    settings: tuple[str, ...] = ()
    comparable: bool = True
    """Whether the runs are of the paper's scale, so that its numbers can be compared at all."""

    # --- finding runs ----------------------------------------------------------------------

    def axis(self, role: Role) -> Axis | None:
        return next((axis for axis in self.axes if axis.role == role), None)

    def labels(self, role: Role) -> tuple[str, ...]:
        axis = self.axis(role)
        return ("",) if axis is None else axis.labels

    def key(self, **by_role: str) -> Key:
        """The cell with these labels, by role; axes that are not there are passed over."""
        return tuple(by_role[axis.role] for axis in self.axes)

    def cell(self, labels: Mapping[str, str]) -> Key:
        """The cell with these labels by axis name; an axis with one value may be left out."""
        found = []
        for axis in self.axes:
            label = labels.get(axis.name, axis.labels[0] if len(axis.labels) == 1 else None)
            if label is None:
                raise Missing(f"no value for {axis.name}")
            found.append(label)
        return tuple(found)

    def found(self, key: Key) -> list[CompactRun]:
        runs = [run for _, run in sorted(self.runs.get(key, {}).items())]
        if not runs:
            raise Missing(", ".join(key))
        return runs

    def common_seeds(self, keys: Sequence[Key]) -> set[int]:
        """Those that all these cells have been run with, so that like is compared with like."""
        found = [set(self.runs.get(key, ())) for key in keys]
        for key, seeds in zip(keys, found, strict=True):
            if not seeds:
                raise Missing(", ".join(key))
        return set.intersection(*found)

    # --- measures of runs ----------------------------------------------------------------------

    def times(self, key: Key, task: str | None = None) -> dict[int, float | None]:
        """By seed: a task's time to target, or the run's by the study's rule."""
        self.found(key)
        return {seed: self.time(run, task) for seed, run in sorted(self.runs[key].items())}

    def time(self, run: CompactRun, task: str | None = None) -> float | None:
        if task is not None:
            return run.tasks[task].result.time_to_target
        times = [entry.result.time_to_target for entry in run.tasks.values()]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return None
        return max(known) if self.per_run == "last" else statistics.fmean(known)

    def diverged(self, key: Key, task: str | None = None) -> int:
        """Runs in which a task (or that one) ended in numbers that are none."""
        return sum(
            any(record.diverged for name, record in run.tasks.items() if task in (None, name))
            for run in self.found(key)
        )

    def values(
        self,
        key: Key,
        of: Callable[[TaskRecord], float | None],
        task: str | None = None,
        *,
        all_runs: bool = True,
    ) -> list[float]:
        """Per run, the mean over its tasks (or that of one)."""
        found, runs = [], self.found(key)
        for run in runs:
            tasks = run.tasks.values() if task is None else [run.tasks[task]]
            values = [value for value in map(of, tasks) if value is not None]
            if len(values) == len(tasks):
                found.append(statistics.fmean(values))
        if not found or (all_runs and len(found) < len(runs)):
            raise Unreached(f"no value in {len(runs) - len(found)} of {len(runs)} runs", key)
        return found

    def gains(self, key: Key, over: Key, task: str | None = None) -> tuple[float, list[float]]:
        """The gain of the mean times in per cent, and those of the seeds one by one."""
        ours, theirs = self.times(key, task), self.times(over, task)
        pairs = [
            (a, b)
            for seed in sorted(ours.keys() & theirs.keys())
            if (a := ours[seed]) is not None and (b := theirs[seed]) is not None
        ]
        shared = ours.keys() & theirs.keys()
        if not shared:
            raise Missing("a seed that both have")
        if len(pairs) < len(shared):
            said = f"target not reached by {len(shared) - len(pairs)} of {len(shared)} seeds"
            raise Unreached(said, key, over)
        mine, base = zip(*pairs, strict=True)
        gain = 100 * (1 - statistics.fmean(mine) / statistics.fmean(base))
        return gain, [100 * (1 - a / b) for a, b in pairs]

    # --- the table --------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        return [self._row(claim) for claim in self.claims]

    def _row(self, claim: Claim) -> Row:
        paper = "claim" if claim.paper is None else _number(claim)
        try:
            finding = _MEASURES[claim.measure](self, claim)
        except Missing as missing:
            return Row(
                claim.what, claim.where, paper, "–", "not run", 0,
                note=f"missing: {missing}", headline=claim.headline,
            )  # fmt: skip
        except Unreached as short:
            finding = Finding(str(short), False, short.cells)
        runs = tuple(self.places[key] for key in finding.cells if key in self.places)
        seeds = finding.seeds
        if seeds is None:
            seeds = min((len(self.runs.get(key, {})) for key in finding.cells), default=0)
        verdict: Verdict = "yes" if finding.holds else "no"
        if seeds < self.seeds and not finding.settled:
            verdict = "partly run"
        if not self.comparable:
            verdict = "not compared"
        return Row(
            claim.what, claim.where, paper, finding.ours, verdict, seeds, finding.note,
            claim.headline, tuple(dict.fromkeys(runs)),
        )  # fmt: skip


@dataclass(frozen=True)
class Finding:
    ours: str
    holds: bool
    cells: tuple[Key, ...]
    note: str = ""
    settled: bool = False
    """Whether runs that are missing could not change it."""
    seeds: int | None = None
    """Those that it was computed from; None: all that every cell has."""


def _number(claim: Claim) -> str:
    if not isinstance(claim.paper, float | int):
        return claim.paper or ""
    return f"{claim.paper:g} %" if "gain" in claim.measure else f"{claim.paper:g}"


def spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def with_spread(mean: float, values: Sequence[float], unit: str = "", digits: int = 1) -> str:
    deviation = spread(values)
    middle = f"{mean:.{digits}f}"
    return middle + (f" ± {deviation:.{digits}f}" if deviation is not None else "") + unit


def _against(claim: Claim, mean: float, values: Sequence[float]) -> tuple[bool, str]:
    """Whether ours is the paper's number as far as seeds can tell, and how they differ."""
    if not isinstance(claim.paper, float | int):
        return True, ""
    deviation = spread(values)
    if deviation is None:
        return False, "one seed: no verdict"
    scale = math.sqrt(1 / len(values) + 1 / claim.paper_seeds)
    noise = quantile(len(values) - 1) * deviation * scale
    difference = mean - claim.paper
    return abs(difference) <= noise, f"{difference:+.1f}, seeds explain ±{noise:.1f}"


def _time(chapter: Chapter, claim: Claim) -> Finding:
    key = chapter.cell(claim.at)
    times = chapter.times(key, claim.task)
    known = [time for time in times.values() if time is not None]
    if len(known) < len(times):
        return Finding(f"{len(times) - len(known)} of {len(times)} not reached", False, (key,))
    mean = statistics.fmean(known)
    holds, note = _against(claim, mean, known)
    return Finding(with_spread(mean, known), holds, (key,), note)


def _sides(chapter: Chapter, claim: Claim) -> tuple[Key, Key]:
    return chapter.cell(claim.at), chapter.cell({**claim.at, **claim.over})


def _gain(chapter: Chapter, claim: Claim) -> Finding:
    key, over = _sides(chapter, claim)
    gain, each = chapter.gains(key, over, claim.task)
    holds, note = _against(claim, gain, each)
    return Finding(with_spread(gain, each, " %"), holds, (key, over), note)


def _all_gains(
    chapter: Chapter, claim: Claim
) -> tuple[dict[Key, tuple[float, list[float], Key]], tuple[Key, ...]]:
    """Of every cell that has the labels of ``at``, as far as run; and all those cells."""
    found, cells = {}, []
    for key in chapter.places:
        labels = dict(zip((axis.name for axis in chapter.axes), key, strict=True))
        if any(labels[name] != label for name, label in claim.at.items()):
            continue
        over = chapter.cell({**labels, **claim.over})
        cells += [key, over]
        try:
            gain, each = chapter.gains(key, over)
        except (Missing, Unreached):
            continue
        found[key] = gain, each, over
    if not found:
        raise Missing("all of them")
    return found, tuple(cells)


def _largest_gain(chapter: Chapter, claim: Claim) -> Finding:
    gains, cells = _all_gains(chapter, claim)
    best = max(gains, key=lambda key: gains[key][0])
    gain, each, _ = gains[best]
    holds, note = _against(claim, gain, each)
    names = _others(chapter, best)
    note = f"at {names}; {note}" if names else note
    return Finding(with_spread(gain, each, " %"), holds, cells, note)


def _growing_gain(chapter: Chapter, claim: Claim) -> Finding:
    axis = next(axis for axis in chapter.axes if axis.name == claim.along)
    labels = axis.labels[::-1] if claim.backwards else axis.labels
    gains, cells = [], []
    for label in labels:
        key = chapter.cell({**claim.at, axis.name: label})
        over = chapter.cell({**claim.at, axis.name: label, **claim.over})
        gains.append(chapter.gains(key, over)[0])
        cells += [key, over]
    grows = all(a < b for a, b in itertools.pairwise(gains))
    text = ", ".join(f"{label}: {gain:.1f} %" for label, gain in zip(labels, gains, strict=True))
    return Finding(text, grows, tuple(cells))


def _mean_time(chapter: Chapter, key: Key) -> float:
    """Infinite if a target was missed."""
    times = chapter.times(key)
    known = [time for time in times.values() if time is not None]
    return statistics.fmean(known) if len(known) == len(times) else math.inf


def _ranked(chapter: Chapter, claim: Claim) -> tuple[dict[Key, float], str]:
    series = chapter.axis("series")
    assert series is not None
    keys = [chapter.cell({**claim.at, series.name: label}) for label in claim.others]
    keys.insert(0, chapter.cell(claim.at))
    times = {key: _mean_time(chapter, key) for key in keys}
    place = chapter.axes.index(series)
    text = ", ".join(
        f"{key[place]} {'not reached' if math.isinf(time) else f'{time:.0f}'}"
        for key, time in times.items()
    )
    return times, text


def _first(chapter: Chapter, claim: Claim) -> Finding:
    times, text = _ranked(chapter, claim)
    mine, *others = times.values()
    return Finding(text, all(mine < other for other in others), tuple(times))


def _last(chapter: Chapter, claim: Claim) -> Finding:
    times, text = _ranked(chapter, claim)
    mine, *others = times.values()
    return Finding(text, mine > (1 + claim.tolerance) * max(others), tuple(times))


def _similar(chapter: Chapter, claim: Claim) -> Finding:
    times, text = _ranked(chapter, claim)
    mine, *others = times.values()
    near = all(abs(other - mine) <= claim.tolerance * mine for other in others)
    return Finding(text, near, tuple(times))


def _linear(chapter: Chapter, claim: Claim) -> Finding:
    """The time until the last task is done, per task, is the same for any number of tasks."""
    axis = next(axis for axis in chapter.axes if axis.name == claim.along)
    per_task, cells, texts = [], [], []
    for label in axis.labels:
        key = chapter.cell({**claim.at, axis.name: label})
        ends = [run.finish_time for run in chapter.found(key)]
        if None in chapter.times(key).values():
            raise Unreached(f"{label}: a target was not reached", key)
        mean = statistics.fmean(ends)
        per_task.append(mean / len(chapter.found(key)[0].tasks))
        cells.append(key)
        texts.append(f"{label}: {mean:.0f}")
    middle = statistics.fmean(per_task)
    linear = all(abs(value - middle) <= claim.tolerance * middle for value in per_task)
    return Finding(", ".join(texts), linear, tuple(cells))


_MANY = 10
"""Of more than so many times a remark names two."""


def _best(chapter: Chapter, claim: Claim) -> Finding:
    """The label with the shortest time; agreeing: the paper's is as short, as far as seeds tell."""
    axis = next(axis for axis in chapter.axes if axis.name == claim.along)
    cells = [chapter.cell({**claim.at, axis.name: label}) for label in axis.labels]
    seeds = chapter.common_seeds(cells)
    if not seeds:
        raise Missing("a seed that all have been run with")
    times: dict[str, list[float]] = {}
    for label, key in zip(axis.labels, cells, strict=True):
        found = [t for seed, t in chapter.times(key, claim.task).items() if seed in seeds]
        known = [time for time in found if time is not None]
        if len(known) == len(found):
            times[label] = known
    if not times:
        raise Unreached("no target was reached", *cells)
    means = {label: statistics.fmean(known) for label, known in times.items()}
    best = min(means, key=lambda label: means[label])
    theirs = _number(claim)
    note, close = f"times {_listed(means, best, theirs)}", theirs == best
    if theirs not in means:
        note += f"; {theirs} did not get there"
    elif theirs != best and len(seeds) < 2:
        note += "; one seed"
    elif theirs != best:
        variances = [statistics.variance(times[label]) for label in (theirs, best)]
        noise = quantile(2 * len(seeds) - 2) * math.sqrt(sum(variances) / len(seeds))
        close = means[theirs] - means[best] <= noise
        note += f"; seeds explain ±{noise:.0f}"
    return Finding(best, close, tuple(cells), note, seeds=len(seeds))


def _listed(means: Mapping[str, float], best: str, theirs: str) -> str:
    """All times; of many only the best and the paper's."""
    if len(means) <= _MANY:
        return ", ".join(f"{label}: {mean:.0f}" for label, mean in means.items())
    text = f"{best}: {means[best]:.0f}"
    if theirs in means and theirs != best:
        place = 1 + sum(mean < means[theirs] for mean in means.values())
        text += f", {theirs}: {means[theirs]:.0f} (number {place} of {len(means)})"
    return text


def _fewer(chapter: Chapter, claim: Claim) -> Finding:
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
    mean = statistics.fmean(means)
    note = "mean from the first reallocation until the first task is done"
    return Finding(with_spread(mean, means, f" of {first}"), mean < first, (key,), note)


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


def _positive_gain(chapter: Chapter, claim: Claim) -> Finding:
    """Faster everywhere: the smallest of all gains."""
    gains, cells = _all_gains(chapter, claim)
    worst = min(gains, key=lambda key: gains[key][0])
    gain, each, _ = gains[worst]
    refuted = any(g <= 0 and len(each) >= chapter.seeds for g, each, _ in gains.values())
    return Finding(
        f"least: {with_spread(gain, each, ' %')}",
        gain > 0,
        cells,
        f"at {_others(chapter, worst)}",
        settled=refuted,  # by any one cell with all its seeds
    )


def _others(chapter: Chapter, key: Key) -> str:
    """The labels of a cell, but for its series."""
    series = chapter.axis("series")
    pairs = zip(chapter.axes, key, strict=True)
    return ", ".join(label for axis, label in pairs if axis is not series)


def _falling_rounds(chapter: Chapter, claim: Claim) -> Finding:
    """Rounds to target fall, or stay, along an axis."""
    axis = next(axis for axis in chapter.axes if axis.name == claim.along)
    means, cells = [], []
    for label in axis.labels:
        key = chapter.cell({**claim.at, axis.name: label})
        cells.append(key)
        values = chapter.values(key, lambda task: task.rounds_to_target, claim.task)
        means.append(statistics.fmean(values))
    text = ", ".join(f"{x}: {mean:.0f}" for x, mean in zip(axis.labels, means, strict=True))
    falls = all(a >= b for a, b in itertools.pairwise(means))
    return Finding(text, falls, tuple(cells))


def _finals(chapter: Chapter, claim: Claim) -> tuple[list[float], list[float], tuple[Key, Key]]:
    """What the models of the two sides are worth in the end, also one that diverged."""

    def final(task: TaskRecord) -> float | None:
        return task.result.final if task.diverged else task.final

    key, over = _sides(chapter, claim)
    ours = chapter.values(key, final, claim.task)
    theirs = chapter.values(over, final, claim.task)
    return ours, theirs, (key, over)


def _divergence(chapter: Chapter, claim: Claim) -> str:
    """A remark, if a run of either side diverged."""
    counts = {key: chapter.diverged(key, claim.task) for key in _sides(chapter, claim)}
    return ", ".join(
        f"{key[-1]}: {count} of {len(chapter.found(key))} runs diverged"
        for key, count in counts.items()
        if count
    )


def _pair_text(ours: Sequence[float], theirs: Sequence[float]) -> str:
    def per_cent(values: Sequence[float]) -> str:
        return with_spread(statistics.fmean(values), values, " %")

    return f"{per_cent([100 * v for v in ours])} against {per_cent([100 * v for v in theirs])}"


def _equal_final(chapter: Chapter, claim: Claim) -> Finding:
    ours, theirs, cells = _finals(chapter, claim)
    apart = abs(statistics.fmean(ours) - statistics.fmean(theirs))
    note = _divergence(chapter, claim)
    return Finding(_pair_text(ours, theirs), apart <= claim.tolerance, cells, note)


def _higher_final(chapter: Chapter, claim: Claim) -> Finding:
    ours, theirs, cells = _finals(chapter, claim)
    higher = statistics.fmean(ours) - statistics.fmean(theirs) > claim.tolerance
    return Finding(_pair_text(ours, theirs), higher, cells, _divergence(chapter, claim))


def _steadier(chapter: Chapter, claim: Claim) -> Finding:
    key, over = _sides(chapter, claim)
    # A run that diverged early has no second half to be steady in.
    ours = chapter.values(key, lambda task: task.swing, claim.task, all_runs=False)
    theirs = chapter.values(over, lambda task: task.swing, claim.task, all_runs=False)
    holds = statistics.fmean(ours) < statistics.fmean(theirs)
    text = f"{100 * statistics.fmean(ours):.2f} against {100 * statistics.fmean(theirs):.2f} points"
    return Finding(text, holds, (key, over), _divergence(chapter, claim))


_MEASURES: Mapping[Measure, Callable[[Chapter, Claim], Finding]] = {
    "time": _time,
    "gain": _gain,
    "largest-gain": _largest_gain,
    "growing-gain": _growing_gain,
    "first": _first,
    "last": _last,
    "similar": _similar,
    "linear": _linear,
    "best": _best,
    "fewer": _fewer,
    "positive-gain": _positive_gain,
    "falling-rounds": _falling_rounds,
    "equal-final": _equal_final,
    "higher-final": _higher_final,
    "steadier": _steadier,
}
