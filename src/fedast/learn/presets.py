"""Tasks that come with fedast, by name. (Torch is imported when one is built.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedast.core.streams import Stream
from fedast.learn.task import Indices, Training

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a preset builds: the learning problem, without how it is trained."""

    model: Callable[[], torch.nn.Module]
    train: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    partition: Sequence[Indices]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named task: how it is built from its options, and its default settings.

    ``training`` is for asynchronous algorithms and ``sync_training`` for
    synchronous ones, which often want other rates.
    """

    name: str
    summary: str
    build: Callable[[Any, int, int, str], Problem]
    """(options, clients, seed, task name) -> problem"""
    options: type
    metric: str = "accuracy"
    target: float
    size: float
    training: Training
    sync_training: Training


@dataclass(frozen=True)
class DigitsOptions:
    alpha: float = 0.1
    """Dirichlet concentration of the labels: smaller is more heterogeneous."""
    points: int = 48
    """Training points per client."""

    def __post_init__(self) -> None:
        if self.alpha <= 0.0 or self.points < 1:
            raise ValueError("alpha must be positive and points at least 1")


@dataclass(frozen=True)
class SyntheticOptions:
    alpha: float = 0.5
    """How much the clients' labelling models differ."""
    beta: float = 0.5
    """How much the clients' inputs differ."""
    max_points: int = 200
    """The most points (training and test) that a client has."""

    def __post_init__(self) -> None:
        if self.alpha < 0.0 or self.beta < 0.0 or self.max_points < 50:
            raise ValueError("alpha and beta must not be negative, max_points at least 50")


def _digits(
    model: Callable[[], torch.nn.Module],
    options: DigitsOptions,
    clients: int,
    seed: int,
    name: str,
) -> Problem:
    import torch

    from fedast.learn.embedded import digits
    from fedast.learn.partition import dirichlet

    train, test = digits()
    rng = np.random.default_rng(Stream.of(seed, "partition", name).bits())
    return Problem(
        model=model,
        train=(torch.from_numpy(train[0]), torch.from_numpy(train[1])),
        test=(torch.from_numpy(test[0]), torch.from_numpy(test[1])),
        partition=dirichlet(train[1], clients, options.points, options.alpha, rng),
    )


def _digits_mlp(options: DigitsOptions, clients: int, seed: int, name: str) -> Problem:
    from torch import nn

    from fedast.learn.models import mlp

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), mlp(64, 64, 10))

    return _digits(model, options, clients, seed, name)


def _digits_cnn(options: DigitsOptions, clients: int, seed: int, name: str) -> Problem:
    from fedast.learn.models import small_cnn

    return _digits(partial(small_cnn, 10), options, clients, seed, name)


def _synthetic(options: SyntheticOptions, clients: int, seed: int, name: str) -> Problem:
    import torch

    from fedast.learn.embedded import synthetic
    from fedast.learn.models import logistic

    rng = np.random.default_rng(Stream.of(seed, "data", name).bits())
    train, test, partition = synthetic(
        clients, options.alpha, options.beta, options.max_points, rng
    )
    return Problem(
        model=partial(logistic, 60, 10),
        train=(torch.from_numpy(train[0]), torch.from_numpy(train[1])),
        test=(torch.from_numpy(test[0]), torch.from_numpy(test[1])),
        partition=partition,
    )


# Three epochs over a client's 48 digits. The rates are the best of {0.1, 0.2, 0.3} and
# {0.1, 0.2, 0.4}, for FedAST and for Sync-ST alike, on the clients of `fedast demo`.
_DIGITS = Training(local_steps=9, batch_size=16, client_rate=0.3)
_SYNTHETIC = Training(local_steps=9, batch_size=16, client_rate=0.2)

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="digits-mlp",
            summary="8x8 handwritten digits, multilayer perceptron 64-64-10",
            build=_digits_mlp,
            options=DigitsOptions,
            target=0.95,
            size=0.15,
            training=_DIGITS,
            sync_training=_DIGITS,
        ),
        Preset(
            name="digits-cnn",
            summary="8x8 handwritten digits, two 3x3 convolutions of 8 and 16 channels",
            build=_digits_cnn,
            options=DigitsOptions,
            target=0.93,
            size=0.45,
            training=_DIGITS,
            sync_training=_DIGITS,
        ),
        Preset(
            name="synthetic",
            summary="LEAF's synthetic(alpha, beta), logistic regression 60-10",
            build=_synthetic,
            options=SyntheticOptions,
            target=0.35,
            size=0.1,
            training=_SYNTHETIC,
            sync_training=_SYNTHETIC,
        ),
    )
}
