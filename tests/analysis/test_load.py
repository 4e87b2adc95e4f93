"""``fedast.load``: every kind of record as tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import fedast
from fedast.analysis.runs import RecordWarning
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.records.run import UnusableFolder
from fedast.run.execute import execute

ROOT = Path(__file__).parents[2]
CONFIG = """
[simulation]
clients = 10
loss_rate = 0.1
[algorithm]
name = "fedast-d"
requests = 6
[[tasks]]
use = "digits-mlp"
max_rounds = 5
evaluate_every = 2
[[tasks]]
use = "synthetic"
max_rounds = 8
evaluate_every = 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("results")
    file = place / "run.toml"
    file.write_text(CONFIG)
    for seed in (1, 2):
        config = resolve(load(file).model_copy(update={"seed": seed}), place)
        execute(config, place / "group" / f"seed-{seed}", events=True)
    file.unlink()
    return place


def test_a_folder_of_runs_is_one_frame(folder: Path) -> None:
    runs = fedast.load(folder)
    assert [run.name for run in runs] == ["group/seed-1", "group/seed-2"]
    curves = runs.curves
    assert isinstance(curves, pd.DataFrame)
    assert set(curves.seed) == {1, 2}
    assert set(curves.task) == {"digits-mlp", "synthetic"}
    written = pd.read_csv(folder / "group" / "seed-2" / "curves.csv")
    mine = curves[curves.run == "group/seed-2"][list(written.columns)].reset_index(drop=True)
    pd.testing.assert_frame_equal(mine, written, check_dtype=False)
    assert len(runs.results) == 4
    assert runs.config.loc[0, "algorithm.name"] == "fedast-d"
    assert runs.config.loc[1, "tasks.digits-mlp.max_rounds"] == 5


def test_events_and_requests(folder: Path) -> None:
    run = fedast.load(folder / "group" / "seed-1")[0]
    assert run.name == "seed-1"
    assert run.finished
    lines = (run.path / "events.jsonl").read_text().splitlines()
    assert len(run.events) == len(lines)
    requests = run.requests
    log = [json.loads(line) for line in lines]
    assert len(requests) == sum(event["event"] == "dispatch" for event in log)
    counted = requests[requests.outcome == "counted"]
    assert len(counted) == sum(event["event"] == "arrive" for event in log)
    assert (requests.outcome == "lost").sum() == sum(
        event["event"] == "drop" and event["reason"] == "lost" for event in log
    )
    assert (counted.started >= counted.dispatched).all()
    assert (counted.ended >= counted.started).all()
    aggregated = sum(len(event["requests"]) for event in log if event["event"] == "aggregate")
    assert counted["round"].notna().sum() == aggregated


def test_compact_records_and_records_of_the_first_version() -> None:
    runs = fedast.load(ROOT / "results" / "heterogeneous")
    assert len(runs) > 5
    assert {"fedast-d", "sync-st"} <= set(runs.results.algorithm)
    with pytest.raises(UnusableFolder, match="keeps no models"):
        runs[0].model("mnist")
    old = fedast.load(ROOT / "tests" / "fixtures" / "v0.1.0")
    assert len(old) > 0
    assert set(old.curves.model) <= {"raw"}


def test_an_unfinished_run_is_there_without_a_result(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "half"
    run.mkdir()
    for name in ("config.toml", "events.jsonl"):
        (run / name).write_bytes((folder / "group" / "seed-1" / name).read_bytes())
    with (run / "events.jsonl").open("a") as file:
        file.write('{"t":1.0,"eve')  # killed in the middle of a line
    found = fedast.load(run)[0]
    assert not found.finished
    assert found.algorithm == "fedast-d"
    assert len(found.curves) == 0
    assert len(found.requests) > 0


def test_a_broken_record_is_named_and_the_others_are_read(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "all")
    result = tmp_path / "all" / "group" / "seed-1" / "result.json"
    table = json.loads(result.read_text())
    result.write_text(json.dumps(table | {"schema": 99}))
    with pytest.warns(RecordWarning, match="has schema 99"):
        runs = fedast.load(tmp_path / "all")
    assert list(runs.broken) == ["group/seed-1"]
    assert [run.name for run in runs] == ["group/seed-2"]
    result.write_text("{")
    with pytest.warns(RecordWarning, match="cannot be read"):
        assert len(fedast.load(tmp_path / "all")) == 1


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableFolder, match="holds no run"):
        fedast.load(tmp_path)
    with pytest.raises(UnusableFolder, match="no such folder"):
        fedast.load(tmp_path / "nowhere")


def test_several_runs_have_no_one_model(folder: Path) -> None:
    with pytest.raises(UnusableFolder, match="has 2 runs; choose one"):
        fedast.load(folder).model("digits-mlp")


def test_without_pandas_tables_are_plain_columns(folder: Path) -> None:
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pandas' else real(name, *a)\n"
        "import fedast\n"
        f"curves = fedast.load({str(folder)!r}).curves\n"
        "print(curves.rows, list(curves)[:3], type(curves['value']).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = len(fedast.load(folder).curves)
    assert done.stdout.strip() == f"{rows} ['run', 'algorithm', 'seed'] list"
