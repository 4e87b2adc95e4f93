"""A comparison that was interrupted goes on with the same command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import fedast, refused
from tests.cli.test_cli import QUICK

SETTINGS = (
    "--algorithm", "fedast-s", "--algorithm", "sync-st", "--seeds", "2", "--jobs", "1",
    "--set", "simulation.clients=30", "--set", "simulation.max_time=12", "--trainer", "serial",
    "--set", "tasks.digits-mlp.target=0.9",
)  # fmt: skip
RUNS = [f"{name}/seed-{seed}" for name in ("fedast-s", "sync-st") for seed in (1, 2)]


def compare(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return fedast("compare", QUICK, *SETTINGS, "--out", str(out), *more)


def written(out: Path) -> dict[str, int]:
    return {run: (out / run / "result.json").stat().st_mtime_ns for run in RUNS}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    done = compare(out)
    assert done.returncode == 0, done.stderr
    return out


def same(out: Path, whole: Path) -> None:
    for name in ("comparison.json", *(f"{run}/curves.csv" for run in RUNS)):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def test_after_ctrl_c_the_same_command_goes_on(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedast", "compare", QUICK, *SETTINGS, "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    first = out / RUNS[0] / "result.json"
    while not first.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command goes on" in errors
    before = first.stat().st_mtime_ns
    again = compare(out)
    assert again.returncode == 0, again.stderr
    assert "are there already" in again.stdout
    assert first.stat().st_mtime_ns == before
    same(out, whole)


def test_what_was_killed_or_stopped_is_run_again_and_nothing_else(whole: Path) -> None:
    before = written(whole)
    table = (whole / "comparison.json").read_bytes()
    (whole / RUNS[1] / "result.json").unlink()  # killed
    stopped = whole / RUNS[2] / "result.json"
    result = json.loads(stopped.read_text())
    result["tasks"]["synthetic"]["finish_reason"] = "interrupted"
    stopped.write_text(json.dumps(result))
    done = compare(whole)
    assert done.returncode == 0, done.stderr
    after = written(whole)
    assert [after[run] == before[run] for run in RUNS] == [True, False, False, True]
    assert (whole / "comparison.json").read_bytes() == table
    assert compare(whole, "--json").returncode == 0, "nothing is left to do"
    assert written(whole) == after


def test_another_configuration_in_the_folder_is_refused(whole: Path) -> None:
    before = written(whole)
    arguments = ("compare", QUICK, *SETTINGS, "--out", str(whole))
    line = refused(*arguments, "--set", "simulation.loss_rate=0.1")
    assert "simulation.loss_rate is 0.1, was 0.0" in line
    assert "--overwrite" in line
    assert "compute.trainer" in refused(*arguments, "--trainer", "batched")
    assert written(whole) == before
    # What the folders do not have is no reason to refuse: another seed, and a log of events.
    more = fedast(*arguments, "--seeds", "3")
    assert more.returncode == 0, more.stderr
    assert written(whole) == before
    logged = fedast(*arguments, "--events")
    assert logged.returncode == 0, logged.stderr
    assert (whole / RUNS[0] / "events.jsonl").exists()
    before = written(whole)
    anew = fedast(*arguments, "--overwrite")
    assert anew.returncode == 0, anew.stderr
    assert all(after > before[run] for run, after in written(whole).items())


def test_runs_of_another_version_are_run_again(whole: Path) -> None:
    before = written(whole)
    old = whole / RUNS[0] / "result.json"
    result = json.loads(old.read_text())
    del result["fedast"]  # which 0.1.0 did not write
    old.write_text(json.dumps(result))
    again = compare(whole)
    assert again.returncode == 0, again.stderr
    assert "was made by fedast 0.1.0; it is run again" in again.stderr
    after = written(whole)
    assert [run for run in RUNS if after[run] != before[run]] == [RUNS[0]]
    assert "fedast" in json.loads(old.read_text())


def test_settings_of_an_algorithm_that_another_file_runs(tmp_path: Path) -> None:
    text = Path(QUICK).read_text()
    other = tmp_path / "other.toml"
    head, _, tail = text.partition("[algorithm]")
    own = tail.partition("\n[")[2]
    other.write_text(f'{head}[algorithm]\nname = "sync-st"\n\n[{own}')
    small = ("--seeds", "1", "--set", "simulation.clients=30", "--set", "simulation.max_time=9")
    done = fedast("compare", QUICK, str(other), *small, "--set", "algorithms.sync-st.first_k=2")
    assert done.returncode == 0, done.stderr
    refused = fedast("compare", QUICK, str(other), *small, "--set", "algorithms.fedbuff.idle=false")
    assert refused.returncode == 2
    assert "fedbuff does not run here" in refused.stderr
