"""Studies as data: the paper's, and files of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from fedast import FedASTDynamic, SyncST
from fedast.config.identity import identity
from fedast.parts.errors import ConfigError
from fedast.reproduce.expand import merge
from fedast.reproduce.jobs import jobs_of, run_jobs
from fedast.reproduce.load import find_studies, load_study, studies
from fedast.reproduce.store import stored_runs
from fedast.reproduce.study import Scale
from tests.reproduce.support import SMALL, fedast

# --- the paper's studies ------------------------------------------------------------------------


def test_the_studies_are_those_of_the_paper() -> None:
    assert list(studies()) == [
        "heterogeneous", "all-methods", "homogeneous", "other-targets", "dynamic-vs-static",
        "need-for-buffer", "buffer-two-tasks", "buffer-size", "first-k", "larger-model",
        "share-search", "decisions", "precision",
        "faster", "faster-held", "faster-targets", "faster-homogeneous",  # our own method's
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
    assert config.simulation.availability.model_dump() == {"name": "active_cap", "cap": cap}
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
        "simulation": {"clients": 5, "delay": {"name": "constant", "value": 2.0}},
    }
    other = {"max_time": 3, "delay": {"name": "uniform"}}
    merge(table, {"algorithm": {"name": "fedast-s"}, "simulation": other})
    assert table == {
        "algorithm": {"name": "fedast-s", "ratio": 8},
        "simulation": {"clients": 5, "max_time": 3, "delay": {"name": "uniform"}},
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
