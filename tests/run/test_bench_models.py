"""The benchmark of many models, and the estimate for the paper's larger one."""

from __future__ import annotations

import json

import pytest
import torch

from fedast.config.schema import Compute
from fedast.parts.errors import ConfigError
from fedast.reproduce.estimate import estimate
from fedast.run.bench_models import NAMES, model_tasks
from fedast.run.compute import resolve_compute
from fedast.training.batched import BatchedTrainer
from fedast.training.trainer import DeviceTask, Job, SerialTrainer
from tests.cli.command import fedast

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", NAMES)
def test_every_model_is_trained_in_batches_and_as_it_is_alone(name: str) -> None:
    (task,) = model_tasks([name], quick=True)
    device_task = DeviceTask.build(task, 1, CPU)
    base = device_task.model.read()
    jobs = [Job(n, n, base) for n in range(3)]
    trainer = BatchedTrainer({name: device_task}, 1)
    assert not trainer.alone
    serial = SerialTrainer({name: device_task}, 1).train(name, jobs)
    for one, other in zip(serial, trainer.train(name, jobs), strict=True):
        torch.testing.assert_close(other.loss, one.loss, rtol=1e-3, atol=1e-5)
        off = float((other.delta - one.delta).norm() / one.delta.norm())
        assert off < 1e-2  # in single precision, where a maximum or a ReLU may flip


def test_the_command_gives_json_and_markdown() -> None:
    done = fedast("bench", "--models", "--quick", "--only", "gpt", "--trainer", "serial",
                  "--trainer", "batched", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    serial, batched = json.loads(done.stdout)["models"]
    assert (serial["trainer"], batched["trainer"], batched["clients"]) == ("serial", "batched", 4)
    assert min(serial["ms"], batched["ms"]) > serial["floor_ms"] > 0
    done = fedast("bench", "--models", "--quick", "--only", "lenet5", "--trainer", "batched",
                  "--markdown")  # fmt: skip
    head, _, row = done.stdout.strip().splitlines()
    assert [cell.strip() for cell in head.split("|")][1:3] == ["model", "trainer"]
    assert row.startswith("| lenet5 | batched | 4 | 44,426 | 2 |")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--models", "--only", "lenet"), "--only: there is no model 'lenet'"),
        (("--quick",), "need --models"),
        (("--models", "--whole"), "--models takes no CONFIG"),
    ],
)
def test_mistakes_are_told(given: tuple[str, ...], said: str) -> None:
    done = fedast("bench", *given)
    assert done.returncode == 2
    assert said in done.stderr


def test_hours_of_the_larger_model_are_those_of_its_updates_and_evaluations() -> None:
    compute = resolve_compute(Compute(device="cpu", workers=1))
    found = estimate(["larger-model"], compute, ["batched"], together=2, seconds=0.0, quick=True)
    assert [(run.tasks, run.algorithm) for run in found.runs][:2] == [
        (2, "FedAST(S)"),
        (2, "Sync-ST"),
    ]
    # Two tasks share 384 requests, so a buffer holds 6 updates and every fourth round is evaluated.
    first = found.runs[0]
    assert first.evaluations == pytest.approx(10_000 / 6 / 4)
    seconds = 2 * (10_000 * found.ms + first.evaluations * found.evaluation_ms) / 1e3
    assert first.hours == pytest.approx(seconds / 3600)
    with pytest.raises(ConfigError, match="larger-model only"):
        estimate(["heterogeneous"], compute, ["serial"], together=2)
