"""The data plane against values worked out by hand and against torch's own optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedast.core.streams import Stream
from fedast.learner.local import LocalLearner
from fedast.learner.protocol import Learner
from fedast.learner.remote import RemoteLearner
from fedast.learner.versions import VersionStore
from fedast.tasks.task import BadTask, Indices, Sampling, Task, Training
from fedast.training.batches import draw_parts
from fedast.training.trainer import DeviceTask, Job, SerialTrainer

CPU = torch.device("cpu")


class Shift(nn.Module):
    """One parameter w; with the loss below its gradient on a sample y is w - y."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(inputs))


def half_square(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return 0.5 * ((outputs - labels) ** 2).mean()


def shift_task(values: list[float], **training: float) -> Task:
    """Client i has the single sample y = values[i]."""
    labels = torch.tensor(values)
    how: dict[str, Any] = {"local_steps": 2, "batch_size": 1, "client_lr": 0.5} | training
    return Task(
        name="shift",
        model=Shift,
        train=(torch.zeros(len(values)), labels),
        test=(torch.zeros(2), torch.tensor([1.0, 2.0])),
        partition=[np.array([i]) for i in range(len(values))],
        loss=half_square,
        metric="rmse",
        training=Training(**how),
    )


def learner(task: Task, server_lr: float = 0.4, window: int = 2) -> LocalLearner:
    return LocalLearner([task], {task.name: server_lr}, seed=0, device=CPU, variance_window=window)


def test_local_training_and_aggregation_by_hand() -> None:
    """w0 = 1, eta_c = 0.5, tau = 2: w moves to y + (1 - y) / 4, so Delta = 0.75 (1 - y)."""
    plane = learner(shift_task([3.0, -1.0]))
    for request, client in enumerate((0, 1)):
        plane.dispatch(request, "shift", client, version=0)
        plane.accept(request, "shift")
    plane.aggregate("shift", (0, 1))
    # Delta: -1.5 and 1.5; their mean is 0
    assert plane.parameters("shift").item() == pytest.approx(1.0)
    for request in (2, 3):
        plane.dispatch(request, "shift", 0, version=1)
        plane.accept(request, "shift")
    plane.aggregate("shift", (2, 3))
    # Delta -1.5 each; w - eta_s eta_c tau mean = 1 + 0.4 * 0.5 * 2 * 1.5
    assert plane.parameters("shift").item() == pytest.approx(1.6)


def test_a_stale_update_is_trained_from_its_own_version() -> None:
    plane = learner(shift_task([3.0, -1.0]))
    plane.dispatch(0, "shift", 0, version=0)
    plane.dispatch(1, "shift", 0, version=0)
    plane.accept(0, "shift")
    plane.aggregate("shift", (0,))
    assert plane.parameters("shift").item() == pytest.approx(1.6)
    assert plane.versions_kept("shift") == 2, "version 0 still has a request out"
    plane.accept(1, "shift")
    plane.aggregate("shift", (1,))
    assert plane.parameters("shift").item() == pytest.approx(2.2), "Delta from w = 1, not 1.6"
    assert plane.versions_kept("shift") == 1


def test_weight_decay_is_coupled() -> None:
    """The gradient is w - y + lambda w."""
    plane = learner(shift_task([3.0], local_steps=1, weight_decay=0.2))
    plane.dispatch(0, "shift", 0, version=0)
    plane.accept(0, "shift")
    plane.aggregate("shift", (0,))
    assert plane.parameters("shift").item() == pytest.approx(1.0 - 0.4 * 0.5 * (1.0 - 3.0 + 0.2))


def test_variance_by_hand() -> None:
    """Deltas 0.75 (1 - y): for y = 3 and 2, -1.5 and -0.75; mean -1.125, spread 0.375^2."""
    plane = learner(shift_task([3.0, 2.0]))
    for request, client in enumerate((1, 1, 0, 1)):
        plane.dispatch(request, "shift", client, version=0)
        plane.accept(request, "shift")
    assert plane.variance("shift") == pytest.approx(0.375**2 / 1.125**2), "the latest two only"


def test_what_is_dropped_leaves_nothing_behind() -> None:
    plane = learner(shift_task([3.0, 2.0]))
    for request in range(3):
        plane.dispatch(request, "shift", 0, version=0)
    plane.drop(0, "shift")
    plane.accept(1, "shift")
    plane.drop(1, "shift")
    plane.accept(2, "shift")
    plane.aggregate("shift", (2,))
    assert plane.versions_kept("shift") == 1
    assert list(plane.open_updates()) == [2], "only what the variance window still needs"


def test_evaluation_and_training_loss() -> None:
    plane = learner(shift_task([3.0]))
    found = plane.evaluate("shift")
    assert found.metric == pytest.approx(np.sqrt(0.5)), "errors 0 and 1"
    assert found.loss == pytest.approx(0.25)
    plane.dispatch(0, "shift", 0, version=0)
    # losses at w = 1 and w = 2 against y = 3: 2 and 0.5
    assert plane.training_loss(0, "shift") == pytest.approx(1.25)


# --- updates that clients send --------------------------------------------------------------


def remote(task: Task) -> RemoteLearner:
    return RemoteLearner([task], {task.name: 0.4}, seed=0, device=CPU, variance_window=2)


def send(plane: Learner, task: Task, requests: range, version: int) -> None:
    for request in requests:
        plane.dispatch(request, task.name, request % 2, version)
        plane.accept(request, task.name)


def receive(plane: RemoteLearner, task: Task, requests: range) -> None:
    """Train as clients do, from the model that went out."""
    _, trainer = serial(task)
    for request in requests:
        job = Job(request, request % 2, plane.parameters(task.name))
        plane.receive(request, trainer.train(task.name, [job])[0])


def test_received_updates_make_the_same_model_as_local_ones() -> None:
    task = blobs()
    local, clients = learner(task), remote(task)
    for version, requests in enumerate((range(2), range(2, 4))):
        for plane in (local, clients):
            send(plane, task, requests, version)
        receive(clients, task, requests)
        losses = {plane.training_loss(requests[0], "blobs") for plane in (local, clients)}
        assert len(losses) == 1
        for plane in (local, clients):
            plane.aggregate("blobs", tuple(requests))
    assert torch.equal(local.parameters("blobs"), clients.parameters("blobs"))
    assert local.variance("blobs") == clients.variance("blobs")
    assert local.evaluate("blobs") == clients.evaluate("blobs")
    assert clients.version("blobs") == 2
    assert clients.buffers("blobs") == 12


def test_an_update_that_never_came_cannot_be_aggregated() -> None:
    clients = remote(blobs())
    send(clients, blobs(), range(2), 0)
    receive(clients, blobs(), range(1))
    with pytest.raises(LookupError, match="request 1: its update has not been received"):
        clients.aggregate("blobs", (0, 1))


def test_a_remote_learner_goes_on_from_its_saved_tensors() -> None:
    task = blobs()
    first, second = remote(task), remote(task)
    for plane in (first, second):
        send(plane, task, range(2), 0)
    receive(first, task, range(2))
    first.aggregate("blobs", (0, 1))
    second.skip_aggregation("blobs", (0, 1))
    for plane in (first, second):
        send(plane, task, range(2, 5), 1)
        plane.drop(4, "blobs")
    receive(first, task, range(2, 4))
    saved = first.state()
    second.restore(saved)
    for plane in (first, second):
        plane.aggregate("blobs", (2, 3))
    assert torch.equal(first.parameters("blobs"), second.parameters("blobs"))
    with pytest.raises(LookupError, match=r"no use for update\.9"):
        remote(task).restore({"0.version.0": saved["0.version.1"], "update.9": torch.zeros(1)})


class Everything(nn.Module):
    """Normalisation with running statistics, dropout, a frozen part, a buffer of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(6, 3)
        self.out.bias.requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.first(inputs))))
        scores: torch.Tensor = self.out(hidden)
        return scores


def blobs(model: type[nn.Module] = Everything, **training: object) -> Task:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    inputs = torch.randn(60, 4, generator=generator) + labels[:, None]
    how: dict[str, Any] = {"local_steps": 7, "batch_size": 5, "client_lr": 0.2} | training
    return Task(
        name="blobs",
        model=model,
        train=(inputs, labels),
        test=(inputs, labels),
        partition=[np.arange(20), np.arange(20, 60)],
        training=Training(**how),
    )


def serial(task: Task, seed: int = 0) -> tuple[DeviceTask, SerialTrainer]:
    device_task = DeviceTask.build(task, seed, CPU)
    return device_task, SerialTrainer({task.name: device_task}, seed)


def test_any_module_trains_reproducibly_and_leaves_torch_alone() -> None:
    task = blobs()
    device_task, trainer = serial(task)
    base = device_task.model.read()
    torch.manual_seed(1)
    first = trainer.train("blobs", [Job(4, 1, base)])[0]
    after = torch.rand(1)
    torch.manual_seed(2)
    trainer.train("blobs", [Job(5, 0, base)])
    second = trainer.train("blobs", [Job(4, 1, base)])[0]
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after), "the user's generator is not disturbed"
    assert torch.equal(first.delta, second.delta), "the value depends on the request alone"
    other = trainer.train("blobs", [Job(6, 1, base)])[0]
    assert not torch.equal(first.delta, other.delta)
    # 24 + 6 + 6 + 6 + 18 trained, 3 frozen, then running mean and variance
    assert device_task.model.parameter_count == 60
    assert torch.equal(first.delta[60:], torch.zeros(3))
    assert first.buffers is not None
    assert first.buffers.shape == (12,), "running statistics travel with the update"
    assert (first.buffers - base[63:]).abs().min() > 0


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(inputs)
        return scores


def test_the_serial_trainer_is_plain_sgd() -> None:
    task = blobs(Plain, weight_decay=0.01)
    device_task, trainer = serial(task)
    base = device_task.model.read()
    delta = trainer.train("blobs", [Job(9, 1, base)])[0].delta
    device_task.model.write(base)
    optimiser = torch.optim.SGD(device_task.model.module.parameters(), lr=0.2, weight_decay=0.01)
    stream = Stream.of(0, "train", "blobs").child(1, 9)
    rng = np.random.default_rng(stream.bits())
    for batch in drawn(task.partition[1], 5, 7, "epochs", rng):
        optimiser.zero_grad()
        inputs, labels = task.train.batch(torch.from_numpy(batch))
        outputs = device_task.model.module(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    expected = (base - device_task.model.read()) / (7 * 0.2)
    torch.testing.assert_close(delta, expected, rtol=1e-6, atol=1e-7)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(inputs)
        return scores


def test_a_parameter_that_is_not_used_stays() -> None:
    device_task, trainer = serial(blobs(Unused, weight_decay=0.1))
    delta = trainer.train("blobs", [Job(0, 0, device_task.model.read())])[0].delta
    names = [name for name, _ in device_task.model.module.named_parameters()]
    assert names[0] == "idle"
    assert delta[:2].tolist() == [0.0, 0.0]
    assert delta[2:].abs().min() > 0


def test_regression_outputs_take_the_labels_shape() -> None:
    x = torch.linspace(-1, 1, 40)[:, None]
    task = Task(
        name="line",
        model=lambda: nn.Linear(1, 1),
        train=(x, 3 * x[:, 0] + 1),
        test=(x, 3 * x[:, 0] + 1),
        partition=[np.arange(40)],
        metric="rmse",
        training=Training(local_steps=200, batch_size=20, client_lr=0.3),
    )
    plane = learner(task, server_lr=1.0)
    plane.dispatch(0, "line", 0, 0)
    plane.aggregate("line", (0,))
    assert plane.evaluate("line").metric < 1e-3


def test_the_initial_model_depends_on_seed_and_task_alone() -> None:
    torch.manual_seed(3)
    first = DeviceTask.build(blobs(Plain), 7, CPU).model.read()
    torch.manual_seed(4)
    assert torch.equal(DeviceTask.build(blobs(Plain), 7, CPU).model.read(), first)
    assert not torch.equal(DeviceTask.build(blobs(Plain), 8, CPU).model.read(), first)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_agrees_with_the_cpu() -> None:
    updates = []
    for device in (CPU, torch.device("cuda")):
        task = blobs(Plain)
        device_task = DeviceTask.build(task, 0, device)
        trainer = SerialTrainer({"blobs": device_task}, 0)
        updates.append(trainer.train("blobs", [Job(9, 1, device_task.model.read())])[0].delta.cpu())
    torch.testing.assert_close(updates[0], updates[1], rtol=1e-4, atol=1e-5)


# --- versions -----------------------------------------------------------------------------


def test_versions_live_as_long_as_they_are_used() -> None:
    store = VersionStore(torch.zeros(1))
    store.retain(0)
    store.retain(0)
    store.publish(torch.ones(1))
    assert len(store) == 2
    store.release(0)
    assert store[0].item() == 0
    store.release(0)
    assert len(store) == 1
    with pytest.raises(KeyError, match="no longer kept"):
        store.retain(0)
    store.retain(1)
    store.release(1)
    assert store[1].item() == 1, "the newest stays without users"


# --- batches ------------------------------------------------------------------------------


def drawn(*how: Any) -> Indices:
    return np.concatenate(list(draw_parts(*how)))


def test_epochs_are_shuffled_and_drop_the_incomplete_batch() -> None:
    """SPEC: 300 samples, batch 32: 9 batches an epoch, 27 steps are 3 epochs."""
    own = np.arange(1000, 1300)
    batches = drawn(own, 32, 27, "epochs", np.random.default_rng(0))
    assert batches.shape == (27, 32)
    epochs = batches.reshape(3, 288)
    for epoch in epochs:
        assert len(set(epoch)) == 288
        assert set(epoch) <= set(own)
    assert not np.array_equal(epochs[0], epochs[1])


def test_independent_batches_have_no_repeats_within() -> None:
    batches = drawn(np.arange(40), 32, 10, "independent", np.random.default_rng(0))
    assert batches.shape == (10, 32)
    assert all(len(set(batch)) == 32 for batch in batches)


@pytest.mark.parametrize("sampling", ["epochs", "independent"])
def test_a_client_with_less_than_a_batch_samples_with_replacement(sampling: Sampling) -> None:
    batches = drawn(
        np.array([3, 5]),
        8,
        4,
        sampling,
        np.random.default_rng(0),
    )
    assert batches.shape == (4, 8)
    assert set(batches.flat) == {3, 5}


# --- tasks that cannot be -------------------------------------------------------------------


def test_bad_tasks_are_refused_by_name() -> None:
    good = blobs(Plain)
    for change, message in (
        ({"train": (good.train.inputs[:-1], good.train.labels)}, "59 inputs but 60 labels"),
        ({"partition": [np.arange(3), np.arange(0)]}, "client 1 has no training samples"),
        ({"partition": [np.array([60])]}, "client 0 has an index outside"),
        ({"metric": "acuracy"}, "metric: unknown value 'acuracy'; did you mean 'accuracy'"),
    ):
        with pytest.raises(BadTask, match=f"task 'blobs': .*{message}"):
            Task(**{**vars(good), **change})
