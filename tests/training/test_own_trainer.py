"""A trainer of one's own: around the serial one, with a counter; from Python and from a file."""

from __future__ import annotations

import pickle
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import Compute
from fedast.parts.errors import ConfigError
from fedast.run.build import build_tasks
from fedast.run.execute import execute
from fedast.run.simulate import simulate
from fedast.testing import trainer_contract
from fedast.testing.trainers import SEED, TrainerContract, _task
from fedast.training.options import TRAINERS, Resources
from fedast.training.trainer import DeviceTask, Job
from tests.plugin import install
from tests.training.test_trainers import CPU, make_task

SOURCE = '''
from collections import Counter

from fedast.training.options import TrainerOptions
from fedast.training.trainer import SerialTrainer

TRAINED = Counter()

class CountingTrainer:
    """Counts what it trains."""

    def __init__(self, device_tasks, seed, step=1):
        self._inner = SerialTrainer(device_tasks, seed)
        self._step = step

    def limit(self, task):
        return 3

    def train(self, task, jobs):
        TRAINED[task] += self._step * len(jobs)
        return self._inner.train(task, jobs)

    def close(self):
        self._inner.close()

class Counting(TrainerOptions):
    """Counts in steps."""

    step: int = 2

    def build(self, device_tasks, seed, resources):
        return CountingTrainer(device_tasks, seed, self.step)
'''
RUN = """
seed = 1
[algorithm]
requests = 8
ratio = 2
[simulation]
clients = 20
max_time = 10
[[tasks]]
use = "synthetic"
[[tasks]]
use = "digits-mlp"
"""


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    points = {"fedast.trainers": "counting = my_trainers:Counting"}
    return install(monkeypatch, tmp_path, "my_trainers", SOURCE, points)


@pytest.mark.parametrize(
    ("given", "kept", "step"),
    [
        ('"my_trainers:CountingTrainer"', "my_trainers:CountingTrainer", 1),
        ('"counting"', {"name": "my_trainers:Counting", "step": 2}, 2),
        ('{ name = "counting", step = 5 }', {"name": "my_trainers:Counting", "step": 5}, 5),
    ],
)
def test_from_a_file_with_records_and_again_from_its_own_configuration(
    tmp_path: Path, counting: ModuleType, given: str, kept: Any, step: int
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"{RUN}\n[compute]\ntrainer = {given}\ntrainers = {{ synthetic = 'serial' }}")
    execute(resolve(load(path), tmp_path), tmp_path / "a", events=True)
    assert set(counting.TRAINED) == {"digits-mlp"}
    assert counting.TRAINED["digits-mlp"] % step == 0
    compute = tomllib.loads((tmp_path / "a" / "config.toml").read_text())["compute"]
    assert compute["trainer"] == kept
    assert compute["trainers"] == {"digits-mlp": kept, "synthetic": "serial"}
    again = tmp_path / "a" / "config.toml"
    execute(resolve(load(again), again.parent), tmp_path / "b", events=True)
    for file in ("events.jsonl", "curves.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_from_python(tmp_path: Path, counting: ModuleType) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    config = resolve(load(path), tmp_path)
    found = {}
    for name, trainer in {
        "serial": "serial",
        "options": counting.Counting(step=1),
        "class": counting.CountingTrainer,
    }.items():
        counting.TRAINED.clear()
        outcome = simulate(
            build_tasks(config),
            config.algorithm,
            config.simulation,
            seed=1,
            compute=Compute(trainer=trainer, device="cpu"),
            noted=True,
        )
        found[name] = outcome.result.curves
        assert bool(counting.TRAINED) is (name != "serial")
    assert found["options"] == found["class"] == found["serial"]


def test_it_is_listed_and_can_be_pickled(counting: ModuleType) -> None:
    listed = {part.name: part for part in TRAINERS.listed()}
    assert list(listed) == ["serial", "processes", "batched", "ray", "counting"]
    assert listed["counting"].source == "my_trainers"
    by_address = TRAINERS.parse("my_trainers:CountingTrainer", "compute.trainer")
    again = pickle.loads(pickle.dumps(by_address))
    device_tasks = {"t": DeviceTask.build(make_task("logistic", torch.float64), 3, CPU)}
    trainer = again.build(device_tasks, 3, Resources())
    trainer.train("t", [Job(1, 2, device_tasks["t"].model.read())])
    assert counting.TRAINED == {"t": 1}


def test_what_is_not_there_is_said(counting: ModuleType) -> None:
    for given, message in (
        ("countin", "compute.trainer: unknown value 'countin'; did you mean 'counting'"),
        ("my_trainers:Nothing", "has no 'Nothing'"),
        ("my_trainers:TRAINED", "is not a subclass"),
    ):
        with pytest.raises(ConfigError, match=message):
            TRAINERS.parse(given, "compute.trainer")


# --- the contract finds what is wrong -------------------------------------------------------------


class Drifting:
    """Trains every job from the base plus what was trained before."""

    def __init__(self, device_tasks: Any, seed: int) -> None:
        self._inner = TRAINERS.parse("serial", "").build(device_tasks, seed, Resources())
        self._drift = 0.0

    def limit(self, task: str) -> int:
        return 1

    def train(self, task: str, jobs: Any) -> Any:
        self._drift += 1e-3
        return self._inner.train(
            task, [Job(job.request, job.client, job.base + self._drift) for job in jobs]
        )

    def close(self) -> None:
        self._inner.close()


def test_a_trainer_that_depends_on_what_came_before_breaks_the_contract() -> None:
    suite: TrainerContract = trainer_contract(Drifting)()
    device_tasks = {
        kind: DeviceTask.build(_task(kind), SEED, CPU) for kind in ("plain", "normalized")
    }
    trainer = suite.options.build(device_tasks, SEED, suite.resources)
    with pytest.raises(AssertionError, match="delta is off by"):
        suite.test_updates_are_those_of_the_serial_trainer("plain", device_tasks, trainer)
    with pytest.raises(AssertionError, match="delta is off by"):
        suite.test_order_and_grouping_change_no_update("plain", 0, device_tasks, trainer)
