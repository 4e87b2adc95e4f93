"""Two commands on one folder, as processes: the second is refused and changes nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedast.records.lock import LOCK, locked
from tests.cli.command import refused
from tests.cli.test_cli import QUICK

LONG = (
    "--set", "simulation.max_time=1e6", "--set", "tasks.digits-mlp.target=1.0",
    "--set", "tasks.synthetic.target=1.0",
)  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        ("run", QUICK, *LONG),
        ("compare", QUICK, *LONG, "--seeds", "1"),
        ("reproduce", "homogeneous", "--scale", "quick", "--jobs", "1", "--set",
         "simulation.max_time=50"),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_the_second_command_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    arguments = (*command, "--out", str(out), "--quiet")
    first = subprocess.Popen(
        [sys.executable, "-m", "fedast", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 100
        while not (out / LOCK).exists():
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < deadline, "the run never got going"
            time.sleep(0.1)
        more = ("--overwrite",) if command[0] != "reproduce" else ()
        line = refused(*arguments, *more)
        assert line.startswith(f"error: {out}: another fedast command is using this folder")
        assert first.poll() is None, "the first one goes on"
    finally:
        first.send_signal(signal.SIGINT)  # its workers stop too
        first.communicate(timeout=240)  # a busy machine may be slow to finish its step


def test_a_run_that_is_still_written_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = out / "quickstart" / "seed-1"
    with locked(held):
        (held / "config.toml").write_text("")
        line = refused("compare", QUICK, *LONG, "--seeds", "1", "--out", str(out), "--overwrite")
        assert line.startswith(f"error: {held}: another fedast command is using this folder")
        assert (held / "config.toml").exists()
