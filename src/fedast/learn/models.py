"""The models of the embedded tasks."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, hidden: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def small_cnn(classes: int) -> nn.Module:
    """Two 3x3 convolutions for 8x8 grey images."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def logistic(inputs: int, classes: int) -> nn.Module:
    return nn.Linear(inputs, classes)
