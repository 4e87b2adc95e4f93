"""Studies: their files, their runs, what is found again, and what is made of them."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from fedast import FedASTDynamic, SyncST
from fedast.cli.main import cli
from fedast.config.identity import identity
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.parts.errors import ConfigError
from fedast.records.compact import POINTS, read, thinned, write
from fedast.records.metrics import Point
from fedast.records.run import UnusableFolder
from fedast.reproduce.collect import collect
from fedast.reproduce.expand import merge
from fedast.reproduce.jobs import jobs_of, run_jobs
from fedast.reproduce.load import find_studies, load_study, studies
from fedast.reproduce.store import stored_runs
from fedast.reproduce.study import Scale
from fedast.reproduce.tables import between_markers
from fedast.run.execute import execute

REPOSITORY = Path(__file__).parents[2]

SMALL = """
title = "A study of one's own"
where = "nowhere"
says = "that it works"
figures = ["bars", "curves", "dots", "ranking"]
baseline = "Sync-ST"
per_run = "mean"
seeds = 2

[base]
template = { use = "mnist" }

[base.simulation]
until = "all"
max_time = 600

[[axes]]
name = "tasks"
role = "x"
values = [{ label = "1", set = { copies = 1 } }, { label = "2", set = { copies = 2 } }]

[[axes]]
name = "algorithm"
role = "series"
values = [
  { label = "FedAST(S)", set = { algorithm = { name = "fedast-s" } } },
  { label = "Sync-ST", set = { algorithm = { name = "sync-st" } } },
]

