"""How much earlier than a baseline: gains of a study's variants, as a table for documents.

Runs are compared in pairs of one seed. A gain is the mean over seeds of 1 - ours / theirs, in per
cent, with its standard error; whether it is more than seeds explain is Student's t at 95 %, from
two sides. Variants with labels of other axes (targets, a number of tasks) are compared with the
baseline that has the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedast.reproduce.results import Key, Missing, StudyResults
from fedast.reproduce.verdicts import explained


@dataclass(frozen=True)
class Gain:
    """A variant beside its baseline."""

    variant: Key
    times: dict[int, float | None]
    """By seed; None: not reached."""
    gains: tuple[float, ...]
    """In per cent, of the seeds that both have reached."""

    @property
    def missed(self) -> int:
        return sum(time is None for time in self.times.values())

    @property
    def error(self) -> float | None:
        if len(self.gains) < 2:
            return None
        return statistics.stdev(self.gains) / math.sqrt(len(self.gains))

    @property
    def verdict(self) -> str:
        """Whether it is earlier or later than the baseline by more than seeds explain."""
        limit = explained(self.gains)
        if limit is None or self.missed:
            return "–"
        mean = statistics.fmean(self.gains)
        if abs(mean) <= limit:
            return "cannot be told"
        return "earlier" if mean > 0 else "later"


def gains_of(results: StudyResults, task: str | None = None) -> Iterator[Gain]:
    """Of every variant that has been run, the baseline's included."""
    place = next(i for i, axis in enumerate(results.axes) if axis.role == "series")
    for key in results.folders:
        over = (*key[:place], results.baseline, *key[place + 1 :])
        try:
            ours, theirs = results.times(key, task), results.times(over, task)
        except Missing:
            continue
        pairs = [
            (a, b)
            for seed in sorted(ours.keys() & theirs.keys())
            if (a := ours[seed]) is not None and (b := theirs[seed]) is not None
        ]
        yield Gain(key, ours, tuple(100 * (1 - a / b) for a, b in pairs))


def gains_table(all_results: Sequence[StudyResults]) -> str:
    """A table per study, in Markdown."""
    return "\n\n".join(_table(results) for results in all_results)


def _table(results: StudyResults) -> str:
    done = "held" if results.criterion == "held" else "reached"
    whole = "of all tasks" if results.per_run == "last" else "mean of the tasks"
    lines = [
        f"**{results.title}** (targets {done}, {whole}; over {results.baseline})",
        "",
        "| | seeds | time | gain | by more than seeds explain |",
        "|---|---|---:|---:|---|",
    ]
    for gain in gains_of(results):
        known = [time for time in gain.times.values() if time is not None]
        time = f"{statistics.fmean(known):.0f}" if known else "–"
        if gain.missed:
            time += f" ({gain.missed} of {len(gain.times)} not reached)"
        same = results.baseline in gain.variant
        text = verdict = ""
        if gain.gains and not same:
            error = "" if gain.error is None else f" ± {gain.error:.1f}"
            text, verdict = f"{statistics.fmean(gain.gains):.1f}{error} %", gain.verdict
        cells = [", ".join(gain.variant), _spans(gain.times), time, text, verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spans(seeds: dict[int, float | None]) -> str:
    first, last = min(seeds), max(seeds)
    whole = len(seeds) == last - first + 1
    return (f"{first} to {last}" if first < last else str(first)) if whole else str(sorted(seeds))
