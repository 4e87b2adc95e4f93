"""Tasks whose data needs no download. (Torch is imported when one is built.)"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from fedast.core.streams import Stream
from fedast.tasks.options import TaskOptions
from fedast.tasks.task import Goal, Task, Training

if TYPE_CHECKING:
    import torch

# Three epochs over a client's 48 digits. Rates on the clients of `fedast demo`: digits 0.3 of
# {0.1, 0.2, 0.3, 0.5}, synthetic 0.2 of {0.1, 0.2, 0.4, 0.8 (Sync-ST only)}; the same for FedAST
# and Sync-ST. On seeds 1 to 3 Sync-ST finishes at 102.1 with synthetic at 0.2, 102.8 at 0.4.
_DIGITS = Training(local_steps=9, batch_size=16, client_lr=0.3)
_SYNTHETIC = Training(local_steps=9, batch_size=16, client_lr=0.2)


class Digits(TaskOptions, ABC):
    """8x8 handwritten digits."""

    alpha: float = Field(0.1, gt=0)
    """Dirichlet concentration of the labels: smaller is more heterogeneous."""
    samples: int = Field(48, ge=1)
    """Training samples per client."""


class DigitsMLP(Digits):
    """8x8 handwritten digits, multilayer perceptron 64-64-10."""

    name: ClassVar[str] = "digits-mlp"
    defaults: ClassVar[Task] = Task(
        name=name, goal=Goal(target=0.95), step_cost=0.15, training=_DIGITS
    )

    def build(self, clients: int, seed: int, name: str) -> Task:
        from fedast.tasks.models import perceptron

        return _digits(self, self.defaults, partial(perceptron, (64, 64, 10)), clients, seed, name)


class DigitsCNN(Digits):
    """8x8 handwritten digits, two 3x3 convolutions of 8 and 16 channels."""

    name: ClassVar[str] = "digits-cnn"
    defaults: ClassVar[Task] = Task(
        name=name, goal=Goal(target=0.93), step_cost=0.45, training=_DIGITS
    )

    def build(self, clients: int, seed: int, name: str) -> Task:
        from fedast.tasks.models import small_cnn

        return _digits(self, self.defaults, partial(small_cnn, 10), clients, seed, name)


class Synthetic(TaskOptions):
    """LEAF's synthetic(alpha, beta), logistic regression 60-10."""

    name: ClassVar[str] = "synthetic"
    defaults: ClassVar[Task] = Task(
        name=name, goal=Goal(target=0.35), step_cost=0.1, training=_SYNTHETIC
    )
    alpha: float = Field(0.5, ge=0)
    """LEAF's alpha. It shifts a client's scores of all classes alike, so it changes no label."""
    beta: float = Field(0.5, ge=0)
    """How much the clients' inputs differ."""
    max_samples: int = Field(200, ge=50)
    """The most samples (training and test) that a client has."""

    def build(self, clients: int, seed: int, name: str) -> Task:
        import torch

        from fedast.tasks.data.embedded import synthetic
        from fedast.tasks.models import logistic

        rng = np.random.default_rng(Stream.of(seed, "data", name).bits())
        train, test, partition = synthetic(clients, self.alpha, self.beta, self.max_samples, rng)
        return replace(
            self.defaults,
            name=name,
            model=partial(logistic, 60, 10),
            train=(torch.from_numpy(train[0]), torch.from_numpy(train[1])),
            test=(torch.from_numpy(test[0]), torch.from_numpy(test[1])),
            partition=partition,
        )


def _digits(
    options: Digits,
    defaults: Task,
    model: Callable[[], torch.nn.Module],
    clients: int,
    seed: int,
    name: str,
) -> Task:
    import torch

    from fedast.tasks.data.embedded import digits
    from fedast.tasks.partitions import dirichlet

    train, test = digits()
    rng = np.random.default_rng(Stream.of(seed, "partition", name).bits())
    return replace(
        defaults,
        name=name,
        model=model,
        train=(torch.from_numpy(train[0]), torch.from_numpy(train[1])),
        test=(torch.from_numpy(test[0]), torch.from_numpy(test[1])),
        partition=dirichlet(train[1], clients, options.samples, options.alpha, rng),
    )
