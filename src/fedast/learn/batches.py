"""Which of its points a client uses in which local step."""

from __future__ import annotations

import numpy as np

from fedast.learn.task import Indices, Sampling


def draw_batches(
    points: Indices, batch_size: int, steps: int, sampling: Sampling, rng: np.random.Generator
) -> Indices:
    """The mini-batches of one local training, as a (steps, batch_size) array of indices.

    Epochs are shuffled anew and their incomplete last batch is dropped. A
    client with fewer points than one batch samples with replacement.
    """
    count = len(points)
    if count < batch_size:
        return rng.choice(points, size=(steps, batch_size), replace=True)
    if sampling == "independent":
        return np.stack([rng.choice(points, size=batch_size, replace=False) for _ in range(steps)])
    per_epoch = count // batch_size
    epochs = -(-steps // per_epoch)
    shuffled = [rng.permutation(points)[: per_epoch * batch_size] for _ in range(epochs)]
    return np.concatenate(shuffled).reshape(-1, batch_size)[:steps]
