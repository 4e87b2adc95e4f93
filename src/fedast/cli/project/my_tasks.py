"""The task of this project: which of three growers a wine is from, by thirteen measurements.

A function gets the number of clients and the run's seed, and options by name, and returns a Task.
Put your own data and module here.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_wine
from torch import nn

from fedast import Goal, Task, Training, dirichlet


def wine(clients: int, seed: int, *, width: int = 16, alpha: float = 1.0) -> Task:
    """178 real wines (bundled with scikit-learn), unevenly spread over the clients."""
    inputs, labels = load_wine(return_X_y=True)
    inputs = ((inputs - inputs.mean(axis=0)) / inputs.std(axis=0)).astype(np.float32)
    labels = labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:128], order[128:]
    return Task(
        name="wine",
        model=lambda: nn.Sequential(nn.Linear(13, width), nn.ReLU(), nn.Linear(width, 3)),
        train=(inputs[train], labels[train]),
        test=(inputs[test], labels[test]),
        partition=dirichlet(labels[train], clients, 20, alpha, np.random.default_rng(seed)),
        step_cost=0.1,  # of one local step, beside the other tasks'
        training=Training(local_steps=8, batch_size=10, client_lr=0.1),
        goal=Goal(target=0.9),
    )
