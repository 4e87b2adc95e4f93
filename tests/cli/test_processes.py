"""Processes are found again by a later command, and only they."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedast.cli.processes import Processes

_SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]
_STUBBORN = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); "
             "print('here', flush=True); time.sleep(600)"]  # fmt: skip


def wait_for(log: Path) -> None:
    deadline = time.monotonic() + 60
    while "here" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_later_command_finds_and_ends_them(tmp_path: Path) -> None:
    noted, log, other = tmp_path / "p.json", tmp_path / "a.log", tmp_path / "b.log"
    first = Processes(noted)
    mild = first.start("mild", _SLEEP, log)
    second = first.start("other", _SLEEP, other)
    wait_for(log)
    later = Processes(noted)
    assert list(later.alive()) == ["mild", "other"]
    later.end(["mild"])
    assert mild.wait(10) == -15
    assert list(later.alive()) == ["other"]
    later.end(["other", "unknown"])
    assert second.wait(10) == -15
    later.forget()
    assert not noted.exists()
    assert Processes(noted).alive() == {}


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    processes = Processes(tmp_path / "p.json")
    stubborn = processes.start("stubborn", _STUBBORN, tmp_path / "log")
    wait_for(tmp_path / "log")
    processes.end(["stubborn"], patience=0.3)
    assert stubborn.wait(10) == -9


def test_a_setting_of_the_clock_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boot time, in seconds of the clock, then is another."""
    recorded = tmp_path / "p.json"
    process = Processes(recorded).start("mild", _SLEEP, tmp_path / "log")
    try:
        born = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        # As earlier versions wrote it, which a later one must find too.
        assert json.loads(recorded.read_text()) == {"mild": [process.pid, born]}
        true = psutil.boot_time()
        for module in (psutil, psutil._psplatform):  # type: ignore[attr-defined]
            monkeypatch.setattr(module, "boot_time", lambda: true + 86_400)
        assert psutil.Process(process.pid).create_time() > true + 86_400
        assert Processes(recorded).alive() == {"mild": process.pid}
    finally:
        process.kill()
        process.wait()


def test_who_has_the_number_of_an_ended_process_is_left_alone(tmp_path: Path) -> None:
    noted = tmp_path / "p.json"
    stranger = subprocess.Popen(_SLEEP)
    try:
        noted.write_text(json.dumps({"nats": [stranger.pid, "12"]}))  # ours, long ago
        processes = Processes(noted)
        assert processes.alive() == {}
        processes.end(["nats"])
        time.sleep(0.2)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
