"""What the host does while a GPU works, and work that is done once instead of every time: neither
may change a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedast.algorithms.fedast import FedASTDynamic
from fedast.config.schema import Compute, Simulation
from fedast.learner.evaluation import CapturedEvaluation, measure
from fedast.learner.inference import KernelInference, inference
from fedast.learner.local import LocalLearner, MakeTrainer
from fedast.run.simulate import simulate
from fedast.tasks.dataset import Arrays
from fedast.tasks.models import CharLSTM, lenet5
from fedast.tasks.task import Sampling, Task, Training
from fedast.training.batched import BatchedTrainer
from fedast.training.beside import Beside
from fedast.training.graphs import Graphs
from fedast.training.prepared import one_by_one, prepared
from fedast.training.trainer import DeviceTask, SerialTrainer

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def task(
    sampling: Sampling = "epochs", *, name: str = "t", dropout: bool = False, **more: Any
) -> Task:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    layers = [nn.Dropout(0.5)] if dropout else []
    return Task(
        name=name,
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
        assert len(list(islice(learner._draws(), ahead))) == ahead
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


def learner_of(*names: str, trainer: MakeTrainer = BatchedTrainer) -> LocalLearner:
    tasks = [task(name=name) for name in names]
    rates = dict.fromkeys(names, 0.5)
    return LocalLearner(tasks, rates, seed=3, device=CPU, variance_window=2, trainer=trainer)


def untrained(learner: LocalLearner) -> list[int]:
    return [request for request, update in learner.open_updates().items() if update is None]


def test_updates_that_were_trained_ahead_are_the_same() -> None:
    """First those of the task that has most to train; what they are trained with is rounded
    differently, and no more than that."""
    late, early = learner_of("t", "u"), learner_of("t", "u")
    for learner in (late, early):
        for request in range(6):
            learner.dispatch(request, "t", request, 0)
        learner.aggregate("t", (0, 1))
        for request in range(6, 9):
            learner.dispatch(request, "u", request - 6, 0)
        learner.dispatch(9, "t", 7, 1)
    assert untrained(early) == [6, 7, 8, 9]
    list(early._meanwhile())
    assert untrained(early) == [9], "of the others of t all have been trained"
    list(early._meanwhile())
    assert untrained(early) == [], "one of five is worth a batch"
    assert len(untrained(late)) == 4
    for name, requests in (("u", (6, 7)), ("t", (9, 3))):
        for learner in (late, early):
            for request in requests:
                learner.accept(request, name)
            learner.aggregate(name, requests)
        assert late.variance(name) == pytest.approx(early.variance(name), rel=1e-10)
        assert torch.allclose(late.parameters(name), early.parameters(name), atol=1e-13, rtol=0)


def test_a_small_batch_is_not_trained_ahead() -> None:
    learner = learner_of("t")
    for request in range(10):
        learner.dispatch(request, "t", request % 8, 0)
    list(learner._meanwhile())
    learner.drop(0, "t")
    learner.aggregate("t", (1, 2))
    learner.dispatch(10, "t", 0, 1)
    list(learner._meanwhile())
    assert untrained(learner) == [10], "one of eight"
    learner.dispatch(11, "t", 0, 1)
    list(learner._meanwhile())
    assert untrained(learner) == [], "two of nine"


def test_only_what_is_trained_in_batches_is_trained_ahead() -> None:
    """Clients that are trained one at a time are no faster together, and a trainer that begins by
    itself need not be told."""

    class Begins:
        def __init__(self, device_tasks: Any, seed: int) -> None: ...

        def limit(self, task: str) -> int:
            return 8

        def ahead(self, task: str) -> bool:
            return True

        def plan(self, jobs: Any) -> None: ...

        def bound(self, task: str) -> list[int]:
            return []

        def spread(self, *_: Any) -> list[Any]:
            return []

        def train(self, task: str, jobs: Any) -> list[Any]:
            raise AssertionError

        def close(self) -> None: ...

    for trainer in (SerialTrainer, Begins):
        learner = learner_of("t", trainer=trainer)
        learner.dispatch(0, "t", 0, 0)
        list(learner._meanwhile())
        assert untrained(learner) == [0]


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

            def meanwhile(calls: list[int] = calls) -> Iterator[None]:
                for number in range(3):
                    calls.append(number)
                    yield

            found = captured(factor * base, meanwhile())
            model.load(factor * base)
            wanted = measure(device_task, model, device_task.test, batch)
            assert found.metric == wanted.metric
            assert found.loss == pytest.approx(wanted.loss, rel=1e-6)
            assert calls[0] == 0, "the first in any case"


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


@pytest.mark.cuda
def test_what_is_trained_beside_an_evaluation_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run in which such trainings are late gives the same bits as one in which each is waited for
    at once."""
    images = [replace(image_task(), name=name) for name in ("a", "b")]
    tasks = [
        replace(
            one,
            partition=np.array_split(np.arange(len(one.train)), 20),
            training=Training(local_steps=9, batch_size=8),
        )
        for one in (*images, replace(text_task(), name="c"))
    ]
    usual = BatchedTrainer.train
    beside: list[int] = []

    def slow(self: BatchedTrainer, task: str, jobs: Any) -> Any:
        if torch.cuda.current_stream() != torch.cuda.default_stream():
            beside.append(len(jobs))
            torch.cuda._sleep(10_000_000)  # type: ignore[no-untyped-call]
        return usual(self, task, jobs)

    training = Beside.training

    @contextmanager
    def waited_for(self: Beside, *args: Any) -> Iterator[None]:
        torch.cuda.synchronize()
        with training(self, *args):
            yield
        torch.cuda.synchronize()

    def run() -> Any:
        return simulate(
            tasks, FedASTDynamic(requests=48), Simulation(clients=20, max_time=400.0), seed=2,
            compute=Compute(device="cuda", precision="fp16"),
        )  # fmt: skip

    monkeypatch.setattr(BatchedTrainer, "train", slow)
    late = run()
    assert len(beside) > 10
    monkeypatch.setattr(Beside, "training", waited_for)
    at_once = run()
    assert late.curves == at_once.curves
    for name, module in late.models.items():
        for mine, other in zip(module.parameters(), at_once.models[name].parameters(), strict=True):
            assert torch.equal(mine, other)
