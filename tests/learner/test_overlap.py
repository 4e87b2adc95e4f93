"""What the host does while a GPU works, and work that is done once instead of every time: neither
may change a value."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedast.learner.evaluation import CapturedEvaluation, measure
from fedast.learner.inference import KernelInference, inference
from fedast.learner.local import LocalLearner, MakeTrainer
from fedast.tasks.dataset import Arrays
from fedast.tasks.models import CharLSTM, lenet5
from fedast.tasks.task import Sampling, Task, Training
from fedast.training.batched import BatchedTrainer
from fedast.training.graphs import Graphs
from fedast.training.prepared import one_by_one, prepared
from fedast.training.trainer import DeviceTask, SerialTrainer

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def task(sampling: Sampling = "epochs", *, dropout: bool = False, **more: Any) -> Task:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    layers = [nn.Dropout(0.5)] if dropout else []
    return Task(
        name="t",
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *layers, nn.Linear(8, 3)).double(),
        train=Arrays(inputs, torch.arange(200) % 3),
        test=Arrays(inputs[:40], torch.arange(40) % 3),
        partition=np.array_split(np.arange(200), 8),
        training=Training(local_steps=7, batch_size=4, client_lr=0.1, sampling=sampling),
        **more,
    )


@pytest.mark.parametrize("sampling", ["epochs", "independent"])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("trainer", [SerialTrainer, BatchedTrainer])
def test_mini_batches_that_were_drawn_ahead_are_the_same(
    trainer: MakeTrainer, dropout: bool, sampling: Sampling
) -> None:
    """Of all requests, of none, and of some: with the random numbers of what follows them."""
    found = []
    for ahead in (0, 3, 8):
        learner = LocalLearner(
            [task(sampling, dropout=dropout)], {"t": 0.5}, seed=3, device=CPU, variance_window=0,
            trainer=trainer,
        )  # fmt: skip
        for request in range(8):
            learner.dispatch(request, "t", request % 5, 0)
        draws = learner._draws()
        assert sum(next(draws, False) for _ in range(ahead)) == ahead
        learner.aggregate("t", tuple(range(8)))
        assert learner.open_updates() == {}
        found.append(learner.parameters("t"))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_nothing_is_drawn_twice_or_kept_for_a_request_that_is_closed() -> None:
    learner = LocalLearner([task()], {"t": 0.5}, seed=3, device=CPU, variance_window=0)
    for request in range(3):
        learner.dispatch(request, "t", request, 0)
    assert len(list(learner._draws())) == 3
    assert list(learner._draws()) == []
    learner.drop(1, "t")
    learner.dispatch(3, "t", 1, 0)
    assert len(list(learner._draws())) == 1


def test_only_samples_that_do_not_depend_on_their_batch_are_made_once() -> None:
    inputs, labels = torch.randn(9, 4), torch.zeros(9, dtype=torch.long)
    for transform, alone in (
        (None, True),
        (lambda x: 2 * x - 1, True),
        (lambda x: x - x.mean(), False),  # of the batch
        (lambda x: x + torch.randn_like(x), False),
        (lambda x: x / 0 if len(x) < 2 else 1 / 0, False),
    ):
        assert one_by_one(Arrays(inputs, labels, transform)) is alone


def test_data_on_a_cpu_stays_as_it_is() -> None:
    data = Arrays(torch.zeros(3, 2, dtype=torch.uint8), torch.zeros(3), torch.Tensor.float)
    assert prepared(data, torch.float16) is data


@pytest.mark.cuda
def test_prepared_data_on_a_gpu() -> None:
    pixels = torch.randint(256, (5000, 1, 5, 5), dtype=torch.uint8)
    data = Arrays(pixels, torch.arange(5000), lambda x: (x.float() - 100) / 50).to(CUDA)
    some = torch.tensor([4999, 0, 17], device=CUDA)
    for takes, exact in ((None, True), (torch.float16, False)):
        made = prepared(data, takes)
        assert isinstance(made, Arrays)
        assert made.transform is None
        wanted, labels = data.batch(some)
        inputs, same = made.batch(some)
        assert inputs.dtype == (takes or torch.float32)
        assert torch.allclose(inputs.float(), wanted, atol=0 if exact else 2e-3)
        assert torch.equal(same, labels)
    random = Arrays(pixels, torch.arange(5000), lambda x: x.float() + torch.rand_like(x.float()))
    random = random.to(CUDA)
    assert prepared(random, None) is random


def image_task() -> Task:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (500, 1, 28, 28), generator=generator, dtype=torch.uint8)
    data = Arrays(images, torch.arange(500) % 10, lambda x: x.float() / 100 - 1)
    return Task(name="t", model=lenet5, train=data, test=data, partition=[np.arange(500)])


def text_task() -> Task:
    codes, labels = torch.randint(80, (300, 20)), torch.arange(300) % 80
    data = Arrays(codes, labels)
    return Task(name="t", model=CharLSTM, train=data, test=data, partition=[np.arange(300)])


@pytest.mark.cuda
@pytest.mark.parametrize("make", [image_task, text_task])
def test_an_evaluation_as_a_graph(make: Any) -> None:
    """For any parameters, in one batch or several; the host is given something to do meanwhile."""
    device_task = DeviceTask.build(make(), 0, CUDA)
    model = inference(device_task, "fp16")
    assert isinstance(model, KernelInference)
    base = device_task.model.read()
    graphs = Graphs()
    for batch in (1000, 128):
        captured = CapturedEvaluation(device_task, model, device_task.test, batch, graphs)
        for factor in (1.0, 0.3, 1.5):
            calls: list[int] = []

            def meanwhile(calls: list[int] = calls) -> bool:
                calls.append(1)
                return len(calls) < 3

            found = captured(factor * base, meanwhile)
            model.load(factor * base)
            wanted = measure(device_task, model, device_task.test, batch)
            assert found.metric == wanted.metric
            assert found.loss == pytest.approx(wanted.loss, rel=1e-6)
            assert len(calls) <= 3


@pytest.mark.cuda
def test_a_metric_that_needs_the_host_is_evaluated_without_a_graph() -> None:
    """Here a loss that reads a value; training and evaluation go on as ever."""

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        value = nn.functional.cross_entropy(outputs, labels)
        return value * (1.0 if float(value.detach()) > 0 else 2.0)

    own = image_task()
    own = Task(
        name="t", model=own.model, train=own.train, test=own.test, partition=own.partition,
        loss=loss,
    )  # fmt: skip
    learner = LocalLearner(
        [own], {"t": 1.0}, seed=0, device=CUDA, variance_window=0,
        inference=partial(inference, precision="fp16"),
    )  # fmt: skip
    first, second = learner.evaluate("t"), learner.evaluate("t")
    assert first == second
