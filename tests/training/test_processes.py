"""Training in worker processes: the same updates, in order, and what happens when one dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
import torch

from fedast.tasks.task import TrainingFailed
from fedast.training import processes
from fedast.training.choose import MixedTrainer, fastest_trainers
from fedast.training.lean import LeanTrainer
from fedast.training.options import Batched, Processes, Resources, Serial
from fedast.training.processes import ProcessTrainer
from fedast.training.trainer import DeviceTask, Job, SerialTrainer
from tests.training.test_trainers import CPU, make_task, off_by


@pytest.fixture
def device_tasks() -> dict[str, DeviceTask]:
    return {"t": DeviceTask.build(make_task("small-cnn", torch.float64), 3, CPU)}


@pytest.fixture
def trainer(device_tasks: dict[str, DeviceTask]) -> Iterator[ProcessTrainer]:
    trainer = ProcessTrainer(device_tasks, 3, workers=2)
    yield trainer
    trainer.close()


def jobs_for(device_task: DeviceTask, count: int) -> list[Job]:
    base = device_task.model.read()
    return [Job(50 + n, n % 4, base + 0.001 * n) for n in range(count)]


def test_the_number_of_workers_changes_nothing(
    device_tasks: dict[str, DeviceTask], trainer: ProcessTrainer
) -> None:
    jobs = jobs_for(device_tasks["t"], 5)
    alone = ProcessTrainer(device_tasks, 3, workers=1)
    try:
        for one, other in zip(alone.train("t", jobs), trainer.train("t", jobs), strict=True):
            assert torch.equal(one.delta, other.delta)
    finally:
        alone.close()


def test_a_worker_that_is_killed_is_named_with_its_request(
    device_tasks: dict[str, DeviceTask], trainer: ProcessTrainer
) -> None:
    jobs = jobs_for(device_tasks["t"], 4)
    trainer.train("t", jobs)
    victim = trainer._workers[1]._process
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    with pytest.raises(TrainingFailed, match=r"exit code -9\) while training request 51"):
        trainer.train("t", jobs)
    with pytest.raises(TrainingFailed, match="worker processes have ended"):
        trainer.train("t", jobs)


def test_an_error_in_training_comes_back() -> None:
    task = make_task("own", torch.float32)
    device_task = DeviceTask.build(task, 3, CPU)
    trainer = ProcessTrainer({"t": device_task}, 3, workers=1)
    try:
        with pytest.raises(TrainingFailed, match="request 7: IndexError"):
            trainer.train("t", [Job(7, 99, device_task.model.read())])
    finally:
        trainer.close()


def test_workers_end_with_their_trainer(device_tasks: dict[str, DeviceTask]) -> None:
    trainer = ProcessTrainer(device_tasks, 3, workers=2)
    processes = [worker._process for worker in trainer._workers]
    trainer.close()
    assert not any(process.is_alive() for process in processes)


def test_a_calibration_chooses_for_every_task(device_tasks: dict[str, DeviceTask]) -> None:
    two = {"t": device_tasks["t"], "u": device_tasks["t"]}
    chosen = fastest_trainers(two, 3, workers=2)
    assert set(chosen) == {"t", "u"}
    assert {options.name for options in chosen.values()} <= {"serial", "processes", "batched"}
    assert fastest_trainers(two, 3, workers=1) == {"t": Serial(), "u": Serial()}


def test_each_task_has_its_own_trainer() -> None:
    tasks = {name: DeviceTask.build(make_task("logistic", torch.float64), 3, CPU) for name in "abc"}
    chosen = {"a": Serial(), "b": Processes(), "c": Batched()}
    trainer = MixedTrainer(tasks, 3, chosen, Resources(workers=2, batch_limit=7))
    try:
        assert [trainer.limit(name) for name in "abc"] == [1, 16, 7]
        job = Job(1, 2, tasks["a"].model.read())
        serial = SerialTrainer(tasks, 3)
        for name in "abc":
            (wanted,), (found,) = serial.train(name, [job]), trainer.train(name, [job])
            assert off_by(found.delta, wanted.delta) < 1e-10
    finally:
        trainer.close()


def test_more_jobs_than_places(
    device_tasks: dict[str, DeviceTask], trainer: ProcessTrainer
) -> None:
    """Some have their base model in common, with others in between."""
    base = device_tasks["t"].model.read()
    bases = [base + 0.001 * n for n in range(7)]
    jobs = [Job(50 + n, n % 4, bases[n * n % 7]) for n in range(30)]
    found = trainer.train("t", jobs)
    for one, wanted in zip(found, SerialTrainer(device_tasks, 3).train("t", jobs), strict=True):
        assert off_by(one.delta, wanted.delta) < 1e-10
        assert off_by(one.loss, wanted.loss) < 1e-10
        assert one.buffers is None


def test_an_interrupt_ends_the_workers(
    device_tasks: dict[str, DeviceTask], trainer: ProcessTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that are still to come must not be taken for those of the next jobs."""
    jobs = jobs_for(device_tasks["t"], 6)
    waits = iter(range(2))

    def interrupted(pipes: list[Connection]) -> list[Any]:
        if next(waits, None) is None:
            raise KeyboardInterrupt
        return wait(pipes)

    monkeypatch.setattr(processes, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train("t", jobs)
    with pytest.raises(TrainingFailed, match="worker processes have ended"):
        trainer.train("t", jobs[::-1])


def test_a_worker_computes_what_one_alone_does(
    device_tasks: dict[str, DeviceTask], trainer: ProcessTrainer
) -> None:
    """Bit for bit, here and in Ray's actors, which use the same."""
    jobs = jobs_for(device_tasks["t"], 5)
    alone = LeanTrainer(device_tasks, 3)
    for job, found in zip(jobs, trainer.train("t", jobs), strict=True):
        (wanted,) = alone.train("t", [job])
        assert torch.equal(found.delta, wanted.delta)
        assert torch.equal(found.loss, wanted.loss)
