"""What every trainer must keep to.

- An update depends on the base model, the client's data and the request's random stream alone. It
  is the same, up to rounding, whatever is trained with it, before it or after it.
- It is the serial trainer's, up to rounding: delta, mean loss and running statistics. (Where a
  model draws random numbers, as with dropout, it may draw others.)
- The same jobs given to a new trainer with the same seed give the same bits: a run can be repeated.
- A schedule of the learning rate goes by the round of the base model.
- Updates come in the order of the jobs, also if there are more than ``limit``. Base models and
  earlier updates are left alone, and so is torch's global generator.
- ``close`` may be called twice.

The tolerance is of double precision, relative to the norm of what is compared.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedast.tasks.client_optimizers import SGD, Schedule
from fedast.tasks.dataset import Arrays
from fedast.tasks.task import Task, Training
from fedast.training.options import TRAINERS, Resources, TrainerOptions
from fedast.training.trainer import DeviceTask, Job, SerialTrainer, Trainer, Update

SEED = 3
CLIENTS = (5, 9, 30, 7)
"""Samples of each client; some have less than a batch."""
MODELS = ("plain", "normalized", "dropout")


def trainer_contract(
    trainer: Any,
    *,
    tolerance: float = 1e-9,
    resources: Resources | None = None,
    device: str = "cpu",
) -> type[TrainerContract]:
    """The suite for a trainer: its options, its name, or a callable ``(device_tasks, seed)``."""
    fields = {
        "options": TRAINERS.parse(trainer, "trainer"),
        "tolerance": tolerance,
        "resources": resources or Resources(workers=2, batch_limit=4),
        "device": torch.device(device),
    }
    return type("TestTrainer", (TrainerContract,), fields)


def _model(kind: str) -> nn.Module:
    between: dict[str, nn.Module] = {
        "plain": nn.Tanh(),
        "normalized": nn.BatchNorm1d(8),
        "dropout": nn.Dropout(0.5),
    }
    return nn.Sequential(nn.Linear(6, 8), between[kind], nn.Linear(8, 4)).double()


def _task(kind: str) -> Task:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(sum(CLIENTS), 6, generator=generator, dtype=torch.float64)
    data = Arrays(inputs, torch.randint(4, (len(inputs),), generator=generator))
    ends = np.cumsum(CLIENTS)
    return Task(
        name=kind,
        model=lambda: _model(kind),
        train=data,
        test=data,
        partition=[np.arange(end - size, end) for size, end in zip(CLIENTS, ends, strict=True)],
        training=Training(local_steps=3, batch_size=8, client_lr=0.1, weight_decay=1e-3),
    )


class TrainerContract:
    """The suite; ``trainer_contract`` fills in the options."""

    options: ClassVar[TrainerOptions]
    tolerance: ClassVar[float]
    resources: ClassVar[Resources]
    device: ClassVar[torch.device]

    @pytest.fixture(scope="class")
    @classmethod
    def device_tasks(cls) -> dict[str, DeviceTask]:
        return {kind: DeviceTask.build(_task(kind), SEED, cls.device) for kind in MODELS}

    @pytest.fixture(scope="class")
    @classmethod
    def trainer(cls, device_tasks: dict[str, DeviceTask]) -> Iterator[Trainer]:
        with cls.built(device_tasks) as trainer:
            yield trainer

    @classmethod
    @contextmanager
    def built(cls, device_tasks: dict[str, DeviceTask], seed: int = SEED) -> Iterator[Trainer]:
        trainer = cls.options.build(device_tasks, seed, cls.resources)
        try:
            yield trainer
        finally:
            trainer.close()

    @pytest.mark.parametrize("kind", ["plain", "normalized"])
    def test_updates_are_those_of_the_serial_trainer(
        self, kind: str, device_tasks: dict[str, DeviceTask], trainer: Trainer
    ) -> None:
        jobs = _jobs(device_tasks[kind], 9)
        self.agree(trainer.train(kind, jobs), SerialTrainer(device_tasks, SEED).train(kind, jobs))

    @pytest.mark.parametrize("kind", MODELS)
    @pytest.mark.parametrize("shuffle", range(3))
    def test_order_and_grouping_change_no_update(
        self, kind: str, shuffle: int, device_tasks: dict[str, DeviceTask], trainer: Trainer
    ) -> None:
        jobs = _jobs(device_tasks[kind], 11)
        wanted = {job.request: trainer.train(kind, [job])[0] for job in jobs}
        draw = random.Random(shuffle)
        draw.shuffle(jobs)
        while jobs:
            size = draw.randint(1, len(jobs))
            group, jobs = jobs[:size], jobs[size:]
            self.agree(trainer.train(kind, group), [wanted[job.request] for job in group])

    def test_a_schedule_goes_by_the_round_of_the_base_model(self) -> None:
        schedule = Schedule(use="linear", rounds=10)
        task = _task("plain")
        training = task.training.model_copy(update={"client_optimizer": SGD(schedule=schedule)})
        task = replace(task, training=training)
        device_tasks = {"plain": DeviceTask.build(task, SEED, self.device)}
        base = device_tasks["plain"].model.read()
        jobs = [Job(1, 2, base, version) for version in (0, 5, 9)]
        wanted = SerialTrainer(device_tasks, SEED).train("plain", jobs)
        assert _off_by(wanted[1].delta, wanted[0].delta) > 1e-6
        with self.built(device_tasks) as trainer:
            self.agree(trainer.train("plain", jobs), wanted)

    def test_other_tasks_change_no_update(
        self, device_tasks: dict[str, DeviceTask], trainer: Trainer
    ) -> None:
        jobs = {kind: _jobs(device_tasks[kind], 3) for kind in MODELS}
        first = {kind: trainer.train(kind, jobs[kind]) for kind in MODELS}
        for kind in reversed(MODELS):
            self.agree(trainer.train(kind, jobs[kind]), first[kind])

    def test_more_jobs_than_the_limit(
        self, device_tasks: dict[str, DeviceTask], trainer: Trainer
    ) -> None:
        limit = trainer.limit("plain")
        assert limit >= 1
        jobs = _jobs(device_tasks["plain"], 2 * limit + 1)
        wanted = SerialTrainer(device_tasks, SEED).train("plain", jobs)
        self.agree(trainer.train("plain", jobs), wanted)

    @pytest.mark.parametrize("kind", MODELS)
    def test_a_new_trainer_gives_the_same_bits(
        self, kind: str, device_tasks: dict[str, DeviceTask]
    ) -> None:
        jobs = _jobs(device_tasks[kind], 5)
        found = []
        for noise in (0, 1):
            torch.manual_seed(noise)  # which must make no difference
            with self.built(device_tasks) as trainer:
                found.append(trainer.train(kind, jobs))
        for one, other in zip(*found, strict=True):
            assert torch.equal(one.delta, other.delta)
            assert torch.equal(one.loss, other.loss)

    def test_seed_request_client_and_base_make_a_difference(
        self, device_tasks: dict[str, DeviceTask], trainer: Trainer
    ) -> None:
        base = device_tasks["plain"].model.read()
        jobs = [Job(1, 2, base), Job(2, 2, base), Job(1, 1, base), Job(1, 2, base + 0.1)]
        deltas = [update.delta for update in trainer.train("plain", jobs)]
        with self.built(device_tasks, seed=SEED + 1) as other:
            deltas += [other.train("plain", jobs[:1])[0].delta]
        for number, delta in enumerate(deltas[1:]):
            assert _off_by(delta, deltas[0]) > 1e-6, f"case {number} is trained as the first is"

    def test_bases_earlier_updates_and_global_randomness_are_left_alone(
        self, device_tasks: dict[str, DeviceTask], trainer: Trainer
    ) -> None:
        for kind in MODELS:
            jobs = _jobs(device_tasks[kind], 6)
            bases = [job.base.clone() for job in jobs]
            state = torch.get_rng_state()
            first = trainer.train(kind, jobs[:3])
            deltas = [update.delta.clone() for update in first]
            losses = [update.loss.clone() for update in first]
            trainer.train(kind, jobs[3:])
            assert torch.equal(torch.get_rng_state(), state)
            for job, base in zip(jobs, bases, strict=True):
                assert torch.equal(job.base, base)
            for update, delta, loss in zip(first, deltas, losses, strict=True):
                assert torch.equal(update.delta, delta)
                assert torch.equal(update.loss, loss)

    def test_running_statistics_come_with_models_that_have_them(
        self, device_tasks: dict[str, DeviceTask], trainer: Trainer
    ) -> None:
        for kind in MODELS:
            model = device_tasks[kind].model
            for update in trainer.train(kind, _jobs(device_tasks[kind], 3)):
                assert update.delta.shape == (model.buffers_from,)
                assert update.loss.shape == ()
                assert bool(torch.isfinite(update.loss))
                if model.buffer_count:
                    assert update.buffers is not None
                    assert update.buffers.shape == (model.buffer_count,)
                else:
                    assert update.buffers is None

    def test_it_may_be_closed_twice(self, device_tasks: dict[str, DeviceTask]) -> None:
        trainer = self.options.build(device_tasks, SEED, self.resources)
        trainer.train("plain", _jobs(device_tasks["plain"], 2))
        trainer.close()
        trainer.close()

    def test_options_survive_a_file(self) -> None:
        table = self.options.model_dump(mode="json")
        assert TRAINERS.parse(table, "trainer").model_dump(mode="json") == table

    def agree(self, found: Sequence[Update], wanted: Sequence[Update]) -> None:
        """The same updates, up to rounding."""
        assert len(found) == len(wanted), f"{len(found)} updates for {len(wanted)} jobs"
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            for part in ("delta", "loss", "buffers"):
                mine, theirs = getattr(one, part), getattr(other, part)
                if theirs is None:
                    assert mine is None, f"job {number}: {part} of a model that has none"
                    continue
                assert mine is not None, f"job {number}: no {part}"
                off = _off_by(mine, theirs)
                assert off <= self.tolerance, f"job {number}: {part} is off by {off:.1e}"


def _jobs(device_task: DeviceTask, count: int) -> list[Job]:
    """Jobs of all clients from three versions of the model."""
    first = device_task.model.read().clone()
    noise = torch.randn(
        3, len(first), generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    versions = first + 0.01 * noise.abs().to(first)  # (a running variance must stay positive)
    return [Job(100 + n, n % len(CLIENTS), versions[n % 3]) for n in range(count)]


def _off_by(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())
