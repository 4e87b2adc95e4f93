"""Two tasks of your own, named in examples/own-tasks.toml: a regression and a text classifier.

A function gets the number of clients and the run's seed (and options, by name)
and returns a Task. Everything else can be changed from the configuration.

    fedast run examples/own-tasks.toml
"""

from __future__ import annotations

import re
import zlib
from pydoc_data.topics import topics

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

from fedast import Goal, Task, Training, dirichlet, iid


def diabetes(clients: int, seed: int, *, samples: int = 40) -> Task:
    """Disease progression of 442 real patients from ten measurements; lower RMSE is better."""
    inputs, progress = load_diabetes(return_X_y=True)
    inputs = (inputs / inputs.std(axis=0)).astype(np.float32)
    labels = ((progress - progress.mean()) / progress.std()).astype(np.float32)[:, None]
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:342], order[342:]
    return Task(
        name="diabetes",
        model=lambda: nn.Linear(10, 1),
        train=(inputs[train], labels[train]),
        test=(inputs[test], labels[test]),
        partition=iid(train, clients, samples, np.random.default_rng(seed)),
        metric="rmse",
        step_cost=0.05,
        training=Training(local_steps=8, batch_size=10, client_lr=0.05),
        goal=Goal(target=0.75),
    )


class Sentences:
    """A map-style dataset: lines of Python's own manual as hashed bags of words."""

    names = ("formatstrings", "specialnames", "class", "compound", "typesseq")

    def __init__(self, part: int, width: int) -> None:
        self.width = width
        self.lines = [
            (words, label)
            for label, name in enumerate(self.names)
            for number, line in enumerate(topics[name].splitlines())
            if len(words := re.findall(r"[a-z]+", line.lower())) >= 4 and (number % 4 == 0) == part
        ]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        words, label = self.lines[index]
        bag = torch.zeros(self.width)
        for word in words:
            bag[zlib.crc32(word.encode()) % self.width] += 1.0
        return bag, label


def manual(clients: int, seed: int, *, width: int = 256, alpha: float = 0.5) -> Task:
    """Which chapter of Python's manual is this line from?"""
    train, test = Sentences(False, width), Sentences(True, width)
    labels = np.array([label for _, label in train.lines])
    return Task(
        name="manual",
        model=lambda: nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 5)),
        train=train,
        test=test,
        partition=dirichlet(labels, clients, 40, alpha, np.random.default_rng(seed)),
        step_cost=0.1,
        training=Training(local_steps=8, batch_size=10, client_lr=0.3),
        goal=Goal(target=0.6),
    )
