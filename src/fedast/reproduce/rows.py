"""The rows of a reproduction's table: a claim of the paper, our number, and a verdict.

A row says if runs are missing and if they were not all made in one precision. ``verdicts``
defines the verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedast.reproduce import final_measures, sweep_measures, time_measures
from fedast.reproduce.claims import Claim, Measure
from fedast.reproduce.findings import Finding, number
from fedast.reproduce.results import Key, Missing, StudyResults, Unreached
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
    """Whether the short table has it."""
    runs: tuple[str, ...] = ()
    """The folders of the runs that it was computed from."""


def rows_of(results: StudyResults) -> list[Row]:
    return [_row(results, claim) for claim in results.claims]


def _row(results: StudyResults, claim: Claim) -> Row:
    paper = "claim" if claim.paper is None else number(claim)
    try:
        finding = _MEASURES[claim.measure](results, claim)
    except Missing as missing:
        return Row(
            claim.what, claim.where, paper, "–", "not run", 0,
            note=f"missing: {missing}", headline=claim.headline,
        )  # fmt: skip
    except Unreached as short:
        finding = Finding(str(short), "does not agree", short.variants)
    runs = tuple(results.folders[key] for key in finding.variants if key in results.folders)
    seeds = finding.seeds
    if seeds is None:
        seeds = min((len(results.runs.get(key, {})) for key in finding.variants), default=0)
    verdict = finding.verdict
    if seeds < results.seeds and not finding.conclusive:
        verdict = "partly run"
    if not results.comparable:
        verdict = "not compared"
    notes = (finding.note, mixed_precision(results, finding.variants))
    return Row(
        claim.what, claim.where, paper, finding.ours, verdict, seeds,
        "; ".join(filter(None, notes)), claim.headline, tuple(dict.fromkeys(runs)),
    )  # fmt: skip


def mixed_precision(results: StudyResults, variants: Sequence[Key]) -> str:
    """A remark if the runs were not all made in one precision."""
    counts = Counter(
        run.machine.get("precision", "unknown")
        for key in dict.fromkeys(variants)
        for run in results.runs.get(key, {}).values()
    )
    if len(counts) < 2:
        return ""
    return "precision mixed: " + ", ".join(f"{n} {name}" for name, n in counts.most_common())


_MEASURES: Mapping[Measure, Callable[[StudyResults, Claim], Finding]] = {
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
