"""Tasks whose data needs no download. (Torch is imported when one is built.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedast.core.streams import Stream
from fedast.tasks.preset import DOCUMENTED, Preset
from fedast.tasks.task import Task, Training

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DigitsOptions:
    __pydantic_config__ = DOCUMENTED

    alpha: float = 0.1
    """Dirichlet concentration of the labels: smaller is more heterogeneous."""
    samples: int = 48
    """Training samples per client."""

    def __post_init__(self) -> None:
        if self.alpha <= 0.0 or self.samples < 1:
            raise ValueError("alpha must be positive and samples at least 1")


@dataclass(frozen=True)
class SyntheticOptions:
    __pydantic_config__ = DOCUMENTED

    alpha: float = 0.5
    """LEAF's alpha. It shifts a client's scores of all classes alike, so it changes no label."""
    beta: float = 0.5
    """How much the clients' inputs differ."""
    max_samples: int = 200
    """The most samples (training and test) that a client has."""

    def __post_init__(self) -> None:
        if self.alpha < 0.0 or self.beta < 0.0 or self.max_samples < 50:
            raise ValueError("alpha and beta must not be negative, max_samples at least 50")


def _digits(
    model: Callable[[], torch.nn.Module],
    options: DigitsOptions,
    clients: int,
    seed: int,
    name: str,
) -> Task:
    import torch

    from fedast.tasks.data.embedded import digits
    from fedast.tasks.partitions import dirichlet

    train, test = digits()
    rng = np.random.default_rng(Stream.of(seed, "partition", name).bits())
    return Task(
        name=name,
        model=model,
        train=(torch.from_numpy(train[0]), torch.from_numpy(train[1])),
        test=(torch.from_numpy(test[0]), torch.from_numpy(test[1])),
        partition=dirichlet(train[1], clients, options.samples, options.alpha, rng),
    )


def _digits_mlp(options: DigitsOptions, clients: int, seed: int, name: str) -> Task:
    from fedast.tasks.models import perceptron

    return _digits(partial(perceptron, (64, 64, 10)), options, clients, seed, name)


def _digits_cnn(options: DigitsOptions, clients: int, seed: int, name: str) -> Task:
    from fedast.tasks.models import small_cnn

    return _digits(partial(small_cnn, 10), options, clients, seed, name)


def _synthetic(options: SyntheticOptions, clients: int, seed: int, name: str) -> Task:
    import torch

    from fedast.tasks.data.embedded import synthetic
    from fedast.tasks.models import logistic

    rng = np.random.default_rng(Stream.of(seed, "data", name).bits())
    train, test, partition = synthetic(
        clients, options.alpha, options.beta, options.max_samples, rng
    )
    return Task(
        name=name,
        model=partial(logistic, 60, 10),
        train=(torch.from_numpy(train[0]), torch.from_numpy(train[1])),
        test=(torch.from_numpy(test[0]), torch.from_numpy(test[1])),
        partition=partition,
    )


# Three epochs over a client's 48 digits. Rates on the clients of `fedast demo`: digits 0.3 of
# {0.1, 0.2, 0.3, 0.5}, synthetic 0.2 of {0.1, 0.2, 0.4, 0.8 (Sync-ST only)}; the same for FedAST
# and Sync-ST. On seeds 1 to 3 Sync-ST finishes at 102.1 with synthetic at 0.2, 102.8 at 0.4.
_DIGITS = Training(local_steps=9, batch_size=16, client_lr=0.3)
_SYNTHETIC = Training(local_steps=9, batch_size=16, client_lr=0.2)

EMBEDDED = (
    Preset(
        name="digits-mlp",
        summary="8x8 handwritten digits, multilayer perceptron 64-64-10",
        build=_digits_mlp,
        options=DigitsOptions,
        targets={"main": 0.95},
        step_cost=0.15,
        training=_DIGITS,
        sync_training=_DIGITS,
    ),
    Preset(
        name="digits-cnn",
        summary="8x8 handwritten digits, two 3x3 convolutions of 8 and 16 channels",
        build=_digits_cnn,
        options=DigitsOptions,
        targets={"main": 0.93},
        step_cost=0.45,
        training=_DIGITS,
        sync_training=_DIGITS,
    ),
    Preset(
        name="synthetic",
        summary="LEAF's synthetic(alpha, beta), logistic regression 60-10",
        build=_synthetic,
        options=SyntheticOptions,
        targets={"main": 0.35},
        step_cost=0.1,
        training=_SYNTHETIC,
        sync_training=_SYNTHETIC,
    ),
)
