from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedast.cli.tables import saturation_warnings
from fedast.records import compact, toml
from fedast.records.compact import CompactRun
from fedast.records.files import write_atomically
from fedast.records.metrics import Point
from fedast.records.run import (
    RunResult,
    TaskResult,
    UnusableFolder,
    claim_folder,
    read_run,
    write_result,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
keys = st.text(min_size=1, max_size=8)
tables = st.recursive(
    st.dictionaries(keys, st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=3),
    lambda inner: st.dictionaries(
        keys, st.one_of(scalars, inner, st.lists(inner, min_size=1, max_size=3)), max_size=3
    ),
    max_leaves=12,
)


@given(tables)
def test_toml_reads_back_what_was_written(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml.dumps(table)) == table


def test_toml_leaves_out_none() -> None:
    assert toml.dumps({"a": None, "b": {"c": None, "d": 1e-05}}) == "[b]\nd = 1e-05\n"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "ä\n")
    assert path.read_bytes() == "ä\n".encode()
    write_atomically(path, b"\xff")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_bytes() == b"\xff"
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="file"):
        write_atomically(path, "text")
    assert list(tmp_path.iterdir()) == [path]


def result() -> RunResult:
    return RunResult(
        algorithm="fedast-d",
        seed=3,
        tasks={
            "a": TaskResult(
                "accuracy", 12.5, 0.91, 0.3, 40, 120, 7.5, 19, "target",
                curve=(Point(0.0, 0, 0.1, 2.3), Point(12.5, 40, 0.91, 0.3)),
            ),
            "b": TaskResult(
                "perplexity", None, None, None, 0, 0, 0.0, 0, "diverged",
                curve=(Point(0.0, 0, 0.1, float("nan")),),
            ),
        },
        finish_time=30.25,
        wall_seconds=1.5,
        updates_per_second=80.0,
    )  # fmt: skip


def test_result_and_curves_follow_the_contract(tmp_path: Path) -> None:
    write_result(tmp_path, result())
    data = json.loads((tmp_path / "result.json").read_text())
    assert set(data) == {
        "schema", "algorithm", "seed", "tasks", "finish_time", "wall_seconds",
        "updates_per_second",
    }  # fmt: skip
    assert set(data["tasks"]["a"]) == {
        "metric", "time_to_target", "final", "final_loss", "rounds", "updates",
        "staleness_mean", "staleness_max", "finish_reason",
    }  # fmt: skip
    assert data["tasks"]["b"]["time_to_target"] is None
    lines = (tmp_path / "curves.csv").read_text().splitlines()
    assert lines == [
        "task,time,round,model,metric,value,loss",
        "a,0.0,0,raw,accuracy,0.1,2.3",
        "a,12.5,40,raw,accuracy,0.91,0.3",
        "b,0.0,0,raw,perplexity,0.1,nan",
    ]
    assert data["schema"] == 2
    assert not list(tmp_path.glob("*.part"))


def test_records_read_back(tmp_path: Path) -> None:
    write_result(tmp_path, result())
    again = read_run(tmp_path)
    assert again.to_json() == result().to_json()
    assert again.curves["a"] == result().curves["a"]


def test_an_averaged_model_has_points_of_its_own(tmp_path: Path) -> None:
    """It is the curve; that of the newest model is beside it, and apart when read back."""
    average = (Point(0.0, 0, 0.1, 2.3, "average"), Point(12.5, 40, 0.93, 0.2, "average"))
    raw = (Point(0.0, 0, 0.1, 2.3),)
    task = replace(result().tasks["a"], curve=average, raw_curve=raw)
    run = replace(result(), tasks={"a": task})
    write_result(tmp_path, run)
    assert (tmp_path / "curves.csv").read_text().splitlines()[1:] == [
        "a,0.0,0,average,accuracy,0.1,2.3",
        "a,0.0,0,raw,accuracy,0.1,2.3",
        "a,12.5,40,average,accuracy,0.93,0.2",
    ]
    again = read_run(tmp_path)
    assert (again.curves, again.raw_curves) == (run.curves, run.raw_curves)


def test_schema_1_is_still_read(tmp_path: Path) -> None:
    first = FIXTURES / "v0.1.0" / "run"
    run = read_run(first)
    rows = list(csv.DictReader((first / "curves.csv").read_text().splitlines()))
    assert "accuracy" in rows[0]
    name = rows[0]["task"]
    assert [str(point.value) for point in run.curves[name]] == [
        row["accuracy"] for row in rows if row["task"] == name
    ]
    assert {point.model for curve in run.curves.values() for point in curve} == {"raw"}
    write_result(tmp_path, run)
    assert read_run(tmp_path) == run
    assert "model,metric,value" in (tmp_path / "curves.csv").read_text()


def test_the_old_name_of_a_points_value_still_works() -> None:
    point = Point(1.0, 2, 0.5, 0.7)
    with pytest.warns(DeprecationWarning, match=r"Point\.value"):
        assert point.accuracy == 0.5


def test_what_fp16_cut_off_is_written_for_tasks_that_were_trained_in_it(tmp_path: Path) -> None:
    tasks = {"a": replace(result().tasks["a"], saturated=7), "b": result().tasks["b"]}
    run = replace(result(), tasks=tasks)
    write_result(tmp_path, run)
    data = json.loads((tmp_path / "result.json").read_text())
    assert data["tasks"]["a"]["saturated"] == 7
    assert "saturated" not in data["tasks"]["b"]
    assert read_run(tmp_path).to_json() == run.to_json()
    small = CompactRun.of(run, scale="full", machine={}, requests={}, final_at={})
    compact.write(tmp_path / "seed-3.json", small)
    again = compact.read(tmp_path / "seed-3.json")
    assert {name: task.to_json() for name, task in again.tasks.items()} == data["tasks"]


def test_a_warning_names_the_task_the_count_and_the_remedy() -> None:
    tasks = {"a": replace(result().tasks["a"], saturated=7), "b": result().tasks["b"]}
    none = {"a": replace(result().tasks["a"], saturated=0)}
    runs = [replace(result(), tasks=tasks), replace(result(), tasks=none)]
    (line,) = saturation_warnings(runs, "fedast-d: ")
    assert line.startswith("warning: fedast-d: task 'a': 7 of 240 updates")
    assert "--set compute.precision=tf32" in line
    assert saturation_warnings(runs[1:]) == []


def test_a_folder_that_holds_a_run_is_refused_unless_told(tmp_path: Path) -> None:
    write_result(tmp_path, result())
    with pytest.raises(UnusableFolder, match="holds another run"):
        claim_folder(tmp_path)
    assert (tmp_path / "result.json").exists()
    claim_folder(tmp_path, overwrite=True)
    assert not (tmp_path / "result.json").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableFolder, match="cannot be written"):
        claim_folder(tmp_path / "file" / "run")


def test_reading_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UnusableFolder, match="no finished run"):
        read_run(tmp_path)
    write_result(tmp_path, result())
    data = json.loads((tmp_path / "result.json").read_text()) | {"schema": 99}
    (tmp_path / "result.json").write_text(json.dumps(data))
    with pytest.raises(UnusableFolder, match="schema 99"):
        read_run(tmp_path)
