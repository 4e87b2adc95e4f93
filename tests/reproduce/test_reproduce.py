"""Studies run, stored and reported."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.records.compact import POINTS, read, thinned, write
from fedast.records.metrics import Point
from fedast.records.run import UnusableFolder
from fedast.reproduce.collect import collect
from fedast.reproduce.jobs import jobs_of, run_jobs
from fedast.reproduce.load import find_studies, load_study, studies
from fedast.reproduce.store import stored_runs
from fedast.reproduce.study import Scale
from fedast.reproduce.tables import between_markers
from fedast.run.execute import execute
from tests.reproduce.support import SMALL, fedast

REPOSITORY = Path(__file__).parents[2]


# --- running ------------------------------------------------------------------------------------


def test_small_tasks_do_not_get_the_options_of_the_papers() -> None:
    study = studies()["decisions"]
    variant = next(variant for variant in study.variants() if "ReLU" in variant.key[0])

    def options(scale: Scale) -> dict[str, Any]:
        return next(t for t in variant.config(1, scale).tasks if t.name == "fashion-mnist").options

    assert options("full")["relu_on_logits"] is True
    assert "relu_on_logits" not in options("quick")


def test_a_study_is_run_once_and_reported(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    quick = ("reproduce", small, "--scale", "quick", "--out", out)
    part = fedast(*quick, "--only", "1", "--only", "sync-st", "--seeds", "1")
    assert part.exit_code == 0, part.output
    assert [p.relative_to(out).as_posix() for p in sorted(out.rglob("*.json"))] == [
        "reproduction.json", "small/1_sync-st/seed-1.json"
    ]  # fmt: skip
    kept = (out / "small/1_sync-st/seed-1.json").read_bytes()
    dry = fedast(*quick, "--dry-run")
    assert "8 runs, 1 of them" in dry.output
    assert "1, Sync-ST, seed 1" not in dry.output
    whole = fedast(*quick)
    assert whole.exit_code == 0, whole.output
    assert "7 to go" in whole.output
    assert (out / "small/1_sync-st/seed-1.json").read_bytes() == kept
    assert "0 to go" in fedast(*quick).output

    # A run can be repeated from its configuration, and is the same.
    place = out / "small/2_fedast-s/seed-2"
    again = fedast("run", place.with_suffix(".toml"), "--out", tmp_path / "again", "-q")
    assert again.exit_code == 0, again.output
    stored = json.loads(place.with_suffix(".json").read_text())
    repeated = json.loads((tmp_path / "again" / "result.json").read_text())
    assert repeated["seed"] == stored["seed"] == 2
    times = {name: task["time_to_target"] for name, task in repeated["tasks"].items()}
    assert times == {n: t["result"]["time_to_target"] for n, t in stored["tasks"].items()}

    # One folder, one scale, one set of settings.
    mixed = fedast(
        "reproduce",
        small,
        "--scale",
        "quick",
        "--out",
        out,
        "--set",
        "simulation.clients=99",
        "--again",
    )
    assert mixed.exit_code == 2
    assert "holds runs of scale quick" in mixed.output

    page = fedast("report", out, small)
    assert page.exit_code == 0, page.output
    text = (out / "report.html").read_text()
    assert text.count("<img") == 4
    assert "http" not in text  # it stands alone
    assert f"fedast run {out.as_posix()}/small/2_fedast-s/seed-1.toml" in text
    assert sorted(p.name for p in (out / "figures").iterdir()) == [
        f"small-{kind}.{suffix}"
        for kind in ("bars", "curves", "dots", "ranking")
        for suffix in ("pdf", "png", "svg")
    ]  # fmt: skip
    (row,) = json.loads(fedast("report", out, small, "--json").output)
    assert row["verdict"] == "not compared"
    assert row["seeds"] == 2


OWN_FIGURE = """
from matplotlib.figure import Figure

def finish(results):
    figure = Figure()
    panel = figure.subplots()
    for number, runs in enumerate(results.runs.values()):
        panel.scatter([number] * len(runs), [run.finish_time for run in runs.values()])
    return figure
