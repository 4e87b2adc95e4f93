"""Tasks with 200,000 parameters or fewer and hardly any data: all but training is measured."""

from __future__ import annotations

import numpy as np
import torch

from fedast import Goal, Task, Training


def build(clients: int, seed: int, name: str = "light", hidden: int = 250) -> Task:
    rng = np.random.default_rng(seed)
    inputs = rng.random((64, 784), np.float32)
    labels = rng.integers(0, 10, 64)
    return Task(
        name=name,
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
        ),
        train=(inputs, labels),
        test=(inputs, labels),
        partition=[np.arange(2)] * clients,
        training=Training(local_steps=1, batch_size=1, client_lr=0.1),
        goal=Goal(max_rounds=10_000_000, evaluate_every=200),
    )
