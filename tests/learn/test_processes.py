"""Training in worker processes: the same updates, in order, and what happens when one dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

from fedast.learn.processes import ProcessTrainer
from fedast.learn.task import TrainingFailed
from fedast.learn.trainer import Job, SerialTrainer, Workbench
from fedast.learn.trainers import MixedTrainer, calibrate
from tests.learn.test_trainers import CPU, make_task, off_by


@pytest.fixture
def benches() -> dict[str, Workbench]:
    return {"t": Workbench.build(make_task("small-cnn", torch.float64), 3, CPU)}


@pytest.fixture
def trainer(benches: dict[str, Workbench]) -> Iterator[ProcessTrainer]:
    trainer = ProcessTrainer(benches, 3, workers=2)
    yield trainer
    trainer.close()


def jobs_for(bench: Workbench, count: int) -> list[Job]:
    base = bench.model.read()
    return [Job(50 + n, n % 4, base + 0.001 * n) for n in range(count)]


def test_workers_give_the_serial_updates_in_order(
    benches: dict[str, Workbench], trainer: ProcessTrainer
) -> None:
    jobs = jobs_for(benches["t"], 37)  # more than there are slots
    wanted = SerialTrainer(benches, 3).train("t", jobs)
    found = trainer.train("t", jobs)
    assert len(found) == len(jobs)
    for one, other in zip(found, wanted, strict=True):
        assert off_by(one.delta, other.delta) < 1e-10
        torch.testing.assert_close(one.loss, other.loss)


def test_the_number_of_workers_changes_nothing(
    benches: dict[str, Workbench], trainer: ProcessTrainer
) -> None:
    jobs = jobs_for(benches["t"], 5)
    alone = ProcessTrainer(benches, 3, workers=1)
    try:
        for one, other in zip(alone.train("t", jobs), trainer.train("t", jobs), strict=True):
            assert torch.equal(one.delta, other.delta)
    finally:
        alone.close()


def test_a_worker_that_is_killed_is_named_with_its_request(
    benches: dict[str, Workbench], trainer: ProcessTrainer
) -> None:
    jobs = jobs_for(benches["t"], 4)
    trainer.train("t", jobs)
    victim = trainer._workers[1]._process
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    with pytest.raises(TrainingFailed, match=r"exit -9\) while it trained request 51"):
        trainer.train("t", jobs)


def test_an_error_in_training_comes_back() -> None:
    task = make_task("own", torch.float32)
    bench = Workbench.build(task, 3, CPU)
    trainer = ProcessTrainer({"t": bench}, 3, workers=1)
    try:
        with pytest.raises(TrainingFailed, match="request 7: IndexError"):
            trainer.train("t", [Job(7, 99, bench.model.read())])
    finally:
        trainer.close()


def test_workers_end_with_their_trainer(benches: dict[str, Workbench]) -> None:
    trainer = ProcessTrainer(benches, 3, workers=2)
    processes = [worker._process for worker in trainer._workers]
    trainer.close()
    assert not any(process.is_alive() for process in processes)


def test_a_calibration_chooses_for_every_task(benches: dict[str, Workbench]) -> None:
    two = {"t": benches["t"], "u": benches["t"]}
    kinds = calibrate(two, 3, workers=2)
    assert set(kinds) == {"t", "u"}
    assert set(kinds.values()) <= {"serial", "processes", "batched"}
    assert calibrate(two, 3, workers=1) == {"t": "serial", "u": "serial"}


def test_each_task_has_its_own_trainer() -> None:
    tasks = {name: Workbench.build(make_task("logistic", torch.float64), 3, CPU) for name in "abc"}
    trainer = MixedTrainer(
        tasks, 3, {"a": "serial", "b": "processes", "c": "batched"}, workers=2, batch_limit=7
    )
    try:
        assert [trainer.limit(name) for name in "abc"] == [1, 16, 7]
        job = Job(1, 2, tasks["a"].model.read())
        serial = SerialTrainer(tasks, 3)
        for name in "abc":
            (wanted,), (found,) = serial.train(name, [job]), trainer.train(name, [job])
            assert off_by(found.delta, wanted.delta) < 1e-10
    finally:
        trainer.close()
