"""The general batched path against the serial trainer, over modules made of common layers."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from fedast.tasks.client_optimizers import SGD
from fedast.tasks.paper import crop_and_flip
from fedast.tasks.task import Task, Training
from fedast.training.batched import BatchedTrainer
from fedast.training.kernels.agreement import randomness_of
from fedast.training.kernels.choose import say_once
from fedast.training.kernels.general import GeneralNet
from fedast.training.trainer import DeviceTask, Job, SerialTrainer

CPU = torch.device("cpu")
WIDTH = 12


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.inner(x)
        return x + 0.5 * inner


class Noise(nn.Module):
    """Draws in every way that modules do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = torch.bernoulli(torch.sigmoid(x.detach()))
        more = torch.rand(x.shape, dtype=x.dtype, device=x.device)
        x = x * kept + 0.1 * torch.randn_like(x) + 0.1 * more
        steps = torch.randint(3, x.shape, device=x.device)
        shift = torch.empty_like(x).uniform_(-0.1, 0.1) + steps / 10
        return (x + shift)[torch.randperm(len(x), device=x.device)]


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(3, 3, dropout=dropout, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.inner(x, x, x, need_weights=False)[0]
        return mixed


class Recurrent(nn.Module):
    def __init__(self, inner: nn.RNNBase) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.inner(x)[0]
        return states


class Tied(nn.Module):
    """One matrix used twice, and a buffer that moves without in-place operations."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)
        self.other.weight = self.one.weight
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        out: torch.Tensor = self.other(torch.tanh(self.one(x))) - 0.1 * self.mean
        return out


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def image(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (3, 2, 2)), *layers, nn.Flatten())


def tokens(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (4, 3)), *layers, nn.Flatten())


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "frozen": lambda: frozen(nn.Linear(WIDTH, WIDTH)),
    "frozen norm": lambda: frozen(nn.BatchNorm1d(WIDTH)),
    "tied": Tied,
    "residual": lambda: Residual(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())),
    "prelu": nn.PReLU,
    "relu": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "mean norm": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(3, WIDTH),
    "dropout": lambda: nn.Dropout(0.3),
    "alpha dropout": lambda: nn.AlphaDropout(0.2),
    "noise": Noise,
    "convolution": lambda: image(nn.Conv2d(3, 3, 3, padding=1), nn.SiLU(), nn.BatchNorm2d(3)),
    "depthwise": lambda: image(nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False), nn.Hardswish()),
    "channel dropout": lambda: image(nn.Dropout2d(0.4), nn.InstanceNorm2d(3, affine=True)),
    "pooling": lambda: image(nn.MaxPool2d(2, 1), nn.AvgPool2d(1), nn.Upsample(scale_factor=2)),
    "attention": lambda: tokens(Attention(0.0), nn.LayerNorm(3)),
    "attention with dropout": lambda: tokens(Attention(0.2)),
    "transformer": lambda: tokens(nn.TransformerEncoderLayer(3, 1, 6, 0.1, batch_first=True)),
    "gru": lambda: tokens(Recurrent(nn.GRU(3, 3, batch_first=True))),
    "lstm": lambda: tokens(Recurrent(nn.LSTM(3, 3, batch_first=True))),
}  # fmt: skip


def jitter(x: torch.Tensor) -> torch.Tensor:
    return x + 0.1 * torch.randn(len(x), 1, dtype=x.dtype, device=x.device)


def now_and_then(x: torch.Tensor) -> torch.Tensor:
    """The host decides, so it cannot be mapped over clients."""
    return -x if torch.rand(()) < 0.5 else x + 0.1 * torch.randn_like(x)


def make_task(model: Callable[[], nn.Module], **fields: Any) -> Task:
    draws = torch.Generator().manual_seed(1)
    how: dict[str, Any]
    inputs = torch.randn(30, WIDTH, generator=draws, dtype=torch.float64)
    how = {"local_steps": 3, "batch_size": 4, "client_lr": 0.1, "weight_decay": 1e-3}
    how["client_optimizer"] = fields.pop("optimizer", SGD())
    data = fields.pop("inputs", inputs), torch.randint(4, (30,), generator=draws)
    return Task(
        name="t",
        model=lambda: model().double(),
        train=data,
        test=data,
        partition=[np.arange(0, 3), np.arange(3, 14), np.arange(14, 30)],
        training=Training(**how),
        **fields,
    )


def check(
    task: Task, requests: int = 5, device: torch.device = CPU, allowed: float = 1e-10
) -> None:
    """Several batches of clients and models, in several orders, give the serial updates."""
    device_task = DeviceTask.build(task, 3, device)
    base, model = device_task.model.read(), device_task.model
    versions = [base.clone() for _ in range(2)]
    noise = torch.randn(len(base), generator=torch.Generator().manual_seed(2)).abs()
    noise[model.parameter_count : model.buffers_from] = 0
    versions[1] += 0.01 * noise.to(base)
    jobs = [Job(40 + n, n % 3, versions[n % 2], n) for n in range(requests)]
    wanted = SerialTrainer({"t": device_task}, 3).train("t", jobs)
    trainer = BatchedTrainer({"t": device_task}, 3)
    assert not trainer.alone
    before = torch.get_rng_state()
    found = trainer.train("t", jobs)
    last, first = trainer.train("t", jobs[3:]), trainer.train("t", jobs[:3])
    assert torch.equal(torch.get_rng_state(), before)
    for one, *others in zip(wanted, found, [*first, *last], strict=True):
        for other in others:
            torch.testing.assert_close(other.loss, one.loss, rtol=allowed, atol=allowed / 100)
            assert (other.buffers is None) is (one.buffers is None)
            for mine, theirs in ((other.delta, one.delta), (other.buffers, one.buffers)):
                if mine is not None and theirs is not None:
                    assert float((mine - theirs).norm()) <= allowed * float(1 + theirs.norm())


@given(
    blocks=st.lists(st.sampled_from(list(BLOCKS)), min_size=1, max_size=4),
    augment=st.sampled_from([None, None, jitter, now_and_then]),
    optimizer=st.sampled_from([SGD(), SGD(momentum=0.9, clip=1.0, proximal=0.1)]),
)
@settings(max_examples=25, deadline=None)
def test_modules_of_common_layers(blocks: list[str], augment: Any, optimizer: SGD) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(BLOCKS[name]() for name in blocks), nn.Linear(WIDTH, 4))
    # Several normalisations of four samples in a row amplify rounding.
    check(make_task(partial(deepcopy, net), augment=augment, optimizer=optimizer), allowed=1e-8)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_common_layer(block: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(BLOCKS[block](), nn.Linear(WIDTH, 4))
    check(make_task(partial(deepcopy, net)))


@pytest.mark.cuda
@pytest.mark.parametrize("block", BLOCKS)
def test_every_common_layer_on_a_gpu(block: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(BLOCKS[block](), nn.Linear(WIDTH, 4))
    check(make_task(partial(deepcopy, net)), device=torch.device("cuda"))


@pytest.mark.cuda
def test_augmentation_on_a_gpu() -> None:
    net = partial(nn.Linear, WIDTH, 4)
    check(make_task(net, augment=jitter), device=torch.device("cuda"))
    images = torch.randn(30, 3, 8, 8, generator=torch.Generator().manual_seed(5)).double()

    def conv() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 2, 3, stride=4), nn.Flatten(), nn.Linear(8, 4))

    check(make_task(conv, inputs=images, augment=crop_and_flip), device=torch.device("cuda"))


@pytest.mark.cuda
@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        np.random.random,
        lambda: float(torch.rand(())),
        np.random.default_rng(0).random,
    ],
)
def test_what_the_host_draws_is_drawn_in_every_step(draw: Callable[[], float]) -> None:
    """A captured graph would repeat the first number for ever."""
    drawn: list[float] = []

    def scaled(inputs: torch.Tensor) -> torch.Tensor:
        drawn.append(draw())
        return inputs * (1.0 + 1e-5 * drawn[-1])  # so little that copies still agree

    task = make_task(partial(nn.Linear, WIDTH, 4), augment=scaled)
    device_task = DeviceTask.build(task, 3, torch.device("cuda"))
    trainer = BatchedTrainer({"t": device_task}, 3)
    base = device_task.model.read()
    trainer.train("t", [Job(n, n, base) for n in range(2)])
    before = len(drawn)
    trainer.train("t", [Job(2 + n, n, base) for n in range(2)])
    assert len(drawn) - before >= task.training.local_steps
    assert len(set(drawn[before:])) == len(drawn) - before


class Peeking(nn.Module):
    """Asks the host in between, and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        return nn.functional.dropout(self.linear(x), 0.2, self.training)


@pytest.mark.cuda
def test_a_step_that_cannot_be_captured_draws_all_the_same() -> None:
    check(make_task(Peeking), device=torch.device("cuda"))


def test_augmentation_that_cannot_be_repeated_is_told(caplog: pytest.LogCaptureFixture) -> None:
    own = np.random.default_rng(0)

    def scaled(inputs: torch.Tensor) -> torch.Tensor:
        return inputs * float(own.uniform(0.999, 1.001))

    def scaled_in_place(inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mul_(float(own.uniform(0.999, 1.001)))

    def noisy_in_place(inputs: torch.Tensor) -> torch.Tensor:
        return inputs.add_(torch.randn_like(inputs)).clone()

    for augment, name in (
        (scaled, "own"),
        (scaled_in_place, "own, in place"),
        (crop_and_flip, "torch's"),
        (noisy_in_place, "torch's, in place"),
    ):
        inputs = torch.randn(30, 3, 8, 8, dtype=torch.float64)
        model = partial(nn.Sequential, nn.Flatten(), nn.Linear(192, 4))
        task = make_task(model, inputs=inputs, augment=augment).copy(name=name)
        BatchedTrainer({name: DeviceTask.build(task, 3, torch.device("cpu"))}, 3)
    said = [record.getMessage() for record in caplog.records if "repeated" in record.getMessage()]
    assert [text.split(":")[0] for text in said] == ["task 'own'", "task 'own, in place'"]


class Masked(nn.Module):
    """A bag of words, with a mask: inputs are a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        mask = inputs["mask"][..., None].to(self.out.weight)
        vectors = (self.words(inputs["words"]) * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1)
        scores: torch.Tensor = self.out(vectors)
        return scores


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, 4)
        self.other = nn.Linear(3, 4)

    def forward(self, inputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        scores: torch.Tensor = self.one(inputs[0]) + self.other(inputs[1])
        return scores


def test_inputs_may_be_dicts_and_tuples() -> None:
    draws = np.random.default_rng(1)
    words, mask = draws.integers(9, size=(30, 5)), draws.random((30, 5)) < 0.6
    check(make_task(Masked, inputs={"words": words, "mask": mask}))
    pair = torch.randn(30, WIDTH).double(), torch.randn(30, 3).double()
    check(make_task(Sum, inputs=pair))


def test_the_papers_augmentation_is_done_for_all_clients_at_once() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 2, 3, stride=4), nn.Flatten(), nn.LazyLinear(4))

    built = model()
    built(torch.zeros(1, 3, 8, 8))
    task = make_task(
        partial(deepcopy, built), inputs=torch.randn(30, 3, 8, 8).double(), augment=crop_and_flip
    )
    assert randomness_of(DeviceTask.build(task, 3, CPU)).maps
    check(task)
    net = partial(nn.Linear, WIDTH, 4)
    host = randomness_of(DeviceTask.build(make_task(net, augment=now_and_then), 3, CPU))
    assert (host.draws, host.maps) == (True, False)


def test_frozen_parameters_are_kept_once() -> None:
    task = make_task(lambda: nn.Sequential(frozen(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, 4)))
    device_task = DeviceTask.build(task, 3, CPU)
    module = device_task.model.module
    net = GeneralNet(module, device_task.loss, 7, task.training, (True, True))
    shapes = {tuple(value.shape) for value in net._frozen.values()}
    assert shapes == {(WIDTH, WIDTH), (WIDTH,)}
    trainer, base = BatchedTrainer({"t": device_task}, 3), device_task.model.read()
    jobs = [Job(1, 1, base), Job(2, 2, base + 0.1)]  # (no run would change what is frozen)
    serial = SerialTrainer({"t": device_task}, 3).train("t", jobs)
    for one, other in zip(serial, trainer.train("t", jobs), strict=True):
        torch.testing.assert_close(other.delta, one.delta, rtol=1e-9, atol=1e-12)


class Choosy(nn.Linear):
    """What it computes depends on the data, so it cannot be mapped over clients."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.mean() > 0 else -x)


def test_what_cannot_be_stacked_says_once_which_layer_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    say_once.cache_clear()
    task = make_task(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Choosy(WIDTH, 4)))
    device_task = DeviceTask.build(task, 3, CPU)
    base = device_task.model.read()
    serial = SerialTrainer({"t": device_task}, 3).train("t", [Job(1, 2, base)])
    for _ in range(2):
        trainer = BatchedTrainer({"t": device_task}, 3)
        assert trainer.limit("t") == 1
        (update,) = trainer.train("t", [Job(1, 2, base)])
        assert torch.equal(update.delta, serial[0].delta)
    assert "its layer '1' (Choosy)" in trainer.alone["t"]
    assert "data-dependent" in trainer.alone["t"]
    assert caplog.text.count("trained client by client") == 1


def in_single_precision(model: Callable[[], nn.Module], **fields: Any) -> DeviceTask:
    """Built by ``make_task`` in double precision, made single."""
    task = make_task(model, inputs=torch.randn(30, WIDTH), **fields)
    return DeviceTask.build(replace(task, model=model), 3, CPU)


@given(blocks=st.lists(st.sampled_from(list(BLOCKS)), min_size=1, max_size=3))
@example(blocks=["lstm"])
@example(blocks=["gru"])
@settings(max_examples=8, deadline=None)
def test_modules_of_common_layers_in_single_precision(blocks: list[str]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(BLOCKS[name]() for name in blocks), nn.Linear(WIDTH, 4))
    device_task = in_single_precision(partial(deepcopy, net))
    base = device_task.model.read()
    jobs = [Job(n, n % 3, base) for n in range(4)]
    trainer = BatchedTrainer({"t": device_task}, 3)
    assert not trainer.alone
    serial = SerialTrainer({"t": device_task}, 3).train("t", jobs)
    for one, other in zip(serial, trainer.train("t", jobs), strict=True):
        # An instance normalised over four pixels, or a ReLU at zero, may amplify rounding.
        assert float((other.delta - one.delta).norm()) <= 1e-2 * float(one.delta.norm())
