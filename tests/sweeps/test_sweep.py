"""``fedast sweep`` with real runs: grid, going on after kill -9, Optuna, failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import fedast
from fedast.cli.main import cli
from fedast.records.sweeps import read_sweep, read_trials

BASE = """
[base]
tasks = [{ use = "digits-mlp", target = 0.3 }]

[base.algorithm]
requests = 8
ratio = 4

[base.simulation]
clients = 12
max_time = 20

[base.compute]
device = "cpu"
trainer = "serial"
"""


def study(folder: Path, text: str) -> Path:
    path = folder / "rates.toml"
    path.write_text(text + BASE)
    return path


def swept(file: Path, out: Path, *more: str) -> Result:
    return CliRunner().invoke(cli, ["sweep", str(file), "--out", str(out), "--jobs", "2", *more])


def written(out: Path) -> dict[str, int]:
    return {
        str(path.relative_to(out)): path.stat().st_mtime_ns
        for path in out.glob("trial-*/seed-*/result.json")
    }


def test_a_grid_of_three_keys_and_nothing_is_run_twice(tmp_path: Path) -> None:
    file = study(tmp_path, """
prune = "off"
search."tasks.*.client_lr" = [0.001, 0.1]
search.algorithm.server_lr = [0.1, 1.0]
search.algorithm.ratio = [2, 4]
""")  # fmt: skip
    out = tmp_path / "out"
    dry = swept(file, out, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert dry.output.count("trial ") == 8
    assert not out.exists()
    done = swept(file, out)
    assert done.exit_code == 0, done.output
    about, trials = read_sweep(out), read_trials(out)
    assert [p["name"] for p in about["parameters"]] == [
        "tasks.*.client_lr", "algorithm.server_lr", "algorithm.ratio",
    ]  # fmt: skip
    assert about["trials"] == len(trials) == 8
    assert all(trial.ended for trial in trials.values())
    runs = fedast.load(out)
    assert len(runs) == 8
    for number, trial in trials.items():
        run = runs[f"trial-{number:04d}/seed-1"]
        assert run.settings["tasks"][0]["client_lr"] == trial.parameters["tasks.*.client_lr"]
        assert run.settings["algorithm"]["server_lr"] == trial.parameters["algorithm.server_lr"]
        reached = run.tasks["digits-mlp"].time_to_target
        assert trial.value == reached
        assert trial.state == ("missed" if reached is None else "complete")
    best = min((t for t in trials.values() if t.value is not None), key=lambda t: t.value or 0)
    assert f"Best: trial {best.number}:" in done.output
    before = written(out)
    again = swept(file, out, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.output)["best"]["trial"] == best.number
    assert written(out) == before
    other = swept(file, out, "--set", "simulation.clients=13")
    assert other.exit_code == 2
    assert "holds another sweep (settings differs)" in other.output


RANDOM = """
seeds = 2
prune = "off"
sampler = { name = "random", trials = 5, seed = 7 }

[search]
algorithm.server_lr = { low = 0.05, high = 2.0, log = true }
"tasks.*.client_lr" = { low = 0.02, high = 0.2 }
"""


def test_after_kill_9_the_same_command_goes_on(tmp_path: Path) -> None:
    file, out = study(tmp_path, RANDOM), tmp_path / "out"
    command = [sys.executable, "-m", "fedast", "sweep", str(file), "--out", str(out), "--jobs", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not (out / "trial-0001/seed-2/config.toml").exists():  # in the middle of a trial
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()  # the parent alone; its worker ends by itself
    process.communicate()
    assert not any(trial.number > 1 for trial in read_trials(out).values())
    with (out / "trials.jsonl").open("a") as lines:
        lines.write('{"trial": 2, "sta')  # what a loss of power may leave
    before = written(out)
    assert before
    limit = time.monotonic() + 60
    while (done := swept(file, out)).exit_code == 2 and time.monotonic() < limit:
        assert "another fedast command is using" in done.output  # it has not noticed yet
    assert done.exit_code == 0, done.output
    assert before.items() <= written(out).items(), "finished runs are as they were"
    whole = swept(file, tmp_path / "whole", "--quiet")
    assert whole.exit_code == 0, whole.output

    def found(folder: Path) -> list[Any]:
        return [(t.number, t.value, t.parameters) for t in read_trials(folder).values()]

    assert found(out) == found(tmp_path / "whole")
    assert len(found(out)) == 5


def test_after_ctrl_c_it_goes_on_from_checkpoints(tmp_path: Path) -> None:
    file, out = (
        study(tmp_path, 'search.algorithm.server_lr = [0.01]\nprune = "off"\n'),
        tmp_path / "o",
    )
    more = ["--checkpoint-every", "1", "--set", "simulation.max_time=60"]
    command = [sys.executable, "-m", "fedast", "sweep", str(file), "--out", str(out), *more]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    checkpoints = out / "trial-0000/seed-1/checkpoints"
    while not any(checkpoints.glob("*.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    if process.returncode == 0:
        pytest.skip("it was over before the signal came")
    assert process.returncode == 130
    assert "the same command goes on" in errors
    (steps, *_) = sorted(path.stem for path in checkpoints.glob("*.json"))
    assert swept(file, out, *more).exit_code == 0
    whole = swept(file, tmp_path / "whole", *more)
    assert whole.exit_code == 0, whole.output
    run = "trial-0000/seed-1/curves.csv"
    assert (out / run).read_bytes() == (tmp_path / "whole" / run).read_bytes()
    assert steps


def test_optuna_finds_the_better_of_two_learning_rates(tmp_path: Path) -> None:
    table = {
        "base": {
            "tasks": [{"use": "digits-mlp", "target": 0.3}],
            "algorithm": {"requests": 8, "ratio": 4, "server_lr": 1.0},
            "simulation": {"clients": 12, "max_time": 20},
            "compute": {"device": "cpu", "trainer": "serial"},
        },
        "search": {"tasks.*.client_lr": [0.0001, 0.1]},
        "sampler": {"name": "optuna", "trials": 6},
    }
    outcome = fedast.sweep(table, tmp_path / "out", jobs=1)
    assert outcome.best is not None
    assert outcome.best.parameters == {"tasks.*.client_lr": 0.1}
    assert len(outcome.trials) == 6
    assert len(written(tmp_path / "out")) == 2, "a point that was tried before is not run again"


def test_a_trial_that_fails_does_not_end_the_others_and_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text("""
import multiprocessing
from pathlib import Path
from fedast.tasks.options import TASKS

def task(clients, seed, bad=False):
    mended = (Path(__file__).parent / "mended").exists()
    if bad and not mended and multiprocessing.parent_process() is not None:
        raise RuntimeError("out of luck")
    return TASKS.find("digits-mlp", "")().build(clients, seed, "moody")
""")
    file = tmp_path / "moods.toml"
    file.write_text("""
search."tasks.moody.options.bad" = [true, false]
[base]
tasks = [{ use = "moody:task", name = "moody", target = 0.3 }]
algorithm = { requests = 8, ratio = 4 }
simulation = { clients = 12, max_time = 20 }
compute = { device = "cpu", trainer = "serial" }
""")
    out = tmp_path / "out"
    failed = swept(file, out)
    assert failed.exit_code == 1, failed.output
    assert "out of luck" in failed.output
    assert "1 of 2 trials failed; the same command runs them again" in failed.output
    assert read_trials(out)[0].state == "failed"
    before = written(out)
    (tmp_path / "mended").touch()
    again = swept(file, out)
    assert again.exit_code == 0, again.output
    assert before.items() < written(out).items()
    assert all(trial.ended for trial in read_trials(out).values())
