"""The measures behind the table of a reproduction, on runs whose numbers are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from fedast.records.compact import CompactRun
from fedast.records.metrics import Point
from fedast.records.run import TaskResult
from fedast.reproduce.claims import Claim
from fedast.reproduce.figures.dots import dot_panels
from fedast.reproduce.figures.save import draw_figures
from fedast.reproduce.results import Axis, Key, StudyResults
from fedast.reproduce.rows import Row, rows_of

Variants: TypeAlias = dict[Key, list[dict[str, TaskResult]]]


def task(time: float | None = 10.0, **changes: Any) -> TaskResult:
    result = TaskResult(
        "accuracy", time, 0.9, 0.1, 5, 50, 1.0, 3, "target",
        final_mean=0.9,
        final_loss_mean=0.1,
        rounds_to_target=5,
        swing=0.01,
        curve=(Point(0.0, 0, 0.1, 2.3), Point(10.0, 5, 0.9, 0.1)),
        requests=((0.0, 10),),
    )  # fmt: skip
    return replace(result, **changes)


def run(tasks: Mapping[str, TaskResult], seed: int, finish: float = 10.0) -> CompactRun:
    machine = {"device": "CPU", "torch": "2", "python": "3", "fedast": "0"}
    return CompactRun("fedast-d", seed, "full", tasks, finish, 1.0, 50.0, machine)


def results(
    axes: Sequence[Axis], variants: Mapping[Key, Sequence[Mapping[str, TaskResult]]], **changes: Any
) -> StudyResults:
    found = StudyResults(
        name="study",
        title="A study",
        where="figure 1",
        says="something",
        axes=tuple(axes),
        runs={
            key: {seed: run(tasks, seed) for seed, tasks in enumerate(runs, 1)}
            for key, runs in variants.items()
        },
        folders={key: "study/" + "_".join(key) for key in variants},
        targets={key: {"a": 0.9} for key in variants},
        claims=(),
        per_run="last",
        baseline="slow",
        seeds=3,
        figures=(),
    )
    return replace(found, **changes)


def row(found: StudyResults, measure: str, **fields: Any) -> Row:
    empty: Any = {"at": {}, "over": {}}
    claim = Claim(what="w", where="p", measure=measure, **(empty | fields))  # type: ignore[arg-type]
    return rows_of(replace(found, claims=(claim,)))[0]


SERIES = Axis("algorithm", "series", ("fast", "slow"))


def timed(
    fast: Sequence[float | None], slow: Sequence[float | None], **changes: Any
) -> StudyResults:
    variants: Variants = {
        ("fast",): [{"a": task(time)} for time in fast],
        ("slow",): [{"a": task(time)} for time in slow],
    }
    return results([SERIES], variants, **changes)


FAST, SLOW = {"algorithm": "fast"}, {"algorithm": "slow"}


def test_a_number_agrees_if_it_is_near_and_seeds_do_not_speak_against_it() -> None:
    # deviation 10, Student's t for two degrees of freedom 4.30: noise 35.1
    found = timed([90.0, 100.0, 110.0], [200.0, 200.0, 200.0])
    near = row(found, "time", at=FAST, paper=110.0)
    assert (near.ours, near.verdict) == ("100.0 ± 10.0", "agrees")
    assert row(found, "time", at=FAST, paper=112.0).verdict == "cannot be told"  # 11 % off
    assert row(found, "time", at=FAST, paper=135.0).verdict == "cannot be told"
    assert row(found, "time", at=FAST, paper=136.0).verdict == "does not agree"
    # one run of the paper's says less: noise 49.7
    one = {"at": FAST, "paper_seeds": 1}
    assert row(found, "time", paper=149.0, **one).verdict == "cannot be told"
    assert row(found, "time", paper=150.0, **one).verdict == "does not agree"
    # seeds that scatter little tell even small differences
    sure = timed([99.9, 100.0, 100.1], [200.0] * 3)
    assert row(sure, "time", at=FAST, paper=101.0).verdict == "does not agree"


def test_gains_are_near_within_four_points() -> None:
    found = timed([40.0, 50.0, 60.0], [100.0] * 3)
    for paper, verdict in ((53.9, "agrees"), (54.1, "cannot be told"), (86.0, "does not agree")):
        assert row(found, "gain", at=FAST, over=SLOW, paper=paper).verdict == verdict


def test_a_gain_is_that_of_the_means_and_its_deviation_that_of_the_seeds() -> None:
    found = timed([50.0, 100.0, 150.0], [200.0, 200.0, 200.0])
    gain = row(found, "gain", at=FAST, over=SLOW, paper=50.0)
    assert gain.ours == "50.0 ± 25.0 %"
    assert gain.paper == "50 %"
    assert gain.verdict == "agrees"
    assert gain.runs == ("study/fast", "study/slow")


def test_a_target_that_was_missed_is_no_number() -> None:
    found = timed([50.0, None, 150.0], [200.0, 200.0, 200.0])
    assert row(found, "time", at=FAST, paper=100).ours == "1 of 3 not reached"
    gain = row(found, "gain", at=FAST, over=SLOW, paper=50)
    assert (gain.ours, gain.verdict) == ("target not reached by 1 of 3 seeds", "does not agree")
    assert gain.seeds == 3


def test_rows_say_when_runs_are_missing() -> None:
    found = timed([50.0], [200.0, 200.0, 200.0])
    assert row(found, "gain", at=FAST, over=SLOW, paper=75.0).verdict == "partly run"
    assert row(found, "gain", at=FAST, over=SLOW, paper=75.0).seeds == 1
    none = timed([], [200.0])
    assert row(none, "gain", at=FAST, over=SLOW, paper=75.0).verdict == "not run"


def test_small_scale_is_never_compared() -> None:
    found = timed([90.0, 100.0, 110.0], [200.0] * 3, comparable=False)
    assert row(found, "time", at=FAST, paper=100.0).verdict == "not compared"


@pytest.mark.parametrize(
    ("measure", "tolerance", "fast", "slow", "verdict"),
    [
        ("first", 0.0, 10.0, 11.0, "agrees"),
        ("first", 0.0, 11.0, 10.0, "does not agree"),
        ("last", 0.5, 16.0, 10.0, "agrees"),
        ("last", 0.5, 14.0, 10.0, "does not agree"),
        ("last", 0.5, None, 10.0, "agrees"),  # it never got there
        ("similar", 0.1, 10.0, 10.9, "agrees"),
        ("similar", 0.1, 10.0, 11.1, "does not agree"),
    ],
)
def test_orders(
    measure: str, tolerance: float, fast: float | None, slow: float, verdict: str
) -> None:
    found = timed([fast] * 3, [slow] * 3)
    if fast is None:  # missed until a time limit of 16
        lost = {seed: run({"a": task(None)}, seed, finish=16.0) for seed in (1, 2, 3)}
        found = replace(found, runs={**found.runs, ("fast",): lost})
    assert row(found, measure, at=FAST, others=("slow",), tolerance=tolerance).verdict == verdict


COUNT = Axis("tasks", "x", ("2", "4"))


def swept(times: Mapping[Key, float]) -> StudyResults:
    variants: Variants = {key: [{"a": task(time)}] * 3 for key, time in times.items()}
    return results([COUNT, SERIES], variants)


def test_gains_along_an_axis() -> None:
    grows = swept({("2", "fast"): 90, ("2", "slow"): 100, ("4", "fast"): 80, ("4", "slow"): 100})
    found = row(grows, "growing-gain", at=FAST, over=SLOW, along="tasks")
    assert (found.ours, found.verdict) == ("2: 10.0 %, 4: 20.0 %", "agrees")
    back = row(grows, "growing-gain", at=FAST, over=SLOW, along="tasks", backwards=True)
    assert back.verdict == "does not agree"
    largest = row(grows, "largest-gain", at=FAST, over=SLOW, paper=20.0)
    assert largest.ours == "20.0 ± 0.0 %"
    assert largest.note.startswith("at 4; ")


def test_the_largest_of_gains_that_are_partly_there_is_no_verdict() -> None:
    half = swept({("2", "fast"): 90, ("2", "slow"): 100})
    half = replace(half, folders={**half.folders, ("4", "fast"): "x", ("4", "slow"): "y"})
    assert row(half, "largest-gain", at=FAST, over=SLOW, paper=10.0).verdict == "partly run"


def test_the_best_of_a_sweep() -> None:
    axis = Axis("k", "x", ("5", "30", "100"))
    times = {"5": [50.0, 52.0, 54.0], "30": [40.0, 42.0, 44.0], "100": [41.0, 43.0, 45.0]}
    variants: Variants = {(k,): [{"a": task(time)} for time in each] for k, each in times.items()}
    found = results([axis], variants)
    assert row(found, "best", along="k", paper=30.0).verdict == "agrees"
    # 30 is faster by 1 on every seed: that is no chance, however much seeds differ
    assert row(found, "best", along="k", paper=100.0).verdict == "does not agree"
    worse = row(found, "best", along="k", paper=5.0)
    assert (worse.ours, worse.verdict) == ("30", "does not agree")
    assert worse.note.endswith("30 better by seed +10, +10, +10, seeds explain +0")


def test_a_choice_is_not_refuted_by_chance_among_many() -> None:
    """One of many is faster by 10, 12 and 2: with one other that would be no chance."""
    for others, verdict in ((1, "does not agree"), (6, "agrees")):
        labels = ("30", *(str(k) for k in range(others)))
        variants: Variants = {
            (k,): [{"a": task(time)} for time in (200.0, 204.0, 208.0)] for k in labels
        }
        variants[("0",)] = [{"a": task(time)} for time in (190.0, 192.0, 203.0)]
        found = results([Axis("k", "x", labels)], variants)
        assert row(found, "best", along="k", paper=30.0).verdict == verdict
    # ... and further off than a tenth it cannot be told
    variants[("0",)] = [{"a": task(time)} for time in (190.0, 92.0, 203.0)]
    found = results([Axis("k", "x", labels)], variants)
    assert row(found, "best", along="k", paper=30.0).verdict == "cannot be told"


def test_the_highest_final_of_a_sweep() -> None:
    axis = Axis("b", "x", ("1", "5", "8"))
    finals = {"1": [0.10, 0.10, 0.10], "5": [0.80, 0.81, 0.82], "8": [0.80, 0.83, 0.82]}
    variants: Variants = {
        (b,): [{"a": task(final_mean=f)} for f in each] for b, each in finals.items()
    }
    found = row(results([axis], variants), "best-final", along="b", paper=5.0)
    assert (found.ours, found.verdict) == ("8", "agrees")
    assert found.note.startswith("1: 10.0 %, 5: 81.0 %, 8: 81.7 %")
    lost = row(results([axis], variants), "best-final", along="b", paper=1.0)
    assert lost.verdict == "does not agree"


def test_the_best_is_found_by_seeds_that_all_have() -> None:
    axis = Axis("k", "x", ("5", "30"))
    variants: Variants = {
        ("5",): [{"a": task(time)} for time in (50.0, 20.0, 20.0)],
        ("30",): [{"a": task(40.0)}],
    }
    found = row(results([axis], variants), "best", along="k", paper=5.0)
    assert (found.ours, found.note) == ("30", "times 5: 50, 30: 40; one seed")
    other = {("5",): {1: run({"a": task()}, 1)}, ("30",): {2: run({"a": task()}, 2)}}
    assert row(results([axis], variants, runs=other), "best", along="k", paper=5.0).ours == "–"


def test_of_many_the_remark_names_two() -> None:
    axis = Axis("k", "x", tuple(map(str, range(20))))
    variants: Variants = {(str(k),): [{"a": task(100.0 + k)}] for k in range(20)}
    found = row(results([axis], variants, seeds=1), "best", along="k", paper="7")
    assert found.note == "times 0: 100, 7: 107 (number 8 of 20); one seed"
    same = row(results([axis], variants, seeds=1), "best", along="k", paper="0")
    assert (same.note, same.verdict) == ("times 0: 100; one seed", "cannot be told")
    lost: Variants = {**variants, ("7",): [{"a": task(None)}]}
    found = row(results([axis], lost, seeds=1), "best", along="k", paper="7")
    assert found.note == "times 0: 100; 7 did not get there; one seed"


def test_a_row_counts_the_seeds_that_were_compared() -> None:
    axis = Axis("k", "x", ("5", "30"))
    variants: Variants = {("5",): [{"a": task()}], ("30",): [{"a": task()}]}
    runs = {
        (label,): {seed: run({"a": task()}, seed) for seed in seeds}
        for label, seeds in (("5", (1, 2)), ("30", (2, 3)))
    }
    found = row(results([axis], variants, runs=runs, seeds=2), "best", along="k", paper=5.0)
    assert (found.seeds, found.verdict) == (1, "partly run")


@pytest.mark.parametrize("seeds", [((1, 2), (1, 2)), ((1,), (2,)), ((1, 2), ())])
def test_many_variants_below_one_another(seeds: Sequence[Sequence[int]]) -> None:
    """Whatever has been run, also with no seed in common; the baseline stands out."""
    variants: Variants = {("fast",): [{"a": task()}], ("slow",): [{"a": task()}]}
    runs = {
        key: {seed: run({"a": task(time + seed)}, seed) for seed in each}
        for (key, time), each in zip({("fast",): 9.0, ("slow",): 5.0}.items(), seeds, strict=True)
    }
    found = results([SERIES], variants, runs=runs, figures=("dots", "ranking"))
    figures = draw_figures(found)
    assert set(figures) == {"dots", "ranking"}
    for kind, figure in figures.items():
        shown = [text.get_text() for text in figure.axes[0].get_yticklabels()]
        there = [label for (label,) in runs if runs[(label,)]]
        assert shown == (sorted(there, reverse=True) if kind == "ranking" else there)
        lines = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
        assert len(lines) == ("slow" in there)


def test_a_variant_that_missed_its_target_says_so() -> None:
    variants: Variants = {
        ("fast",): [{"a": task()}, {"a": task(None)}],
        ("slow",): [{"a": task()}] * 2,
    }
    found = results([SERIES], variants, figures=("dots",))
    (panel,) = dot_panels(found)
    assert [(row.label, row.missed) for row in panel.rows] == [("fast", 1), ("slow", 0)]
    (legend,) = draw_figures(found)["dots"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["a run that did not get there"]


def test_requests_are_averaged_over_time_until_the_first_task_is_done() -> None:
    moved = task(40.0, requests=((0.0, 10), (5.0, 8), (15.0, 5), (30.0, 99)))
    variants: Variants = {
        ("fast",): [{"a": moved, "b": task(20.0)}] * 3,
        ("slow",): [{"a": task()}] * 3,
    }
    found = row(results([SERIES], variants), "fewer", at=FAST, task="a")
    assert found.ours == "7.0 ± 0.0 of 10"  # 8 from 5 to 15, 5 from 15 to 20
    assert found.verdict == "agrees"


def test_final_values_and_steadiness() -> None:
    variants: Variants = {
        ("fast",): [{"a": task(final_mean=0.80, swing=0.01)}] * 3,
        ("slow",): [{"a": task(final_mean=0.79, swing=0.03)}] * 3,
    }
    found = results([SERIES], variants)
    same = row(found, "equal-final", at=FAST, over=SLOW, tolerance=0.02)
    assert (same.ours, same.verdict) == ("80.0 ± 0.0 % against 79.0 ± 0.0 %", "agrees")
    assert (
        row(found, "higher-final", at=FAST, over=SLOW, tolerance=0.02).verdict == "does not agree"
    )
    assert row(found, "higher-final", at=FAST, over=SLOW).verdict == "agrees"
    assert row(found, "steadier", at=FAST, over=SLOW).verdict == "agrees"
    assert row(found, "steadier", at=SLOW, over=FAST).verdict == "does not agree"


def test_a_model_that_diverged_is_worth_what_it_last_was() -> None:
    lost = task(final_mean=None, final_loss_mean=None, swing=None)
    lost = replace(lost, final=0.1, finish_reason="diverged")
    good, bad = task(final_mean=0.8, swing=0.01), task(final_mean=0.7, swing=0.03)
    variants: Variants = {
        ("fast",): [{"a": good}] * 3,
        ("slow",): [{"a": bad}, {"a": bad}, {"a": lost}],
    }
    found = results([SERIES], variants)
    higher = row(found, "higher-final", at=FAST, over=SLOW)
    # lower by 10 points twice; the one that is lost has no difference to average
    assert higher.verdict == "agrees"
    assert higher.note == "slow: 1 of 3 runs diverged, left out; by seed +10.0, +10.0, +70.0"
    assert row(found, "higher-final", at=SLOW, over=FAST).verdict == "does not agree"
    assert higher.ours == "80.0 ± 0.0 % against 50.0 ± 34.6 %"
    assert row(found, "equal-final", at=FAST, over=SLOW, tolerance=0.2).verdict == "cannot be told"
    steadier = row(found, "steadier", at=FAST, over=SLOW)
    assert (steadier.verdict, steadier.note) == ("agrees", "slow: 1 of 3 runs diverged, left out")
    assert steadier.ours == "1.00 against 3.00 points"
    lower = row(found, "lower-loss", at=FAST, over=SLOW)
    assert lower.note.startswith("slow: 1 of 3 runs diverged")
    variants[("slow",)] = [{"a": lost}] * 3
    all_lost = row(results([SERIES], variants), "steadier", at=FAST, over=SLOW)
    assert all_lost.verdict == "does not agree"


def test_losses() -> None:
    def curve(*losses: float) -> tuple[Point, ...]:
        return tuple(Point(float(t), t, 0.5, loss) for t, loss in enumerate(losses))

    calm = task(final_loss_mean=0.2, curve=curve(2.0, 1.0, 0.5, 0.5, 0.4))
    wild = task(final_loss_mean=0.5, curve=curve(2.0, 1.0, 0.5, 0.9, 0.5))
    variants: Variants = {("fast",): [{"a": calm}] * 3, ("slow",): [{"a": wild}] * 3}
    found = results([SERIES], variants)
    lower = row(found, "lower-loss", at=FAST, over=SLOW)
    assert (lower.ours, lower.verdict) == ("0.20 against 0.50", "agrees")
    assert row(found, "lower-loss", at=SLOW, over=FAST).verdict == "does not agree"
    steadier = row(found, "steadier-loss", at=FAST, over=SLOW)
    assert (steadier.ours, steadier.verdict) == ("0.050 against 0.400", "agrees")


def test_a_ceiling_is_above_everywhere() -> None:
    def study(low: float) -> StudyResults:
        finals = {("2", "fast"): 0.9, ("2", "slow"): 0.8, ("4", "fast"): 0.9, ("4", "slow"): low}
        return results(
            [COUNT, SERIES], {k: [{"a": task(final_mean=f)}] * 3 for k, f in finals.items()}
        )

    found = row(study(0.7), "ceiling", at=FAST, over=SLOW, along="tasks")
    assert (found.ours, found.verdict) == ("90.0 % against 2: 80.0 %, 4: 70.0 %", "agrees")
    above = row(study(0.95), "ceiling", at=FAST, over=SLOW, along="tasks")
    assert above.verdict == "does not agree"


def test_a_row_says_if_its_runs_differ_in_precision() -> None:
    found = timed([90.0, 100.0, 110.0], [200.0] * 3)
    machine = {"precision": "fp16"}
    runs = {s: replace(r, machine=machine) for s, r in found.runs[("fast",)].items()}
    assert "precision" not in row(replace(found, runs={("fast",): runs}), "time", at=FAST).note
    runs[1] = replace(runs[1], machine={"precision": "tf32"})
    mixed = row(replace(found, runs={("fast",): runs}), "time", at=FAST)
    assert mixed.note.endswith("precision mixed: 2 fp16, 1 tf32")


def test_the_largest_gain_is_judged_by_the_largest_of_each_seed() -> None:
    """The best variant on the mean happens to scatter little; which is best differs by seed."""
    variants: Variants = {}
    for label, times in (("2", (30.0, 60.0, 90.0)), ("4", (49.9, 50.0, 50.1))):
        variants[(label, "fast")] = [{"a": task(time)} for time in times]
        variants[(label, "slow")] = [{"a": task(100.0)}] * 3
    found = row(results([COUNT, SERIES], variants), "largest-gain", at=FAST, over=SLOW, paper=55.0)
    assert found.ours == "50.0 ± 0.1 %"
    # 70, 50 and 49.9 by seed: a deviation of 11.6, so 40.6 by chance
    assert (found.verdict, found.note) == ("cannot be told", "at 4; -5.0, seeds explain ±40.7")


def test_faster_everywhere_is_told_by_all_variants_together() -> None:
    """One variant is slower on every seed, by amounts that its three seeds alone hardly tell."""
    variants: Variants = {}
    for number, times in enumerate([(101.0, 104.0, 107.0)] + [(79.0, 80.0, 81.0)] * 5):
        variants[(str(number), "fast")] = [{"a": task(time)} for time in times]
        variants[(str(number), "slow")] = [{"a": task(100.0)}] * 3
    axis = Axis("tasks", "x", tuple(map(str, range(6))))
    found = row(results([axis, SERIES], variants), "positive-gain", at=FAST, over=SLOW)
    assert (found.ours, found.verdict) == ("least: -4.0 ± 3.0 %", "does not agree")


def test_runs_without_a_value_are_not_passed_over() -> None:
    variants: Variants = {
        ("fast",): [{"a": task(final_mean=0.80)}] * 3,
        ("slow",): [{"a": task(final_mean=final)} for final in (0.81, None, None)],
    }
    found = row(results([SERIES], variants), "equal-final", at=FAST, over=SLOW, tolerance=0.02)
    assert (found.ours, found.verdict) == ("no value in 2 of 3 runs", "does not agree")


def test_faster_everywhere_is_judged_by_the_least_gain() -> None:
    mixed = swept({("2", "fast"): 110, ("2", "slow"): 100, ("4", "fast"): 80, ("4", "slow"): 100})
    found = row(mixed, "positive-gain", at=FAST, over=SLOW)
    assert (found.ours, found.verdict) == ("least: -10.0 ± 0.0 %", "does not agree")
    assert found.note == "at 2"
    # One variant that is complete refutes it, whatever the others will say.
    half = replace(mixed, folders={**mixed.folders, ("6", "fast"): "x", ("6", "slow"): "y"})
    assert row(half, "positive-gain", at=FAST, over=SLOW).verdict == "does not agree"


def test_rounds_fall() -> None:
    axis = Axis("k", "x", ("5", "30"))

    def study(rounds: Sequence[int]) -> StudyResults:
        return results(
            [axis],
            {
                (k,): [{"a": task(rounds_to_target=r)}] * 3
                for k, r in zip(axis.labels, rounds, strict=True)
            },
        )

    assert row(study((50, 20)), "falling-rounds", along="k").verdict == "agrees"
    assert row(study((20, 50)), "falling-rounds", along="k").verdict == "does not agree"


def test_one_seed_of_a_sweep_is_no_verdict_against_the_paper() -> None:
    axis = Axis("k", "x", ("5", "30"))
    variants: Variants = {("5",): [{"a": task(41.0)}], ("30",): [{"a": task(41.1)}]}
    found = row(results([axis], variants, seeds=1), "best", along="k", paper=30.0)
    assert "one seed" in found.note


def test_time_in_proportion_to_the_number_of_tasks() -> None:
    def study(ends: Mapping[str, float]) -> StudyResults:
        variants: Variants = {
            (count,): [{str(n): task() for n in range(int(count))}] * 3 for count in ends
        }
        found = results([COUNT], variants)
        runs = {
            key: {seed: replace(run, finish_time=ends[key[0]]) for seed, run in by_seed.items()}
            for key, by_seed in found.runs.items()
        }
        return replace(found, runs=runs)

    assert (
        row(study({"2": 100, "4": 210}), "linear", along="tasks", tolerance=0.1).verdict == "agrees"
    )
    assert (
        row(study({"2": 100, "4": 120}), "linear", along="tasks", tolerance=0.1).verdict
        == "does not agree"
    )


def test_a_run_of_several_tasks_takes_as_long_as_its_last_or_their_mean() -> None:
    variants: Variants = {
        ("fast",): [{"a": task(10.0), "b": task(30.0)}] * 3,
        ("slow",): [{"a": task()}] * 3,
    }
    found = results([SERIES], variants)
    assert row(found, "time", at=FAST).ours == "30.0 ± 0.0"
    assert row(replace(found, per_run="mean"), "time", at=FAST).ours == "20.0 ± 0.0"
    assert row(found, "time", at=FAST, task="a").ours == "10.0 ± 0.0"


def test_figures_say_if_their_labels_name_other_data() -> None:
    text = "Quick scale, not the paper's data: digits-mlp in place of mnist"
    found = timed([90.0] * 3, [200.0] * 3, figures=("bars", "dots", "ranking"), disclaimer=text)
    for figure in draw_figures(found).values():
        shown = figure.get_suptitle()
        assert " ".join(shown.split()) == text
    plain = timed([90.0] * 3, [200.0] * 3, figures=("bars",))
    assert draw_figures(plain)["bars"].get_suptitle() == ""


def missing(found: StudyResults, key: Key, until: float) -> StudyResults:
    """The same, but in this variant every run missed its target until then."""
    lost = {seed: run({"a": task(None)}, seed, finish=until) for seed in found.runs[key]}
    return replace(found, runs={**found.runs, key: lost})


def test_a_side_that_never_arrives_is_not_first() -> None:
    """However early it ended, by diverging say."""
    lost = missing(timed([50.0] * 3, [1000.0] * 3), ("fast",), until=50.0)
    assert row(lost, "first", at=FAST, others=("slow",)).verdict == "does not agree"
    assert row(lost, "last", at=SLOW, others=("fast",), tolerance=0.5).verdict == "does not agree"
    late = missing(timed([50.0] * 3, [1000.0] * 3), ("slow",), until=60.0)
    assert row(late, "first", at=FAST, others=("slow",)).verdict == "agrees"
    both = missing(late, ("fast",), until=50.0)
    assert row(both, "first", at=FAST, others=("slow",)).verdict == "cannot be told"
    assert row(both, "similar", at=FAST, others=("slow",), tolerance=9).verdict != "agrees"


def test_gains_where_a_target_was_missed() -> None:
    fine: dict[Key, float] = {
        ("2", "fast"): 50.0,
        ("2", "slow"): 100.0,
        ("4", "fast"): 50.0,
        ("4", "slow"): 100.0,
    }
    ours = missing(swept(fine), ("4", "fast"), until=300.0)
    found = row(ours, "positive-gain", at=FAST, over=SLOW)
    assert (found.verdict, found.note) == ("does not agree", "at 2; a target was missed at 4")
    base = missing(swept(fine), ("4", "slow"), until=300.0)
    assert row(base, "positive-gain", at=FAST, over=SLOW).verdict == "agrees"
    at = {"algorithm": "fast", "tasks": "4"}
    assert row(base, "gain", at=at, over=SLOW, paper=50.0).verdict == "cannot be told"
    assert row(ours, "gain", at=at, over=SLOW, paper=50.0).verdict == "does not agree"
