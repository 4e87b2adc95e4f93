"""One local step of stacked copies: augmentation and randomness, whatever the net."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch.func import vmap

from fedast.tasks.dataset import leaves, mapped
from fedast.training.kernels.net import Net
from fedast.training.randomness import Draws, PlainDropout


@dataclass(frozen=True, slots=True)
class Randomness:
    """What a training pass of a task draws, and how that is done for many copies."""

    draws: bool
    """Whether it draws random numbers at all."""
    augment: Callable[[Any], Any] | None = None
    maps: bool = True
    """Whether ``augment`` can be mapped over copies; if not, it is called for one after another."""
    repeatable: bool = True
    """Whether ``augment`` gives the same for the same random numbers; if not, it has others of its
    own, which a captured graph would repeat."""

    def generators(self, copies: int, device: torch.device) -> Draws | None:
        return Draws(copies, device) if self.draws else None


def step(
    net: Net, inputs: Any, labels: Any, randomness: Randomness, draws: Draws | None
) -> torch.Tensor:
    """One local step of every copy; the loss of each before it."""
    with PlainDropout() if draws else nullcontext():
        if randomness.augment is not None:
            inputs = augmented(randomness.augment, inputs, draws, maps=randomness.maps)
        with draws or nullcontext():
            return net.step(inputs, labels)


def augmented(
    augment: Callable[[Any], Any], inputs: Any, draws: Draws | None, *, maps: bool
) -> Any:
    """Every copy's inputs as its own client would augment them."""
    if maps:
        with draws or nullcontext():
            return vmap(augment, randomness="different" if draws else "error")(inputs)
    found = []
    for copy in range(len(leaves(inputs)[0])):
        mine = mapped(itemgetter(copy), inputs)
        with draws.as_copy(copy) if draws else nullcontext():
            found.append(augment(mine))
    stacked = [torch.stack(parts) for parts in zip(*map(leaves, found), strict=True)]
    return mapped(lambda _: stacked.pop(0), found[0])
