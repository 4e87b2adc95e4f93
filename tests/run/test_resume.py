"""A run that is killed and taken up again is the run that was not killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.parts.errors import ConfigError
from fedast.records.run import UnusableFolder
from fedast.run.checkpointing import FOLDER, Every
from fedast.run.execute import execute, resume
from fedast.run.simulate import Outcome
from fedast.tasks.task import TrainingFailed
from fedast.training.processes import ProcessTrainer
from fedast.training.trainer import Job, Update

EXAMPLES = Path(__file__).parents[2] / "examples"


def config_of(algorithm: str, *settings: str) -> RunConfig:
    path = EXAMPLES / "quickstart.toml"
    usual = ("simulation.max_time=12", "simulation.clients=30")
    return resolve(load(path, (*usual, *settings), algorithm=algorithm), path.parent)


def same(first: Path, second: Path, one: Outcome, other: Outcome) -> None:
    for name in ("events.jsonl", "curves.csv"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    for task, model in one.models.items():
        for a, b in zip(model.parameters(), other.models[task].parameters(), strict=True):
            assert torch.equal(a, b), task
    assert one.result.tasks == other.result.tasks


CASES = [
    ("fedast-d", ()),
    ("fedast-d", ("compute.trainer=batched",)),
    ("fedast-d", ("compute.trainer=batched", "compute.batch_limit=3")),
    ("fedast-s", ("tasks.0.server_optimizer=momentum", "tasks.1.calibration=auto")),
    ("fedast-s", ("algorithm.selection=loss", "tasks.1.join_time=3.0")),
    ("fedast-nobuffer", ("tasks.0.server_optimizer=fadas",)),
    ("fedast-s", ("tasks.1.server_optimizer=adam", "tasks.1.join_time=3.0")),
    ("fedast-plus", ()),
    ("fedast-plus", ("algorithm.reference=400.0", "algorithm.largest=1.0", "algorithm.ratio=1.5")),
    ("sync-st", ("tasks.0.averaging={use='always', raw_every=2}", "tasks.1.averaging=always")),
    ("sync-st", ("algorithm.first_k=4", "compute.trainer=batched")),
    ("sync-ucb-st", ("algorithm.first_k=4",)),
    ("sync-bayes-st", ("algorithm.first_k=4",)),
]


@pytest.mark.parametrize(("algorithm", "settings"), CASES)
def test_a_run_stopped_anywhere_goes_on_identically(
    tmp_path: Path, algorithm: str, settings: tuple[str, ...]
) -> None:
    config = config_of(algorithm, *settings)
    counted = Steps()
    whole = execute(config, tmp_path / "whole", events=True, stop=counted)
    folder, total = tmp_path / "parts", counted.asked
    execute(config, folder, events=True, every=Every.parse("1"), stop=Steps(total // 4))
    said: list[str] = []
    for part in (total // 2, 3 * total // 4):  # replayed steps count
        resume(folder, stop=Steps(part), say=said.append)
    same(tmp_path / "whole", folder, whole, resume(folder, say=said.append))
    taken_up = [line for line in said if "continuing from" in line]
    assert len(taken_up) == len(set(taken_up)) == 3, "each time from a later checkpoint"
    with pytest.raises(UnusableFolder, match="has finished"):
        resume(folder)


def test_stopped_during_the_replay_it_keeps_what_there_was(tmp_path: Path) -> None:
    config = config_of("fedast-d")
    counted = Steps()
    execute(config, tmp_path / "whole", stop=counted)
    execute(config, tmp_path / "run", every=Every.parse("1"), stop=Steps(counted.asked // 2))
    before = (tmp_path / "run" / "curves.csv").read_text()
    outcome = resume(tmp_path / "run", stop=Steps(3))
    assert outcome.result.interrupted
    assert (tmp_path / "run" / "curves.csv").read_text().startswith(before[: len(before) // 2])
    assert len((tmp_path / "run" / "curves.csv").read_text()) >= len(before)


class Steps:
    """Counts the simulator's steps, and stops it before one of them."""

    def __init__(self, limit: int | None = None) -> None:
        self.asked = 0
        self._limit = limit

    def __call__(self) -> bool:
        self.asked += 1
        return self._limit is not None and self.asked > self._limit


def test_without_a_checkpoint_it_begins_again(tmp_path: Path) -> None:
    config = config_of("fedast-d")
    whole = execute(config, tmp_path / "whole", events=True)
    execute(config, tmp_path / "parts", events=True, stop=lambda: True)
    said: list[str] = []
    same(tmp_path / "whole", tmp_path / "parts", whole, resume(tmp_path / "parts", say=said.append))
    assert "starting over" in said[0]
    with pytest.raises(UnusableFolder, match="holds no run"):
        resume(tmp_path / "nothing")


