"""Running statistics on the server: averaged, never stepped, always in range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedast import FedASTDynamic, FedASTStatic, SyncST
from fedast.aggregation.aggregators import Mean, Median, TrimmedMean
from fedast.aggregation.running_statistics import mixed, share_of
from fedast.aggregation.server_optimizers import (
    SGD,
    Adam,
    Momentum,
    Yogi,
)
from fedast.aggregation.settings import Calibration, ServerSide
from fedast.config.schema import Compute
from fedast.learner.local import LocalLearner
from fedast.run.simulate import Outcome, simulate
from fedast.tasks.task import Allocation, Goal, Task, Training
from fedast.training.processes import ProcessTrainer
from fedast.training.trainer import DeviceTask, Job, SerialTrainer

CLIENTS = 12
CPU = torch.device("cpu")


class Normalised(nn.Module):
    """Batch normalisation, and a table that is no statistic."""

    table: torch.Tensor

    def __init__(self, momentum: float | None = 0.5) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6, momentum=momentum)
        self.out = nn.Linear(6, 3)
        self.register_buffer("table", torch.linspace(-1e6, 0.1, 7).sin() * 1e5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(torch.relu(self.norm(self.first(inputs))))
        return scores + 1e-9 * self.table[:3]


def make_task(
    name: str = "t",
    *,
    model: Callable[[], nn.Module] = Normalised,
    server: ServerSide | None = None,
    server_lr: float | None = None,
    buffer: int = 2,
    rounds: int = 40,
    **training: Any,
) -> Task:
    """Clients whose inputs have very different scales, so that variances jump."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(16 * CLIENTS) % 3
    scales = torch.logspace(-1, 1.5, CLIENTS).repeat_interleave(16)
    inputs = scales[:, None] * torch.randn(len(labels), 4, generator=generator)
    how: dict[str, Any] = {"local_steps": 4, "batch_size": 8, "client_lr": 0.02} | training
    return Task(
        name=name,
        model=model,
        train=(inputs, labels),
        test=(inputs, labels),
        partition=list(np.arange(len(labels)).reshape(CLIENTS, -1)),
        training=Training(server_lr=server_lr, **how),
        server=server or ServerSide(),
        allocation=Allocation(requests=CLIENTS, buffer=buffer),
        goal=Goal(max_rounds=rounds),
    )


SIDES = {
    "plain": ServerSide(),
    "momentum": ServerSide(optimizer=Momentum(beta=0.9)),
    "adam": ServerSide(optimizer=Adam()),
    "yogi": ServerSide(optimizer=Yogi()),
    "median": ServerSide(aggregator=Median()),
    "trimmed, clipped": ServerSide(aggregator=TrimmedMean(trim=0.3, clip=1.0)),
    "calibrated": ServerSide(calibration=Calibration(use="always")),
}


def run(algorithm: Any, task: Task) -> Outcome:
    return simulate([task], algorithm, compute=Compute(device="cpu", trainer="serial"), seed=5)


def check(outcome: Outcome) -> None:
    module = outcome.models["t"]
    assert isinstance(module, Normalised)
    assert module.norm.running_var is not None
    assert module.norm.running_mean is not None
    assert module.norm.running_var.isfinite().all()
    assert module.norm.running_var.min() >= 0
    assert module.norm.running_mean.isfinite().all()
    assert not torch.equal(module.norm.running_var, torch.ones(6)), "they are counted at all"
    assert module.norm.num_batches_tracked is not None
    assert int(module.norm.num_batches_tracked) == 0
    assert torch.equal(module.table, Normalised().table), "what no client changes stays"


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "algorithm",
    [FedASTStatic(requests=CLIENTS), FedASTDynamic(requests=CLIENTS)],
    ids=lambda how: str(how.name),
)
def test_variances_stay_variances_whatever_the_staleness(algorithm: Any, side: str) -> None:
    rate = 0.05 if SIDES[side].optimizer.adaptive else 1.0
    buffer = 2 if isinstance(SIDES[side].aggregator, Mean) else 4
    outcome = run(algorithm, make_task(server=SIDES[side], server_lr=rate, buffer=buffer))
    check(outcome)
    assert outcome.result.tasks["t"].staleness_max >= 4
    assert outcome.result.tasks["t"].finish_reason == "rounds"


@pytest.mark.parametrize("momentum", [None, 1.0, 0.01])
@pytest.mark.parametrize("rate", [0.3, 3.0])
def test_variances_stay_variances_with_any_rate(momentum: float | None, rate: float) -> None:
    task = make_task(model=partial(Normalised, momentum), server_lr=rate, client_lr=0.002)
    check(run(FedASTStatic(requests=CLIENTS), task))


def test_a_synchronous_round_takes_the_clients_mean() -> None:
    """As FedAvg does: the plain mean of what clients count, from the model that went out."""
    task = make_task()
    learner = LocalLearner([task], {"t": 1.0}, seed=0, device=CPU, variance_window=0)
    device_task = DeviceTask.build(task, 0, CPU)
    start = learner.parameters("t").clone()
    alone = SerialTrainer({"t": device_task}, 0)
    for request in range(3):
        learner.dispatch(request, "t", request, 0)
        learner.accept(request, "t")
    learner.aggregate("t", (0, 1, 2))
    sent = [update.buffers for update in alone.train("t", [Job(n, n, start) for n in range(3)])]
    wanted = torch.stack([values for values in sent if values is not None]).mean(dim=0)
    found = learner.parameters("t")[device_task.model.buffers_from :]
    assert torch.allclose(found, wanted, rtol=1e-5, atol=0)
    assert (wanted[7:] - start[device_task.model.buffers_from :][7:]).abs().min() > 1e-3