[[claims]]
what = "FedAST is first"
where = "nowhere"
measure = "first"
at = { tasks = "2", algorithm = "FedAST(S)" }
others = ["Sync-ST"]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def fedast(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


# --- the paper's studies ------------------------------------------------------------------------


def test_the_studies_are_those_of_the_paper() -> None:
    assert list(studies()) == [
        "heterogeneous", "all-methods", "homogeneous", "other-targets", "dynamic-vs-static",
        "need-for-buffer", "buffer-two-tasks", "buffer-size", "first-k", "larger-model",
        "share-search", "decisions", "precision",
    ]  # fmt: skip


@pytest.mark.parametrize("name", list(studies()))
def test_every_run_of_every_study_resolves_at_both_scales(name: str) -> None:
    (study,) = find_studies([name])
    variants = list(study.variants())
    assert len(variants) >= 2
    for variant in variants:
        full, quick = variant.config(1, "full"), variant.config(1, "quick")
        assert full.simulation.clients == 1000
        assert quick.simulation.clients == 160
        assert [t.name for t in quick.tasks] == [t.name for t in full.tasks]
        assert all(task.use in ("digits-mlp", "digits-cnn", "synthetic") for task in quick.tasks)


def test_the_main_experiment_is_the_papers() -> None:
    (study,) = find_studies(["heterogeneous"])
    config = next(c for c in study.variants() if c.key == ("FedAST(D)",)).config(1, "full")
    assert isinstance(config.algorithm, FedASTDynamic)
    assert config.algorithm.requests == 384
    assert [(t.use, t.requests, t.buffer, t.target) for t in config.tasks] == [
        ("mnist", 96, 3, 0.93),
        ("fashion-mnist", 96, 3, 0.82),
        ("cifar10", 96, 3, 0.63),
        ("shakespeare", 96, 3, 0.42),
    ]
    sync = next(c for c in study.variants() if c.key == ("Sync-ST",)).config(1, "full")
    assert isinstance(sync.algorithm, SyncST)
    assert sync.algorithm.first_k == 30
    assert [t.share for t in sync.tasks] == [100, 84, 48, 68]
    assert [t.client_lr for t in sync.tasks] == [0.2, 0.06, 0.1, 7.0]


@pytest.mark.parametrize(("copies", "requests", "buffer"), [(2, 192, 6), (4, 96, 3), (6, 64, 2)])
def test_copies_share_the_requests(copies: int, requests: int, buffer: int) -> None:
    (study,) = find_studies(["homogeneous"])
    key = ("CIFAR-10", str(copies), "FedAST(S)")
    config = next(c for c in study.variants() if c.key == key).config(1, "full")
    assert [(t.requests, t.buffer) for t in config.tasks] == [(requests, buffer)] * copies
    assert config.simulation.until == "all"


@pytest.mark.parametrize(("label", "cap", "total", "buffer"), [("0.05", 50, 64, 1),
                                                               ("0.5", 500, 640, 7)])  # fmt: skip
def test_active_clients_set_the_requests(label: str, cap: int, total: int, buffer: int) -> None:
    (study,) = find_studies(["need-for-buffer"])
    key = ("CIFAR-10", label, "FedAST")
    config = next(c for c in study.variants() if c.key == key).config(1, "full")
    assert config.simulation.availability.model_dump() == {"model": "active_cap", "cap": cap}
    assert config.algorithm.model_dump()["requests"] == total
    assert {t.buffer for t in config.tasks} == {buffer}


def test_studies_share_their_runs() -> None:
    known = studies()
    alone = len(jobs_of([known["dynamic-vs-static"]], "full"))
    together = [known[name] for name in ("heterogeneous", "other-targets", "dynamic-vs-static")]
    assert alone == 18
    assert len(jobs_of(together, "full")) == len(jobs_of(together[:2], "full"))
    assert len(jobs_of(together[:2], "full")) == 15 + 18
    six = jobs_of([known["all-methods"]], "full", 1)
    more = jobs_of([known["all-methods"], known["homogeneous"]], "full", 1)
    assert len(more) == len(six) + len(jobs_of([known["homogeneous"]], "full", 1)) - 2


def test_where_a_run_is_computed_does_not_make_it_another() -> None:
    (job, *_) = jobs_of([studies()["heterogeneous"]], "full", 1)
    moved = job.config.compute.model_copy(update={"device": "cuda", "threads": 2})
    assert identity(job.config.model_copy(update={"compute": moved})) == job.identity
    assert identity(job.config.model_copy(update={"seed": 9})) != job.identity


def test_a_precision_that_is_asked_for_makes_another_run(small: Path, tmp_path: Path) -> None:
    """A study without a precision takes what there is; one with a precision only its own."""
    (job, *_) = jobs_of([load_study(small)], "quick", 1)
    failures: list[Exception] = []
    run_jobs([job], tmp_path, "quick", at_a_time=1, failed=lambda _, e: failures.append(e))
    assert failures == []
    found = stored_runs(tmp_path)
    assert job.identity in found
    for precision, there in (("fp32", True), ("fp16", False)):
        asked = job.config.compute.model_copy(update={"precision": precision})
        key = identity(job.config.model_copy(update={"compute": asked}))
        assert (key in found) is there


# --- files of one's own -------------------------------------------------------------------------


def test_another_model_starts_anew_and_another_algorithm_does_not() -> None:
    table: dict[str, Any] = {
        "algorithm": {"name": "fedast-d", "ratio": 8},
        "simulation": {"clients": 5, "delay": {"model": "constant", "value": 2.0}},
    }
    other = {"max_time": 3, "delay": {"model": "uniform"}}
    merge(table, {"algorithm": {"name": "fedast-s"}, "simulation": other})
    assert table == {
        "algorithm": {"name": "fedast-s", "ratio": 8},
        "simulation": {"clients": 5, "max_time": 3, "delay": {"model": "uniform"}},
    }


def test_options_of_the_base_hold_for_every_algorithm_that_has_them(small: Path) -> None:
    base = "[base.algorithm]\nname = 'fedast-s'\n{}\n[base.simulation]\n"
    small.write_text(SMALL.replace("[base.simulation]\n", base.format("server_lr = 0.7")))
    rates = {
        variant.key[1]: variant.config(1, "full").tasks[0].server_lr
        for variant in load_study(small).variants()
    }
    assert rates == {"FedAST(S)": 0.7, "Sync-ST": 0.7}
    small.write_text(SMALL.replace("[base.simulation]\n", base.format("requests = 40")))
    with pytest.raises(ConfigError, match=r"algorithm\.requests: sync-st has no such option"):
        load_study(small)
    own = "[base.algorithms.fedast-s]\nrequests = 40\n[base.simulation]\n"
    small.write_text(SMALL.replace("[base.simulation]\n", own))
    totals = {
        variant.key[1]: getattr(variant.config(1, "full").algorithm, "requests", None)
        for variant in load_study(small).variants()
    }
    assert totals == {"FedAST(S)": 40, "Sync-ST": None}


def test_an_axis_says_more_than_the_base_of_an_algorithm(small: Path) -> None:
    """And what the base says is as small as the rest at quick scale."""
    own = "[base.algorithms.sync-st]\nfirst_k = 40\n[base.simulation]\n"
    axis = '{ label = "Sync-ST", set = { algorithm = { name = "sync-st", first_k = 20 } } }'
    plain = '{ label = "Sync-ST", set = { algorithm = { name = "sync-st" } } }'
    other = plain.replace('label = "Sync-ST"', 'label = "Another"')  # for which the base counts
    for value, counts in (
        (plain, {"full": 40, "quick": 6}),
        (f"{axis}, {other}", {"full": 20, "quick": 3}),
    ):
        small.write_text(SMALL.replace("[base.simulation]\n", own).replace(plain, value))
        variant = next(
            variant for variant in load_study(small).variants() if variant.key[1] == "Sync-ST"
        )
        for scale, count in counts.items():
            algorithm = variant.config(1, cast("Scale", scale)).algorithm
            assert isinstance(algorithm, SyncST)
            assert algorithm.first_k == count


def test_keys_of_earlier_versions_are_still_read(small: Path) -> None:
    """Those of studies, and those of configurations wherever a study has them."""
    new = SMALL.replace("[base]\n", "[base]\neach = { server_lr = 0.3, client_lr = 0.2 }\n")
    new = new.replace("copies = 2", "copies = 2, task = { mnist-1 = { client_lr = 0.1 } }")
    old = new.replace("_lr", "_rate").replace("[[claims]]", "[[reported]]")
    configs = []
    for text in (new, old):
        small.write_text('extends = "homogeneous"\n' + text)
        study = load_study(small)
        assert [claim.what for claim in study.config.claims] == ["FedAST is first"]
        configs.append([variant.config(1, "full") for variant in study.variants()])
        small.write_text('like = "homogeneous"\n' + text)
        assert load_study(small).base == study.base
    assert configs[0] == configs[1]
    assert [task.client_lr for task in configs[0][2].tasks] == [0.1, 0.2]
    small.write_text('like = "homogeneous"\nextends = "homogeneous"\n' + SMALL)
    with pytest.raises(ConfigError, match="like: is now called extends, which is set too"):
        load_study(small)


def test_the_papers_best_is_a_value_of_its_axis(small: Path) -> None:
    small.write_text(
        SMALL
        + "[[claims]]\nwhat = 'w'\nwhere = 'p'\nmeasure = 'best'\nalong = 'tasks'\n"
        + "at = { algorithm = 'Sync-ST' }\npaper = 3\n"
    )
    with pytest.raises(ConfigError, match="paper must be one of the values of tasks"):
        load_study(small)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "[base]\n",
            "[base]\ncopies = 5\n",
            r"base\.copies: has no effect in any variant",
        ),
        (
            "[base]\n",
            "[base]\ntask = {minst = {share = 2}}\n",
            "task.minst: there is no such task; did you",
        ),
        ("[base]\n", "[base]\ntasks = [{use = 'mnist'}]\n", "template: replaces tasks"),
        ('template = { use = "mnist" }', "tasks = [{use = 'mnist'}]", "copies: needs a template"),
    ],
)
def test_nothing_in_a_base_is_ignored(small: Path, old: str, new: str, message: str) -> None:
    small.write_text(SMALL.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_study(small)


def test_settings_of_one_algorithm_reach_its_runs_only(small: Path, tmp_path: Path) -> None:
    setting = "algorithms.sync-st.first_k=4"
    jobs = jobs_of([load_study(small)], "quick", 1, settings=[setting])
    found = {job.config.algorithm.name: job.config.algorithm for job in jobs}
    assert found["sync-st"] == found["sync-st"].model_copy(update={"first_k": 4})
    other = ("--set", "algorithms.fedbuff.idle=false")
    refused = fedast("reproduce", small, "--scale", "quick", "--out", tmp_path / "r", *other)
    assert refused.exit_code == 2
    assert "algorithms.fedbuff.idle: fedbuff does not run here" in refused.output
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('others = ["Sync-ST"]', 'others = ["Sync-S"]', "Sync-ST"),
        ('tasks = "2", ', 'task = "2", ', "no axis 'task'"),
        ('label = "2"', 'label = "1"', "have the same label"),
        ('measure = "first"', 'measure = "fastest"', "measure"),
        ("title =", "titel =", "title"),
        ('"bars"', '"barss"', "there is no figure 'barss'; did you mean 'bars'"),
        ('extends = "x"', "", ""),
    ],
)
def test_what_is_wrong_with_a_file_is_said(small: Path, old: str, new: str, message: str) -> None:
    if not message:
        small.write_text('extends = "nothing"\n' + SMALL)
        message = "there is no study 'nothing'"
    else:
        assert old in SMALL
        small.write_text(SMALL.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        load_study(small)


def test_a_sweep_needs_an_axis_to_sweep(small: Path) -> None:
    small.write_text(
        SMALL.replace('"bars"', '"sweep-time"').replace('role = "x"', 'role = "panel"')
    )
    with pytest.raises(ConfigError, match="sweep-time needs an axis with role x"):
        load_study(small)


def test_unknown_names_and_labels_are_said(small: Path, tmp_path: Path) -> None:
    unknown = fedast("reproduce", "heterogenous")
    assert unknown.exit_code == 2
    assert "did you mean 'heterogeneous'" in unknown.output
    label = fedast("reproduce", small, "--only", "FedAST(D)", "--out", tmp_path / "r")
    assert label.exit_code == 2
    assert "FedAST(S)" in label.output
    assert not (tmp_path / "r").exists()
    assert fedast("reproduce").exit_code == 2


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
    assert {name: task.result for name, task in stored.tasks.items()} == dict(again.tasks)


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


@pytest.mark.parametrize("name", ["heterogeneous", "buffer-two-tasks"])
def test_studies_run_at_quick_scale(name: str, tmp_path: Path) -> None:
    run_quick([name], tmp_path / "results")


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
    for name in ("README.md", "docs/results.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text((REPOSITORY / name).read_text())
    (tmp_path / "results").symlink_to(REPOSITORY / "results")
    files = [tmp_path / "README.md", tmp_path / "docs" / "results.md"]
    done = fedast("report", tmp_path / "results", "--no-page",
                  *(part for file in files for part in ("--update", file)))  # fmt: skip
    assert done.exit_code == 0, done.output
    for name, file in zip(("README.md", "docs/results.md"), files, strict=True):
        assert file.read_text() == (REPOSITORY / name).read_text(), "run make results"


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
