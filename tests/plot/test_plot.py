"""``fedast.plot``: figures of loaded runs, and the numbers in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import fedast
from fedast.analysis.runs import Run, Runs
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.plot.requests import participation_of, staleness_of
from fedast.plot.study import requests_of, study_of, variants
from fedast.reproduce.figures.curves import curve_panels
from fedast.reproduce.results import Columns
from fedast.run.execute import execute
from tests.plot.overlaps import overlaps

ROOT = Path(__file__).parents[2]
CONFIG = """
[simulation]
clients = 20
[algorithm]
requests = 12
period = 0.2
[algorithms.sync-st]
first_k = 2
[[tasks]]
use = "digits-mlp"
max_rounds = 12
target = 0.2
evaluate_every = 1
[[tasks]]
use = "synthetic"
max_rounds = 12
evaluate_every = 2
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    place = tmp_path_factory.mktemp("results")
    file = place / "run.toml"
    file.write_text(CONFIG)
    for algorithm in ("fedast-d", "sync-st"):
        for seed in (1, 2):
            config = load(file, algorithm=algorithm).model_copy(update={"seed": seed})
            execute(resolve(config, place), place / algorithm / f"seed-{seed}", events=True)
    file.unlink()
    return fedast.load(place)


def test_nothing_heavy_is_loaded_before_it_is_used() -> None:
    code = (
        "import sys, fedast; fedast.plot.curves; "
        "print([name for name in ('matplotlib', 'torch', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert "plot" in dir(fedast)


FIGURES: dict[str, Callable[[Runs], Figure]] = {
    "curves": lambda runs: fedast.plot.curves(runs, title="two tasks"),
    "losses": lambda runs: fedast.plot.curves(runs, loss=True, columns=1),
    "times": lambda runs: fedast.plot.times(runs, baseline="Sync-ST"),
    "held": lambda runs: fedast.plot.times(runs, held=True),
    "gains": lambda runs: fedast.plot.gains(runs, columns=1),
    "race": lambda runs: fedast.plot.race(runs, "FedAST(D)", "Sync-ST"),
    "tasks": lambda runs: fedast.plot.tasks(runs),
    "dots": lambda runs: fedast.plot.dots(runs, ranked=True),
    "sweep": lambda runs: fedast.plot.sweep(runs, "seed", "final"),
    "allocation": lambda runs: fedast.plot.allocation(runs),
    "participation": lambda runs: fedast.plot.participation(runs),
    "staleness": lambda runs: fedast.plot.staleness(runs, columns=1),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_is_drawn_without_overlaps(runs: Runs, kind: str) -> None:
    figure = FIGURES[kind](runs)
    assert isinstance(figure, Figure)
    assert overlaps(figure) == []


def test_a_run_a_list_and_a_whole_folder_can_be_drawn(runs: Runs) -> None:
    for given, series in ((runs[0], 1), ([runs[0], runs[1]], 1), (runs, 2)):
        legend = fedast.plot.curves(given).legends[0]
        assert [text.get_text() for text in legend.get_texts()] == [
            "target", *["FedAST(D)", "Sync-ST"][:series]
        ]  # fmt: skip


def test_curves_are_means_over_the_seeds_of_a_variant(runs: Runs) -> None:
    digits, synthetic = curve_panels(study_of(runs))
    assert (digits.title, digits.target, synthetic.title) == ("digits-mlp", 0.2, "synthetic")
    line = next(line for line in digits.lines if line.label == "FedAST(D)")
    last = [run.tasks["digits-mlp"].curve[-1].value for run in runs if run.algorithm == "fedast-d"]
    assert line.runs == 2
    assert line.curve.mean[-1] == pytest.approx(sum(last) / 2)
    assert (line.curve.low[-1], line.curve.high[-1]) == pytest.approx((min(last), max(last)))


def test_variants_are_told_apart_by_what_differs(runs: Runs) -> None:
    assert set(variants(list(runs))) == {"FedAST(D)", "Sync-ST"}
    fedast_d = [run for run in runs if run.algorithm == "fedast-d"]
    alike = variants([*fedast_d, _renamed(fedast_d[0], "other/seed-1")])
    assert alike == ["FedAST(D)", "FedAST(D)", "other"]


def _renamed(run: Run, name: str) -> Run:
    path = run.path.parent.parent / name
    return Run(name, path, run.algorithm, run.seed, run.tasks, run.finish_time)


@pytest.mark.parametrize("columns", [1, 2])
def test_many_series_have_room_in_the_legend(runs: Runs, columns: Columns) -> None:
    many = [
        _renamed(runs[0], f"a rather long name of a variant, number {number}/seed-1")
        for number in range(11)
    ]
    assert overlaps(fedast.plot.curves(many, columns=columns)) == []
    short = [_renamed(runs[0], f"variant-{number}/seed-1") for number in range(11)]
    assert overlaps(fedast.plot.curves(short, columns=columns)) == []


def test_requests_over_time_come_from_the_events(runs: Runs) -> None:
    run = runs["fedast-d/seed-1"]
    requests = requests_of(run)
    events = run.events
    moves = events[events.event == "realloc"]
    assert requests["digits-mlp"][0] == (0.0, run.keys["tasks.digits-mlp.requests"])
    assert [n for _, n in requests["digits-mlp"][1:]] == [
        targets["digits-mlp"] for targets in moves.targets if "digits-mlp" in targets
    ]
    assert requests_of(runs["sync-st/seed-1"]) == {}


def test_participation_and_staleness_count_every_update_once(runs: Runs) -> None:
    run = runs["fedast-d/seed-1"]
    requests = run.requests
    counted = requests[requests.outcome == "counted"]
    shares = participation_of(run)
    assert set(shares) == {0.7, 1.0, 1.3}
    members = {0.7: 5, 1.0: 10, 1.3: 5}  # of 20 clients a quarter, a half, a quarter
    assert sum(members[factor] * share for factor, share in shares.items()) == pytest.approx(20)
    found = staleness_of("a", [run])["digits-mlp"]
    mine = counted[counted.task == "digits-mlp"].staleness
    assert found.mean == pytest.approx(mine.mean())
    assert sum(found.shares) == pytest.approx(100)
    assert len(found.shares) == mine.max() + 1


def test_mistakes_are_said_in_one_line(runs: Runs, tmp_path: Path) -> None:
    compact = fedast.load(ROOT / "results" / "heterogeneous")
    cases: list[tuple[Callable[[], Figure], str]] = [
        (lambda: fedast.plot.curves([]), "there are no runs"),
        (lambda: fedast.plot.times(runs, baseline="Sync"), "did you mean 'Sync-ST'"),
        (lambda: fedast.plot.race(runs, "Sync", "Sync-ST"), "no series is called 'Sync'"),
        (lambda: fedast.plot.sweep(runs, "algorithm.first"), "did you mean 'algorithm.first_k'"),
        (lambda: fedast.plot.curves([*runs, *compact]), "the runs have different tasks"),
        (lambda: fedast.plot.curves(compact, series="algorithm"), "say what tells them apart"),
        (lambda: fedast.plot.staleness(compact), "make them with --events"),
        (lambda: fedast.plot.gains(runs[0]), "a gain needs two series"),
        (lambda: fedast.plot.allocation(runs["sync-st/seed-1"]), "train in rounds"),
        (lambda: fedast.plot.curves(runs, columns=3), "columns must be 1 or 2"),  # type: ignore[arg-type]
    ]
    for draw, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            draw()
        assert "\n" not in str(error.value)
