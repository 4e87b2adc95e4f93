"""Nets that people train today, small: what ``fedast bench --models`` measures beside the paper's.

Torch only, so that the benchmarks beside other simulators can use them too.
"""

from __future__ import annotations

from typing import final

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention


def depthwise_net(classes: int = 100, *, width: int = 32) -> nn.Module:
    """As MobileNet: convolutions of single channels, and of single pixels, with batch
    normalisation."""

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False),
            nn.BatchNorm2d(inputs),
            nn.ReLU6(),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU6(),
        ]

    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU6(),
    ]
    sizes = [(1, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1), (8, 16, 2), (16, 16, 1)]
    for inputs, outputs, stride in sizes:
        layers += block(inputs * width, outputs * width, stride)
    head = nn.Linear(16 * width, classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


@final
class TransformerBlock(nn.Module):
    """Attention and two linear layers, each after a normalisation and around a skip connection."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self._heads, self._causal = heads, causal
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.before_layers = nn.LayerNorm(width)
        self.wider = nn.Linear(width, 4 * width)
        self.narrower = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.shape
        parts = self.attention(self.before_attention(x))
        shape = samples, length, 3, self._heads, width // self._heads
        query, key, value = parts.view(shape).permute(2, 0, 3, 1, 4).unbind()
        mixed = scaled_dot_product_attention(query, key, value, is_causal=self._causal)
        x = x + self.joined(mixed.transpose(1, 2).reshape(samples, length, width))
        moved: torch.Tensor = self.narrower(gelu(self.wider(self.before_layers(x))))
        return x + moved


@final
class VisionTransformer(nn.Module):
    """For square colour images, in patches of 4x4 pixels; their mean is classified."""

    def __init__(
        self, classes: int = 100, *, side: int = 32, width: int = 192, depth: int = 6
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // 4) ** 2, width))
        blocks = [TransformerBlock(width, 3, causal=False) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(width))
        self.out = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        scores: torch.Tensor = self.out(self.blocks(tokens).mean(dim=1))
        return scores


@final
class CharGPT(nn.Module):
    """Predicts the next symbol at every place of a text: (sample, symbol, place)."""

    def __init__(
        self, symbols: int = 80, *, length: int = 128, width: int = 192, depth: int = 4
    ) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, length, width))
        blocks = [TransformerBlock(width, 3, causal=True) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(width))
        self.out = nn.Linear(width, symbols)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.blocks(self.symbols(codes) + self.places))
        return scores.transpose(1, 2)
