"""The models: the paper's five, and those of the other tasks.

All but ``WordAverage`` use PyTorch's default initialization. They keep no state
between calls, and have no parameters that depend on the batch, so that copies of
one model can run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias, final

import torch
from torch import nn


def perceptron(sizes: Sequence[int]) -> nn.Module:
    """Fully connected layers with ReLU between them; (784, 200, 200, 10) is the paper's MNIST."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet5(classes: int = 10, *, relu_on_logits: bool = False) -> nn.Module:
    """For 28x28 grey images; ReLU, max pooling. 44,426 parameters.

    ``relu_on_logits`` is for comparison with the authors' code: a class whose
    logit has become negative for all samples never recovers.
    """
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        perceptron((256, 120, 84, classes)),
    )
    return net.append(nn.ReLU()) if relu_on_logits else net


def cifar_cnn(classes: int = 10) -> nn.Module:
    """Two 5x5 convolutions of 64 channels for 32x32 colour images. 797,962 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        perceptron((1600, 384, 192, classes)),
    )


@final
class CharLSTM(nn.Module):
    """Next character from a window: embedding 8, LSTM 100, linear. 52,720 parameters.

    The state is zero at the start of every window.
    """

    def __init__(self, symbols: int = 80, embedded: int = 8, hidden: int = 100) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedded)
        self.lstm = nn.LSTM(embedded, hidden, batch_first=True)
        self.out = nn.Linear(hidden, symbols)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(self.embedding(codes))
        scores: torch.Tensor = self.out(outputs[:, -1])
        return scores


Norm: TypeAlias = Callable[[int], nn.Module]
"""A normalisation layer for a number of channels."""


def two_groups(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


@final
class WordAverage(nn.Module):
    """A text's word vectors, summed and divided by the root of their number, and a linear layer.

    0 stands for no word. Vectors begin small (deviation 0.1).
    """

    def __init__(self, words: int = 10_000, embedded: int = 32, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words + 1, embedded)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.out = nn.Linear(embedded, classes)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        known = (numbers > 0).unsqueeze(-1).to(self.embedding.weight.dtype)
        total = (self.embedding(numbers) * known).sum(1)
        scores: torch.Tensor = self.out(total / known.sum(1).clamp(min=1.0).sqrt())
        return scores


@final
class _Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18(classes: int = 100, *, norm: Norm = two_groups, width: int = 64) -> nn.Module:
    """ResNet-18 for 32x32 colour images: 3x3 stem, GroupNorm(2), global average pooling."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        norm(width),
        nn.ReLU(),
    ]
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [_Block(inputs, outputs, stride, norm), _Block(outputs, outputs, 1, norm)]
        inputs = outputs
    head = nn.Linear(inputs, classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def small_cnn(classes: int = 10) -> nn.Module:
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
