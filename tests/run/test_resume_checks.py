"""A run is resumed only as the run that it was: configuration and schedule are checked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file, save_file

import fedast
from fedast.core.protocol import Algorithm, Observer, Observers
from fedast.learner.checkpoints import Checkpoint, newest, save
from fedast.records.metrics import RunMetrics
from fedast.records.run import UnusableFolder
from fedast.run.checkpointing import FOLDER, Every
from fedast.run.execute import execute, resume
from tests.run.test_resume import Steps, config_of, same

OLD = Path(__file__).parents[1] / "fixtures" / "v0.1.0" / "run"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped on its way; tests take copies of it."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    config = config_of("fedast-d", "compute.workers=1")
    execute(config, folder, events=True, every=Every.parse("1"), stop=Steps(60))
    return folder


def copied(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "copy")


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "config.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def note(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the newest checkpoint says about itself, as another version may have written it
    (one without a checksum)."""
    path = max((folder / FOLDER).glob("*.json"))
    table = json.loads(path.read_text())
    del table["crc"]
    change(table)
    path.write_text(json.dumps(table))
    number = f"{table['steps']:012d}"
    for file in (path, path.with_suffix(".safetensors")):
        file.rename(file.with_name(f"{number}{file.suffix}"))


def refused(folder: Path) -> str:
    """The line with which it is refused; its records stay as they were."""
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(UnusableFolder) as caught:
        resume(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    line = str(caught.value)
    assert "\n" not in line
    assert "has finished" not in line
    return line


CHANGES = [
    ("scale = 0.5\n", "scale = 0.52\n", "simulation.delay.scale is 0.52, was 0.5"),
    ("seed = 1\n", "seed = 2\n", "seed is 2, was 1"),
    ("target = 0.33\n", "target = 0.34\n", "tasks.synthetic.target is 0.34, was 0.33"),
    ("server_lr = 0.4\n", "server_lr = 0.3\n", "algorithm.server_lr is 0.3, was 0.4"),
    ('name = "fedast-d"\n', 'name = "fedast-s"\n', "algorithm.name is fedast-s, was fedast-d"),
    ("max_time = 12.0\n", "max_time = 13.0\n", "simulation.max_time is 13.0, was 12.0"),
]


@pytest.mark.parametrize(("old", "new", "said"), CHANGES)
def test_a_changed_configuration_is_refused(
    stopped: Path, tmp_path: Path, old: str, new: str, said: str
) -> None:
    folder = copied(stopped, tmp_path)
    edit(folder, old, new)
    if "fedast-s" in new:
        table = tomllib.loads((folder / "config.toml").read_text())
        for key in ("allocation_rule", "variance_window", "period"):
            del table["algorithm"][key]
        (folder / "config.toml").write_text(tomli_w.dumps(table))
    line = refused(folder)
    assert "config.toml was changed" in line
    assert said in line
    edit(folder, new, old)
    if "fedast-s" not in new:
        resume(folder)


def test_the_command_refuses_in_one_line(stopped: Path, tmp_path: Path) -> None:
    folder = copied(stopped, tmp_path)
    edit(folder, "scale = 0.5\n", "scale = 0.52\n")
    done = subprocess.run(
        [sys.executable, "-m", "fedast", "run", "--resume", str(folder)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    _, line = done.stderr.splitlines()  # after what it is doing
    assert line.startswith("error: ")
    assert "simulation.delay.scale" in line


def test_a_changed_way_of_computing_is_said_and_goes_on(stopped: Path, tmp_path: Path) -> None:
    """Another machine may have other cores; the schedule is the same, rounding may not be."""
    folder = copied(stopped, tmp_path)
    edit(folder, "threads = 1\n", "threads = 2\n")
    said: list[str] = []
    outcome = resume(folder, say=said.append)
    assert "compute.threads is 2, was 1" in said[0]
    assert len(said) == 2
    assert not outcome.result.interrupted


def test_settings_that_do_not_change_the_run_do_not_count(stopped: Path, tmp_path: Path) -> None:
    folder = copied(stopped, tmp_path)
    edit(folder, "lease = 30.0\n", "lease = 31.0\n")
    said: list[str] = []
    resume(folder, say=said.append)
    assert len(said) == 1


@pytest.mark.parametrize("delay", ["delay.csv", "other.csv"])
def test_files_count_by_what_is_in_them(tmp_path: Path, delay: str) -> None:
    table = tmp_path / delay
    table.write_text(measured(0.1, 0.2, 0.5, 0.9))
    settings = (f"simulation.delay={{model='measured', file='{table}'}}",)
    config = config_of("fedast-s", *settings)
    folder = tmp_path / "run"
    execute(config, folder, every=Every.parse("1"), stop=Steps(60))
    table.unlink()
    moved = folder.rename(tmp_path / "moved")  # a folder can be moved
    resume(moved, stop=Steps(90))
    (moved / "delay.csv").write_text(measured(0.1, 0.2, 0.5, 0.8))
    assert "simulation.delay.file has other content" in refused(moved)


def measured(*seconds: float) -> str:
    rows = [f"{task},{value}" for task in ("digits-mlp", "synthetic") for value in seconds]
    return "\n".join(("task,seconds", *rows, ""))


def test_another_version_is_said_and_goes_on_if_the_schedule_is_the_same(
    stopped: Path, tmp_path: Path
) -> None:
    folder = copied(stopped, tmp_path)
    assert json.loads(max((folder / FOLDER).glob("*.json")).read_text())["fedast"] == (
        fedast.__version__
    )
    note(folder, lambda table: table.update(fedast="9.9"))
    said: list[str] = []
    resume(folder, say=said.append)
    assert len(said) == 2
    assert "9.9" in said[0]
    assert fedast.__version__ in said[0]


def test_a_configuration_that_another_version_wrote_otherwise_is_the_same(
    stopped: Path, tmp_path: Path
) -> None:
    """It knew a key by an older name, and did not know another that has its default here."""
    folder = copied(stopped, tmp_path)

    def older(table: dict[str, Any]) -> None:
        for task in table["config"]["tasks"]:
            task["task"] = task.pop("use")
        del table["config"]["simulation"]["loss_rate"]

    note(folder, older)
    said: list[str] = []
    resume(folder, say=said.append)
    assert len(said) == 1


def test_another_schedule_is_refused(stopped: Path, tmp_path: Path) -> None:
    folder = copied(stopped, tmp_path)
    note(folder, lambda table: table.update(schedule="0" * 32, fedast="9.9"))
    line = refused(folder)
    assert "schedule" in line
    assert "9.9" in line


@pytest.mark.parametrize("shift", [-1, 1, 10_000])
def test_a_checkpoint_with_other_steps_is_refused(
    stopped: Path, tmp_path: Path, shift: int
) -> None:
    folder = copied(stopped, tmp_path)
    note(folder, lambda table: table.update(steps=table["steps"] + shift))
    refused(folder)


@pytest.mark.parametrize("kind", ["fewer", "more", "update", "version"])
def test_a_checkpoint_whose_tensors_do_not_fit_is_refused(
    stopped: Path, tmp_path: Path, kind: str
) -> None:
    folder = copied(stopped, tmp_path)
    found = newest(folder / FOLDER, lambda text: None)
    assert found is not None
    tensors, answers = dict(found.tensors), found.answers
    match kind:
        case "fewer":
            answers = answers[:-1]
        case "more":
            answers = (*answers, 0.5)
        case "update":
            tensors["update.99999"] = torch.zeros(3)
        case _:
            name = next(name for name in tensors if ".version." in name)
            tensors[name] = tensors[name][:-1]
    shutil.rmtree(folder / FOLDER)
    save(folder / FOLDER, Checkpoint(**(vars(found) | {"tensors": tensors, "answers": answers})))
    (folder / FOLDER / "every").write_text("1\n")
    refused(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scale = 0.5\n", "scale = 0.52\n"),
        ("seed = 7\n", "seed = 8\n"),
        ("period = 3.0\n", "period = 0.3\n"),
        ("loss_rate = 0.02\n", "loss_rate = 0.3\n"),
        ('rule = "momentum"\nbeta = 0.9\n', 'rule = "adam"\n'),
    ],
)
def test_a_checkpoint_of_0_1_0_is_refused_if_the_replay_does_not_fit(
    tmp_path: Path, old: str, new: str
) -> None:
    folder = copied(OLD, tmp_path)
    edit(folder, old, new)
    line = refused(folder)
    assert "restore config.toml" in line


def test_a_resumed_run_can_be_resumed(stopped: Path, tmp_path: Path) -> None:
    whole = execute(config_of("fedast-d", "compute.workers=1"), tmp_path / "whole", events=True)
    folder = copied(stopped, tmp_path)
    for steps in (75, 90):
        resume(folder, stop=Steps(steps))
    resume(folder, stop=Steps(20))  # stopped while it replays: nothing is lost
    tallies: list[RunMetrics] = []

    def watch(algorithm: Algorithm, run_metrics: RunMetrics) -> Observer:
        tallies.append(run_metrics)
        return Observers()

    same(tmp_path / "whole", folder, whole, resume(folder, watch=(watch,)))
    assert 0 < tallies[0].replayed < tallies[0].updates


def test_checkpoints_without_a_word_on_how_often_ask_for_one(stopped: Path, tmp_path: Path) -> None:
    folder = copied(stopped, tmp_path)
    (folder / FOLDER / "every").unlink()
    assert "--checkpoint-every" in refused(folder)
    resume(folder, every=Every.parse("3"))


def test_damaged_tensors_are_still_told_from_another_run(stopped: Path, tmp_path: Path) -> None:
    folder = copied(stopped, tmp_path)
    path = max((folder / FOLDER).glob("*.safetensors"))
    tensors = load_file(path)
    save_file({**tensors, "extra": torch.zeros(1)}, path)
    said: list[str] = []
    resume(folder, say=said.append)
    assert "damaged" in said[0]
