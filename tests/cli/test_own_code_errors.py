"""An error in the user's own code is told with its file and line, and in full with --debug."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from fedast.parts.blame import in_users_code, placed
from fedast.parts.errors import ConfigError
from fedast.parts.registry import load_object
from tests.cli.command import fedast

SOURCE = """\
import numpy as np
from torch import nn
from fedast import Task

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 2), 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 6:
            raise KeyError("late")  # line 13
        return self.layer(x)

def late(clients, seed):
    x, y = np.zeros((clients, 3), np.float32), np.zeros(clients, np.int64)
    return Task(name="late", model=Net, train=(x, y), test=(x, y),
                partition=[np.array([i]) for i in range(clients)])

def at_once(clients, seed):
    return {}["nothing"]  # line 22

def no_fit(clients, seed):
    x, y = np.zeros((clients, 4), np.float32), np.zeros(clients, np.int64)
    return Task(name="late", model=Net, train=(x, y), test=(x, y),
                partition=[np.array([i]) for i in range(clients)])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import os\n\nos.nothing\n")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def attempt(folder: Path, use: str, *options: str) -> subprocess.CompletedProcess[str]:
    text = f'[simulation]\nclients = 9\nmax_time = 300\n[[tasks]]\nuse = "{use}"\n'
    (folder / "own.toml").write_text(text)
    return fedast("run", "own.toml", "--set", "compute.device=cpu", *options)


@pytest.mark.parametrize(
    ("use", "place", "status"),
    [
        ("mine:late", "KeyError: 'late' (mine.py:13, in forward)", 1),
        ("mine:at_once", "mine:at_once: KeyError: 'nothing' (mine.py:22, in at_once)", 2),
        ("mine:no_fit", "(mine.py:14, in forward)", 2),
        ("broken:task", "has no attribute 'nothing' (broken.py:3, in <module>)", 2),
    ],
)
def test_file_and_line(folder: Path, use: str, place: str, status: int) -> None:
    done = attempt(folder, use, "--trainer", "serial")
    line = done.stderr.splitlines()[-1]
    assert (done.returncode, place in line) == (status, True), done.stderr
    assert "Traceback" not in done.stderr
    done = attempt(folder, use, "--trainer", "serial", "--debug")
    assert done.returncode == status
    assert "\nTraceback (most recent call last):\n" in f"\n{done.stderr}"
    assert f"line {place.rpartition(':')[2].partition(',')[0]}, in" in done.stderr
    assert line in done.stderr.splitlines()


def test_also_from_a_worker_process(folder: Path) -> None:
    done = attempt(folder, "mine:late", "--trainer", "processes")
    assert done.returncode == 1
    assert "KeyError: 'late' (mine.py:13, in forward)" in done.stderr


def test_debug_before_the_command(folder: Path) -> None:
    done = fedast("--debug", "validate", "nothing.toml")
    assert done.returncode == 2
    assert "FileNotFoundError" in done.stderr
    assert "Traceback" not in fedast("validate", "nothing.toml").stderr


def test_an_error_of_ours_is_not_blamed_on_the_user() -> None:
    with pytest.raises(ConfigError) as caught:
        load_object("fedast:nothing", "key")
    error = caught.value.with_traceback(caught.tb.tb_next)  # without this test's own frame
    assert not in_users_code(error)
    assert "(" not in placed(error)
