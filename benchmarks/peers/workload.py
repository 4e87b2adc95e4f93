"""The local training that all simulators are measured on, without fedast: torch and numpy only.

MNIST's perceptron or Fashion-MNIST's LeNet-5 on random images of that shape, 100
clients with 288 samples each, batches of 32, three epochs, which is 27 steps of
SGD at rate 0.05 without momentum. (fedast itself drops the rest of an epoch, so
288 samples give the paper's 27 steps in every framework.)
"""

from __future__ import annotations

import torch
from torch import nn

CLIENTS, POINTS, BATCH, EPOCHS, RATE = 100, 288, 32, 3, 0.05


def model(name: str) -> nn.Module:
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 200),
            nn.ReLU(),
            nn.Linear(200, 200),
            nn.ReLU(),
            nn.Linear(200, 10),
        )
    if name == "lenet5":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, 10),
        )
    raise ValueError(f"unknown model {name!r}")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of all clients, client by client."""
    generator = torch.Generator().manual_seed(0)
    total = CLIENTS * POINTS
    return (
        torch.randn(total, 1, 28, 28, generator=generator),
        torch.randint(10, (total,), generator=generator),
    )
