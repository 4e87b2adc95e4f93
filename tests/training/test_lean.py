"""One client at a time without autograd: the serial trainer's updates, in the usual and the dual
form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedast.tasks.dataset import Arrays
from fedast.tasks.models import perceptron
from fedast.tasks.task import Sampling, Task, Training
from fedast.training.batched import BatchedTrainer
from fedast.training.kernels.dual import DualLinear
from fedast.training.kernels.loss import cross_entropy, spread
from fedast.training.lean import LeanTrainer
from fedast.training.trainer import DeviceTask, Job, SerialTrainer
from tests.training.test_trainers import CPU, make_task, off_by


def task_of(
    widths: Sequence[int],
    samples: int,
    *,
    steps: int = 9,
    batch_size: int = 4,
    decay: float = 1e-2,
    sampling: Sampling = "epochs",
    dtype: torch.dtype = torch.float64,
) -> Task:
    """A perceptron, and three clients with so many samples each."""
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(3 * samples, widths[0], generator=draws, dtype=torch.float64).to(dtype)
    labels = torch.randint(widths[-1], (3 * samples,), generator=draws)
    data = Arrays(inputs, labels)
    return Task(
        name="t",
        model=lambda: perceptron(tuple(widths)).to(dtype),
        train=data,
        test=data,
        partition=[np.arange(n * samples, (n + 1) * samples) for n in range(3)],
        training=Training(
            local_steps=steps,
            batch_size=batch_size,
            client_lr=0.1,
            weight_decay=decay,
            sampling=sampling,
        ),
    )


def changed(task: Task, **changes: Any) -> Task:
    fields = ("name", "model", "train", "test", "partition", "training")
    return Task(**{field: getattr(task, field) for field in fields} | changes)


def built(task: Task) -> dict[str, DeviceTask]:
    return {"t": DeviceTask.build(task, 3, CPU)}


def jobs_for(tasks: dict[str, DeviceTask]) -> list[Job]:
    base = tasks["t"].model.read()
    return [Job(50 + n, n % 3, base * (1 + 0.01 * n)) for n in range(4)]


@settings(max_examples=40)
@given(
    widths=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    samples=st.integers(1, 30),
    steps=st.integers(1, 12),
    batch_size=st.integers(1, 8),
    decay=st.sampled_from([0.0, 1e-2, 5.0]),
    sampling=st.sampled_from(["epochs", "independent"]),
)
def test_the_dual_form_gives_the_serial_trainers_updates(
    widths: list[int],
    samples: int,
    steps: int,
    batch_size: int,
    decay: float,
    sampling: Sampling,
) -> None:
    """Also with samples that are drawn twice into one batch, and weights that decay to half."""
    tasks = built(
        task_of(widths, samples, steps=steps, batch_size=batch_size, decay=decay, sampling=sampling)
    )
    jobs, lean = jobs_for(tasks), LeanTrainer(tasks, 3)
    assert lean.by_hand("t")
    with patch.object(DualLinear, "pays", return_value=True):
        found = lean.train("t", jobs)
    for one, wanted in zip(found, SerialTrainer(tasks, 3).train("t", jobs), strict=True):
        torch.testing.assert_close(one.delta, wanted.delta, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(one.loss, wanted.loss, rtol=1e-10, atol=1e-10)


def begun(task: Task) -> int:
    """How often the dual form is taken for two jobs, whose updates are the serial trainer's."""
    tasks = built(task)
    jobs = jobs_for(tasks)[:2]
    with patch.object(DualLinear, "begin", autospec=True, side_effect=DualLinear.begin) as begin:
        found = LeanTrainer(tasks, 3).train("t", jobs)
    for one, wanted in zip(found, SerialTrainer(tasks, 3).train("t", jobs), strict=True):
        assert off_by(one.delta, wanted.delta) < 1e-10
    return begin.call_count


PAPER = (784, 200, 200, 10)


@pytest.mark.parametrize(
    ("samples", "steps", "widths", "dual"),
    [
        pytest.param(300, 27, PAPER, True, id="the paper's MNIST: three epochs"),
        pytest.param(300, 9, PAPER, False, id="one epoch"),
        pytest.param(3000, 27, PAPER, False, id="more samples than are seen"),
        pytest.param(300, 27, (64, 32, 10), False, id="calls, not products, take the time"),
    ],
)
def test_the_dual_form_is_taken_where_it_is_less_work(
    samples: int, steps: int, widths: tuple[int, ...], dual: bool
) -> None:
    task = task_of(widths, samples, steps=steps, batch_size=32)
    assert begun(task) == (2 if dual else 0)


def alone(x: torch.Tensor) -> torch.Tensor:
    return (x - 128.0) / 51.0


def by_batch(x: torch.Tensor) -> torch.Tensor:
    return x / 51.0 - x.mean(dim=0) / 51.0


def not_of_one(x: torch.Tensor) -> torch.Tensor:
    if len(x) == 1:
        raise ValueError("too few")
    return alone(x)


@pytest.mark.parametrize(("transform", "dual"), [(alone, 2), (by_batch, 0), (not_of_one, 0)])
def test_samples_must_not_depend_on_others_in_their_batch(
    transform: Callable[[torch.Tensor], torch.Tensor], dual: int
) -> None:
    """As the paper's images, which are stored as bytes, do not."""
    task = task_of(PAPER, 300, steps=27, batch_size=32)
    assert isinstance(task.train, Arrays)
    pixels = (task.train.inputs * 51 + 128).clamp(0, 255).to(torch.uint8).double()
    data = Arrays(pixels, task.train.labels, transform)
    assert begun(changed(task, train=data)) == dual