def test_a_run_that_never_got_to_a_checkpoint_still_takes_them(tmp_path: Path) -> None:
    config = config_of("fedast-d")
    execute(config, tmp_path, every=Every.parse("2"), stop=lambda: True)
    resume(tmp_path)
    assert list((tmp_path / FOLDER).glob("*.safetensors"))


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    config = config_of("fedast-d")
    counted = Steps()
    whole = execute(config, tmp_path / "whole", events=True, stop=counted)
    folder = tmp_path / "parts"
    half = Steps(counted.asked // 2)
    execute(config, folder, events=True, every=Every.parse("0.2"), stop=half)
    kept = sorted((folder / FOLDER).glob("*.safetensors"))
    assert len(kept) == 2, "old ones are pruned"
    damaged = bytearray(kept[-1].read_bytes())
    damaged[-20] ^= 0xFF
    kept[-1].write_bytes(bytes(damaged))
    said: list[str] = []
    same(tmp_path / "whole", folder, whole, resume(folder, say=said.append))
    assert "is damaged" in said[0]
    assert "one before" in said[0]


@pytest.mark.parametrize(
    ("algorithm", "moment"),
    [("fedast-d", 6), ("sync-st", 2)],  # in Sync-ST after another task stepped in the same step
)
def test_a_run_whose_worker_dies_goes_on_from_the_step_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, moment: int
) -> None:
    config = config_of(algorithm, "compute.trainer=processes", "compute.workers=2")
    whole = execute(config, tmp_path / "whole", events=True)
    real, trained = ProcessTrainer.train, 0

    def dying(self: ProcessTrainer, task: str, jobs: Sequence[Job]) -> list[Update]:
        nonlocal trained
        trained += 1
        if trained == moment:
            os.kill(self._workers[0]._process.pid or 0, signal.SIGKILL)
        return real(self, task, jobs)

    folder = tmp_path / "dies"
    monkeypatch.setattr(ProcessTrainer, "train", dying)
    with pytest.raises(TrainingFailed, match="while training request"):
        execute(config, folder, events=True, every=Every.parse("1000"))
    monkeypatch.setattr(ProcessTrainer, "train", real)
    said: list[str] = []
    same(tmp_path / "whole", folder, whole, resume(folder, say=said.append))
    assert "continuing from" in said[0]


def test_every() -> None:
    assert Every.parse("50") == Every("50", 50.0, False)
    assert Every.parse("1.5m") == Every("1.5m", 90.0, True)
    for wrong in ("", "x", "-3", "0", "5d"):
        with pytest.raises(ConfigError, match="such as 50"):
            Every.parse(wrong)


def kill_and_resume(tmp_path: Path, kills: int, seed: int) -> None:
    """A real process, killed with SIGKILL at random moments after a new checkpoint."""
    chance = random.Random(seed)
    slow = [
        f"tasks.{task}.{end}"
        for task in (0, 1)
        for end in ("target=1.0", f"max_rounds={kills * 240}")
    ]
    config = config_of("fedast-d", "simulation.max_time=1e9", *slow)
    execute(config, tmp_path / "whole", events=True)
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "fedast", "run"]
    first = [
        *command, str(tmp_path / "whole" / "config.toml"), "--out", str(folder), "--events", "-q",
        "--checkpoint-every", "0.02s",
    ]  # fmt: skip
    again = ["--resume", str(folder), "-q"]
    rarely = ["--checkpoint-every", "1h"]  # it runs to its end now
    seen: set[str] = set()
    for attempt in range(kills + 1):
        process = subprocess.Popen(
            [*command, *again, *(rarely if attempt == kills else ())] if attempt else first,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if attempt < kills:
            while not (new := names_of(folder) - seen):  # its first checkpoint
                assert process.poll() is None, process.communicate()[1].decode()
                time.sleep(0.002)
            time.sleep(chance.random() * 0.05)
            assert process.poll() is None, "it was through before it was killed"
            process.send_signal(signal.SIGKILL)
            seen |= new | names_of(folder)
        said = process.communicate()[1].decode()
        missed = 3  # the target, which nobody reaches
        assert process.returncode == (-signal.SIGKILL if attempt < kills else missed), said
        if attempt:
            assert "continuing from simulated time" in said, said
    for name in ("events.jsonl", "curves.csv"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def names_of(folder: Path) -> set[str]:
    return {file.name for file in (folder / FOLDER).glob("*.json")}


def test_a_killed_process_goes_on(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_killed_process_goes_on_many_times(tmp_path: Path, seed: int) -> None:
    kill_and_resume(tmp_path, kills=5, seed=seed)


@pytest.mark.parametrize("kind", ["tensors", "note", "schema"])
def test_new_checkpoints_stay_though_unreadable_ones_have_higher_numbers(
    tmp_path: Path, kind: str
) -> None:
    """Else a run that had to begin again could be killed a second time and begin again."""
    config = config_of("fedast-d")
    folder = tmp_path / "run"
    execute(config, folder, every=Every.parse("0.2"), stop=Steps(60))
    (folder / FOLDER / "remarks.json").write_text("{}")  # somebody's own
    for note in (folder / FOLDER).glob("0*.json"):
        match kind:
            case "tensors":
                note.with_suffix(".safetensors").write_bytes(b"damaged")
            case "note":
                note.write_text("{")
            case _:
                note.write_text(note.read_text().replace('"schema": 1', '"schema": 2'))
    said: list[str] = []
    resume(folder, stop=Steps(30), say=said.append)
    assert "starting over" in said[-1]
    resume(folder, stop=Steps(40), say=said.append)
    assert "continuing from" in said[-1]
    steps = [int(name.partition(".")[0]) for name in names_of(folder) if name[0] == "0"]
    assert len([number for number in steps if number <= 40]) == 2
    resume(folder)
    assert len(names_of(folder)) == 3, "those that have been passed are gone, somebody's own is not"
