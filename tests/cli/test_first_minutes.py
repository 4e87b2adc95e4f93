"""``fedast new``, ``examples``, ``doctor`` and ``--version``, as somebody new meets them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedast.cli import doctor
from fedast.cli.copying import examples_folder
from fedast.version import __version__
from tests.cli.command import fedast, refused

REPOSITORY = Path(__file__).parents[2]


def test_a_new_project_runs_and_its_tests_pass(tmp_path: Path) -> None:
    project = tmp_path / "my-project"
    done = fedast("new", str(project))
    assert done.returncode == 0, done.stderr
    assert {p.name for p in project.iterdir()} == {
        "README.md", "my_algorithm.py", "my_tasks.py", "run.toml", "test_project.py",
    }  # fmt: skip
    assert (project / "README.md").read_text().startswith("# my-project\n")
    assert "exists already" in refused("new", str(project))
    assert "name a folder" in refused("new", str(tmp_path / "what?"))
    quick = [sys.executable, "-m", "fedast", "run", "run.toml", "--trainer", "serial", "--quiet"]
    commands = (
        [*quick, "--set", "tasks.wine.target=0.85", "--set", "tasks.digits-mlp.target=0.5"],
        [*quick, "--algorithm", "my_algorithm:MoreForTheSlow", "--set", "simulation.until=time",
         "--set", "simulation.max_time=9"],
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
    )  # fmt: skip
    for command in commands:
        ran = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=240)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_examples_are_copied_with_what_they_need(tmp_path: Path) -> None:
    listed = fedast("examples").stdout
    assert "quickstart.toml" in listed
    assert "__pycache__" not in listed
    to = ("--to", str(tmp_path / "a"))
    copied = fedast("examples", "own-tasks", "measured-delays.toml", *to).stdout.split()
    assert {Path(name).name for name in copied} == {
        "own-tasks.toml", "own_tasks.py", "measured-delays.toml", "delays.csv",
    }  # fmt: skip
    assert fedast("examples", "own-tasks", *to).returncode == 0  # the same again
    (tmp_path / "a" / "own_tasks.py").write_text("# mine\n")
    assert "exists already" in refused("examples", "own-tasks", *to)
    assert "did you mean" in refused("examples", "own-task", *to)
    assert fedast("examples", "flower", "--to", str(tmp_path / "b")).returncode == 0
    assert (tmp_path / "b" / "flower" / "fedast_app" / "server_app.py").is_file()
    assert examples_folder() == REPOSITORY / "examples"


def test_doctor_finds_what_is_there() -> None:
    done = fedast("doctor", "--json")
    found = {entry["what"]: entry for entry in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {"Python", "PyTorch", "packages", "nats-server", "this folder"} <= set(found)
    assert found["PyTorch"]["state"] == "works"
    for entry in found.values():
        assert entry["state"] == "works" or entry["remedy"], entry


def test_doctor_says_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("a check may not end the others")

    monkeypatch.setitem(sys.modules, "pydantic", None)  # as if it were not installed
    monkeypatch.setattr(doctor, "CHECKS", (fails, doctor._core, doctor._disk))
    done = fedast("doctor")
    assert done.returncode == 1
    assert "2 of 4 checks failed" in done.stdout
    assert "import of pydantic halted" in done.stdout


def test_the_version_has_the_commit() -> None:
    said = fedast("--version").stdout.strip()
    assert said.startswith(f"fedast, version {__version__}")
    if (REPOSITORY / ".git").exists():
        assert re.search(r"\([0-9a-f]{7,}(-dirty)?\)$", said), said