"""


def test_a_study_can_name_a_figure_of_ones_own(small: Path, tmp_path: Path) -> None:
    text = SMALL.replace('"bars", "curves", "dots"', '"own_figure:finish"')
    small.write_text(text.replace('title = "A', 'title = "<i>A'))
    out = tmp_path / "results"
    only = ("--only", "1", "--only", "FedAST(S)", "--seeds", "1")
    fedast("reproduce", small, "--scale", "quick", "--out", out, *only)
    refused = fedast("report", out, small)
    assert refused.exit_code == 2
    assert "own_figure:finish: module 'own_figure' cannot be imported" in refused.output
    (tmp_path / "own_figure.py").write_text(OWN_FIGURE)
    page = fedast("report", out, small)
    assert page.exit_code == 0, page.output
    assert sorted(path.name for path in (out / "figures").glob("*.png")) == [
        "small-own-figure-finish.png", "small-ranking.png"
    ]  # fmt: skip
    html = (out / "report.html").read_text()
    assert "&lt;i&gt;A study" in html
    assert "<i>A study" not in html


BROKEN = """
from fedast import Task
def build(clients, seed, **options):
    raise RuntimeError("no such data")
"""


def test_a_run_that_fails_does_not_end_the_others(small: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    out = tmp_path / "r"
    jobs = jobs_of([load_study(small)], "quick", 1, only=["Sync-ST"])
    broken = jobs[0].config.model_copy(
        update={"path": (str(tmp_path),), "tasks": (
            jobs[0].config.tasks[0].model_copy(update={"use": "broken:build"}),)}
    )  # fmt: skip
    failed: list[str] = []
    out.mkdir()
    run_jobs(
        [replace(jobs[0], config=broken), jobs[1]],
        out,
        "quick",
        at_a_time=1,
        failed=lambda job, error: failed.append(f"{job.label}: {error}"),
    )
    assert len(failed) == 1
    assert "no such data" in failed[0]
    assert [p.name for p in out.rglob("seed-1.json")] == ["seed-1.json"]


def test_a_kept_configuration_gives_the_same_run_again(small: Path, tmp_path: Path) -> None:
    """It has everything that is resolved, with the trainers that were chosen."""
    (job, *_) = jobs_of([load_study(small)], "quick", 1)
    run_jobs([job], tmp_path, "quick", at_a_time=1, failed=lambda job, error: None)
    kept = tmp_path / f"{job.path}.toml"
    config = resolve(load(kept), kept.parent)
    assert config.model_copy(update={"compute": job.config.compute}) == job.config.model_copy(
        update={"algorithms": {}}
    )
    assert config.compute.device == "cpu"
    assert config.compute.precision == "fp32"
    assert config.compute.trainers.keys() == {task.name for task in config.tasks}
    again = execute(config).result
    stored = read(kept.with_suffix(".json"))
    for name, task in stored.tasks.items():
        assert task.to_json() == again.tasks[name].to_json()


def test_substitutes_at_quick_scale_are_named(small: Path, tmp_path: Path) -> None:
    for scale, text in (
        ("quick", "Quick scale, not the paper's data: digits-mlp in place of mnist"),
        ("full", ""),
    ):
        (found,) = collect([load_study(small)], tmp_path, cast("Scale", scale))
        assert found.disclaimer == text


def test_another_run_is_not_overwritten(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    quick = ("reproduce", small, "--scale", "quick", "--out", out, "--only", "1",
             "--only", "sync-st", "--seeds", "1", "-q")  # fmt: skip
    assert fedast(*quick).exit_code == 0
    small.write_text(SMALL.replace("max_time = 600", "max_time = 300"))
    assert fedast(*quick).exit_code == 0
    assert len(list(out.rglob("seed-1.json"))) == 2
    small.write_text(SMALL)
    assert "0 to go" in fedast(*quick[:-1]).output


def test_a_study_may_not_have_the_name_of_one_of_the_papers(tmp_path: Path) -> None:
    (tmp_path / "first-k.toml").write_text(SMALL)
    assert "rename the file" in fedast("reproduce", tmp_path / "first-k.toml").output


def test_a_study_of_the_paper_runs_at_quick_scale(tmp_path: Path) -> None:
    run_quick(["buffer-two-tasks"], tmp_path / "results")


@pytest.mark.slow
def test_all_studies_run_at_quick_scale(tmp_path: Path) -> None:
    run_quick(["all", "share-search", "decisions"], tmp_path / "results")


def run_quick(names: list[str], out: Path) -> None:
    done = fedast("reproduce", *names, "--scale", "quick", "--seeds", "1", "--out", out)
    assert done.exit_code == 0, done.output
    page = fedast("report", out, *names)
    assert page.exit_code == 0, page.output
    for study in find_studies(names):
        assert f'id="{study.name}"' in (out / "report.html").read_text()
        for kind in study.config.figures:
            assert (out / "figures" / f"{study.name}-{kind}.png").stat().st_size > 5000
    rows = json.loads(fedast("report", out, *names, "--json").output)
    assert len(rows) == sum(len(study.config.claims) for study in find_studies(names))


# --- the compact record -------------------------------------------------------------------------


def test_a_compact_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    stored = next(iter(stored_runs(REPOSITORY / "results").values())).run
    write(tmp_path / "a.json", stored)
    assert read(tmp_path / "a.json") == stored
    (tmp_path / "b.json").write_text('{"schema": 99}')
    with pytest.raises(UnusableFolder, match="schema 99"):
        read(tmp_path / "b.json")
    (tmp_path / "c.json").write_text('{"schema": 1')
    with pytest.raises(UnusableFolder, match="no compact run"):
        read(tmp_path / "c.json")


def test_thinned_curves_keep_their_ends_and_their_target() -> None:
    curve = [Point(float(i), i, i / 1000, 1.0) for i in range(1001)]
    thin = thinned(curve, 777.0)
    assert POINTS - 5 < len(thin) < POINTS + 5
    assert {0.0, 777.0, 1000.0} <= {point.time for point in thin}
    assert thinned(curve[:7], None) == tuple(curve[:7])


# --- what is published --------------------------------------------------------------------------


def test_published_runs_are_runs_of_the_studies() -> None:
    """Every file under results/ is found by a study, so none is stale."""
    known = {job.identity for job in jobs_of(list(studies().values()), "full")}
    stored = stored_runs(REPOSITORY / "results")
    assert stored
    found = {run.path for key, run in stored.items() if key in known}
    assert {run.path for run in stored.values()} == found


def test_the_published_tables_are_current(tmp_path: Path) -> None:
    name = "docs/results.md"
    copy = tmp_path / name
    copy.parent.mkdir()
    copy.write_text((REPOSITORY / name).read_text())
    (tmp_path / "results").symlink_to(REPOSITORY / "results")
    done = fedast("report", tmp_path / "results", "--no-page", "--update", copy)
    assert done.exit_code == 0, done.output
    assert copy.read_text() == (REPOSITORY / name).read_text(), "run make results"


def test_markers() -> None:
    text = "a\n<!-- t -->\nold\n<!-- /t -->\nb"
    assert between_markers(text, "t", "new") == "a\n<!-- t -->\nnew\n<!-- /t -->\nb"
    with pytest.raises(KeyError):
        between_markers(text, "other", "new")
    with pytest.raises(ValueError, match="without"):
        between_markers("<!-- t -->", "t", "new")


def test_configurations_beside_results_are_whole() -> None:
    """Each says everything, also how it was computed: what is resolved is what it says."""
    paths = list((REPOSITORY / "results").glob("*/*/seed-*.toml"))
    assert len(paths) > 300
    for path in paths:
        table = tomllib.loads(path.read_text())
        config = resolve(load(path))
        machine = read(path.with_suffix(".json")).machine
        assert table["compute"]["precision"] == machine["precision"] != "auto"
        assert table["compute"]["device"] == ("cpu" if "CPU" in machine["device"] else "cuda")
        assert config.simulation.max_time == table["simulation"]["max_time"]
        assert [task.target for task in config.tasks] == [t["target"] for t in table["tasks"]]
        names = read(path.with_suffix(".json")).tasks.keys()
        assert list(names) == [task["name"] for task in table["tasks"]]
