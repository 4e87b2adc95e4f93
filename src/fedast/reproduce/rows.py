"""The rows of a reproduction's table: a number or a claim of the paper, ours, and a verdict.

A row whose runs are not all there says so, and one whose runs were not all made in one precision.
What the verdicts mean is said in ``verdicts``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedast.reproduce import final_measures, sweep_measures, time_measures
from fedast.reproduce.findings import Finding, number
from fedast.reproduce.results import Chapter, Claim, Key, Measure, Missing, Unreached
from fedast.reproduce.verdicts import Verdict


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


def rows_of(chapter: Chapter) -> list[Row]:
    return [_row(chapter, claim) for claim in chapter.claims]


def _row(chapter: Chapter, claim: Claim) -> Row:
    paper = "claim" if claim.paper is None else number(claim)
    try:
        finding = _MEASURES[claim.measure](chapter, claim)
    except Missing as missing:
        return Row(
            claim.what, claim.where, paper, "–", "not run", 0,
            note=f"missing: {missing}", headline=claim.headline,
        )  # fmt: skip
    except Unreached as short:
        finding = Finding(str(short), "does not agree", short.cells)
    runs = tuple(chapter.places[key] for key in finding.cells if key in chapter.places)
    seeds = finding.seeds
    if seeds is None:
        seeds = min((len(chapter.runs.get(key, {})) for key in finding.cells), default=0)
    verdict = finding.verdict
    if seeds < chapter.seeds and not finding.settled:
        verdict = "partly run"
    if not chapter.comparable:
        verdict = "not compared"
    notes = (finding.note, mixed_precision(chapter, finding.cells))
    return Row(
        claim.what, claim.where, paper, finding.ours, verdict, seeds,
        "; ".join(filter(None, notes)), claim.headline, tuple(dict.fromkeys(runs)),
    )  # fmt: skip


def mixed_precision(chapter: Chapter, cells: Sequence[Key]) -> str:
    """A remark, if the runs were not all made in one precision."""
    counts = Counter(
        run.machine.get("precision", "unknown")
        for key in dict.fromkeys(cells)
        for run in chapter.runs.get(key, {}).values()
    )
    if len(counts) < 2:
        return ""
    return "precision mixed: " + ", ".join(f"{n} {name}" for name, n in counts.most_common())


_MEASURES: Mapping[Measure, Callable[[Chapter, Claim], Finding]] = {
    "time": time_measures.time,
    "gain": time_measures.gain,
    "largest-gain": time_measures.largest_gain,
    "growing-gain": time_measures.growing_gain,
    "first": time_measures.first,
    "last": time_measures.last,
    "similar": time_measures.similar,
    "linear": time_measures.linear,
    "best": sweep_measures.best,
    "best-final": sweep_measures.best_final,
    "fewer": final_measures.fewer,
    "positive-gain": time_measures.positive_gain,
    "falling-rounds": time_measures.falling_rounds,
    "equal-final": final_measures.equal_final,
    "higher-final": final_measures.higher_final,
    "ceiling": final_measures.ceiling,
    "lower-loss": final_measures.lower_loss,
    "steadier": final_measures.steadier,
    "steadier-loss": final_measures.steadier_loss,
}