def test_sync_runs_train_with_statistics() -> None:
    check(run(SyncST(first_k=3), replace(make_task(), allocation=Allocation())))


def test_realloc_measures_parameters_only() -> None:
    task = make_task()
    learner = LocalLearner([task], {"t": 1.0}, seed=0, device=CPU, variance_window=2)
    for request in range(2):
        learner.dispatch(request, "t", 11 * request, 0)
        learner.accept(request, "t")
    measured = learner.variance("t")
    first, second = (learner.open_updates()[n] for n in range(2))
    assert first is not None
    assert second is not None
    assert len(first.delta) == sum(p.numel() for p in Normalised().parameters())
    mean = (first.delta + second.delta).double() / 2
    wanted = float((first.delta - mean).square().sum() / mean.square().sum())
    assert measured == pytest.approx(wanted, rel=1e-5)


def test_worker_processes_bring_statistics_too() -> None:
    device_task = DeviceTask.build(make_task(), 0, CPU)
    jobs = [Job(n, n, device_task.model.read()) for n in range(3)]
    trainer = ProcessTrainer({"t": device_task}, 0, workers=2)
    try:
        found = trainer.train("t", jobs)
    finally:
        trainer.close()
    for one, other in zip(
        found, SerialTrainer({"t": device_task}, 0).train("t", jobs), strict=True
    ):
        assert one.buffers is not None
        assert other.buffers is not None
        assert torch.allclose(one.buffers, other.buffers, rtol=1e-5, atol=1e-6)
        assert torch.allclose(one.delta, other.delta, rtol=1e-4, atol=1e-6)


# --- the rule itself ------------------------------------------------------------------------------

values = st.floats(0, 2.0**100, width=32) | st.sampled_from([0.0, 1e-30, 0.1, 1.0, 3e7])
AGGREGATES = [how.build() for how in (Mean(), Median(), TrimmedMean(trim=0.3))]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_statistics_stay_in_the_hull_of_what_was_sent(data: st.DataObject) -> None:
    count, width = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    row = st.lists(values, min_size=width, max_size=width)
    present = torch.tensor(data.draw(row), dtype=torch.float32)
    share = share_of(SGD(), data.draw(st.floats(0.001, 5)))
    start_low, start_high = present.clone(), present.clone()
    for _ in range(3):  # several rounds: what is old does not lead out either
        sent = torch.tensor([data.draw(row) for _ in range(count)], dtype=torch.float32)
        weights = data.draw(st.none() | st.lists(st.floats(0, 2), min_size=count, max_size=count))
        factors = None if weights is None else torch.tensor(weights, dtype=torch.float32)
        how = data.draw(st.sampled_from(AGGREGATES))
        present = mixed(how, share, present, sent, factors)
        start_low = torch.minimum(start_low, sent.amin(dim=0))
        start_high = torch.maximum(start_high, sent.amax(dim=0))
        assert (present >= start_low).all()
        assert (present <= start_high).all()


def test_statistics_by_hand() -> None:
    present = torch.tensor([1.0, 0.0])
    sent = torch.tensor([[3.0, 8.0], [5.0, 0.0]])
    mean = Mean().build()
    assert mixed(mean, 1.0, present, sent, None).tolist() == [4.0, 4.0]
    assert mixed(mean, 0.25, present, sent, None).tolist() == [1.75, 1.0]
    half = torch.tensor([1.0, 0.5])
    assert mixed(mean, 1.0, present, sent, half).tolist() == [1 + (2 + 2) / 2, 4.0]
    three = torch.cat([sent, torch.tensor([[100.0, 1.0]])])
    assert mixed(Median().build(), 1.0, present, three, None).tolist() == [5.0, 1.0]
    assert share_of(SGD(), 0.3) == share_of(Momentum(), 0.3) == 0.3
    assert share_of(SGD(), 7.0) == share_of(Adam(), 0.01) == 1.0


def test_a_checkpoint_from_before_has_differences_which_are_passed_over() -> None:
    """There, updates had the buffers' differences behind the parameters'."""
    task = make_task(server=SIDES["calibrated"])

    def learner() -> LocalLearner:
        made = LocalLearner([task], {"t": 1.0}, seed=0, device=CPU, variance_window=0)
        for request in range(2):
            made.dispatch(request, "t", request, 0)
            made.accept(request, "t")
        return made

    first = learner()
    for request in range(2):
        first.training_loss(request, "t")  # trains it
    tensors = first.state()
    count = len(tensors["buffers.0"])
    end = len(first.parameters("t")) - count
    for request in range(2):
        del tensors[f"buffers.{request}"]
        before = tensors[f"update.{request}"]
        tensors[f"update.{request}"] = torch.cat([before, torch.full((count,), 1e6)])
    rows = tensors["0.server.calibration.rows"]
    tensors["0.server.calibration.rows"] = torch.cat([rows, torch.ones(len(rows), count)], dim=1)
    mean = tensors["0.server.calibration.mean"]
    tensors["0.server.calibration.mean"] = torch.cat([mean, torch.ones(count)])
    second = learner()
    second.restore(tensors)
    for plane in (first, second):
        plane.aggregate("t", (0, 1))
    assert torch.equal(first.parameters("t")[:end], second.parameters("t")[:end])
    assert torch.equal(second.parameters("t")[end + 7 :], torch.tensor([0.0] * 6 + [1.0] * 6))
