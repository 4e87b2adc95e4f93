"""``compare --resume``: interrupted runs go on from their checkpoints, finished ones stay."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from click.testing import CliRunner, Result

from fedast.cli.main import cli
from tests.cli.test_cli import QUICK

SETTINGS = (
    QUICK, "--algorithm", "fedast-s", "--seeds", "2", "--jobs", "1", "--checkpoint-every", "2",
    "--set", "simulation.clients=30", "--set", "simulation.max_time=40",
    "--set", "compute.trainer=serial", "--set", "tasks.digits-mlp.target=0.9",
)  # fmt: skip
RUNS = ("fedast-s/seed-1", "fedast-s/seed-2")


def fedast(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["compare", *arguments])


def test_it_goes_on_from_checkpoints_and_repeats_nothing(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    done = fedast(*SETTINGS, "--out", str(whole))
    assert done.exit_code == 0, done.output
    process = subprocess.Popen(
        [sys.executable, "-m", "fedast", "compare", *SETTINGS, "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    while not any((out / RUNS[1] / "checkpoints").glob("*.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    first = out / RUNS[0] / "result.json"
    result = json.loads(first.read_text())
    result["fedast"] = "0.1.9"  # another version's results are no reason to run again either
    first.write_text(json.dumps(result))
    before = first.stat().st_mtime_ns
    limit = time.monotonic() + 60
    while "another fedast command" in (again := fedast("--resume", str(out))).output:
        assert time.monotonic() < limit
    assert again.exit_code == 0, again.output
    assert "1 of the interrupted runs go on from their checkpoints" in again.output
    assert first.stat().st_mtime_ns == before
    for name in ("comparison.json", *(f"{run}/curves.csv" for run in RUNS)):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    same = fedast(*SETTINGS, "--out", str(out), "--resume")
    assert same.exit_code == 0, same.output
    assert first.stat().st_mtime_ns == before


def test_what_it_refuses(tmp_path: Path) -> None:
    empty = str(tmp_path / "nothing")
    for arguments, words in (
        (("--resume", empty), "holds no comparison; leave --resume out to begin one"),
        ((QUICK, "--resume", "--out", empty), "holds no comparison"),
        (("--resume", QUICK, "--out", empty), "holds no comparison"),
        ((QUICK, "--resume"), "--resume needs the folder of the comparison"),
        ((), "give a CONFIG, or --resume"),
        (("--resume", empty, "--overwrite"), "choose one"),
        (("--resume", empty, "--set", "seed=3"), "leave out --set"),
        (("--resume", empty, "--out", "elsewhere"), "name different folders"),
        ((QUICK, "--checkpoint-every", "5"), "--checkpoint-every needs --out"),
    ):
        done = fedast(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert words in done.output, arguments
    assert not Path(empty).exists()