def test_a_client_leaves_nothing_behind() -> None:
    tasks = built(task_of(PAPER, 60, steps=27, batch_size=8, dtype=torch.float32))
    first, second, *_ = jobs_for(tasks)
    lean = LeanTrainer(tasks, 3)
    found = [lean.train("t", [job])[0] for job in (first, second, first)]
    assert torch.equal(found[0].delta, found[2].delta)
    assert torch.equal(found[0].loss, found[2].loss)
    assert not torch.equal(found[0].delta, found[1].delta)


def test_a_model_that_diverges_shows_it() -> None:
    tasks = built(task_of(PAPER, 60, steps=27, batch_size=8))
    job = Job(1, 0, tasks["t"].model.read() * 1e200)
    lean, serial = (kind(tasks, 3).train("t", [job])[0] for kind in (LeanTrainer, SerialTrainer))
    assert not serial.delta.isfinite().all()
    assert not lean.delta.isfinite().all()


@pytest.mark.parametrize("name", ["own", "lstm"])
def test_other_models_are_trained_by_autograd(name: str) -> None:
    tasks = built(make_task(name, torch.float64, steps=1))
    lean, jobs = LeanTrainer(tasks, 3), jobs_for(tasks)[:1]
    assert not lean.by_hand("t")
    (found,), (wanted,) = lean.train("t", jobs), SerialTrainer(tasks, 3).train("t", jobs)
    assert torch.equal(found.delta, wanted.delta)


def hooked() -> nn.Module:
    net = perceptron((12, 8, 5)).double()
    first = next(net.parameters())
    first.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))  # type: ignore[no-untyped-call]
    return net


def used_twice() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(
        nn.Linear(12, 8), nn.ReLU(), layer, nn.ReLU(), layer, nn.Linear(8, 5)
    ).double()


@pytest.mark.parametrize("model", [hooked, used_twice])
def test_layers_that_do_something_else_are_trained_by_autograd(
    model: Callable[[], nn.Module],
) -> None:
    tasks = built(changed(task_of((12, 5), 20), model=model))
    lean, jobs = LeanTrainer(tasks, 3), jobs_for(tasks)
    assert not lean.by_hand("t")
    for one, wanted in zip(
        lean.train("t", jobs), SerialTrainer(tasks, 3).train("t", jobs), strict=True
    ):
        assert torch.equal(one.delta, wanted.delta)


@final
class Own:
    """A dataset of somebody's own, some of whose samples have no label."""

    def __init__(self, data: Arrays) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = self._data.batch(indices)
        return inputs, torch.where(indices % 5 == 4, -100, labels)

    def to(self, device: torch.device) -> Own:
        return self


@pytest.mark.parametrize("kind", [LeanTrainer, BatchedTrainer])
def test_samples_without_a_label_do_not_count(
    kind: type[LeanTrainer] | type[BatchedTrainer],
) -> None:
    task = task_of((12, 8, 5), 20)
    assert isinstance(task.train, Arrays)
    own = Own(task.train)
    tasks = built(changed(task, train=own, test=own))
    jobs = jobs_for(tasks)
    for one, wanted in zip(
        kind(tasks, 3).train("t", jobs), SerialTrainer(tasks, 3).train("t", jobs), strict=True
    ):
        torch.testing.assert_close(one.delta, wanted.delta, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [LeanTrainer, BatchedTrainer])
def test_labels_may_be_bytes(kind: type[LeanTrainer] | type[BatchedTrainer]) -> None:
    task = task_of((12, 8, 5), 20)
    assert isinstance(task.train, Arrays)
    data = Arrays(task.train.inputs, task.train.labels.to(torch.uint8))
    tasks = built(changed(task, train=data, test=data))
    trainer, jobs = kind(tasks, 3), jobs_for(tasks)
    if isinstance(trainer, LeanTrainer):
        assert trainer.by_hand("t")
    else:
        assert not trainer.alone
    for one, wanted in zip(
        trainer.train("t", jobs), SerialTrainer(tasks, 3).train("t", jobs), strict=True
    ):
        torch.testing.assert_close(one.delta, wanted.delta, rtol=1e-10, atol=1e-12)


def test_labels_that_are_spread_out_have_the_same_loss() -> None:
    scores = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(7, (3, 5))
    with torch.no_grad():
        found = cross_entropy(scores, labels, spread(labels, 7, torch.float64))
        usual = cross_entropy(scores, labels)
    losses = torch.stack(
        [nn.functional.cross_entropy(*one) for one in zip(scores, labels, strict=True)]
    )
    for one, wanted in zip(
        found, (losses, *torch.autograd.grad(losses.sum(), scores)), strict=True
    ):
        torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(one, other) for one, other in zip(found, usual, strict=True))


def test_a_class_that_is_impossible_has_no_say_in_the_loss() -> None:
    """Scores so far apart that a probability's logarithm is infinite."""
    scores = torch.tensor([[[3e38, -3e38, 1.0]]])
    losses, gradient = cross_entropy(scores, torch.tensor([[0]]))
    assert losses.tolist() == [0.0]
    assert gradient.tolist() == [[[0.0, 0.0, 0.0]]]
