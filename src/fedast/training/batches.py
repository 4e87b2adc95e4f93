"""Which of its samples a client uses in which local step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedast.tasks.task import Indices, Sampling

_FEW = 4
"""Independent mini-batches that are drawn first."""


def draw_parts(
    own: Indices, batch_size: int, steps: int, sampling: Sampling, rng: np.random.Generator
) -> Iterator[Indices]:
    """The mini-batches of one local training, as arrays of indices (step, sample) one after
    another, each drawn when it is asked for: a trainer can begin with the first.

    ``own`` are the indices of the client's samples. Every epoch has a new
    order, and its incomplete last batch is dropped. A client with fewer samples
    than one batch draws with replacement.
    """
    count = len(own)
    if count < batch_size:
        yield rng.choice(own, size=(steps, batch_size), replace=True)
    elif sampling == "independent":
        for rows in (min(_FEW, steps), steps - min(_FEW, steps)):
            if rows:
                yield own[_distinct(count, rows, batch_size, rng)]
    else:
        per_epoch = count // batch_size
        for begun in range(0, steps, per_epoch):
            epoch = rng.permutation(own)[: per_epoch * batch_size].reshape(per_epoch, batch_size)
            yield epoch[: steps - begun]


def _distinct(count: int, rows: int, size: int, rng: np.random.Generator) -> Indices:
    """Rows of ``size`` different numbers below ``count``, each row a uniform choice.

    Numbers are drawn one after another and repeats are skipped; more are drawn
    at once than are likely to be needed.
    """
    spare = 8 + 2 * size * size // count
    while count >= 4 * size:
        drawn = rng.integers(count, size=(rows, size + spare))
        places = np.arange(size + spare)
        ordered = np.sort(drawn * (size + spare) + places, axis=1)
        number, place = np.divmod(ordered, size + spare)
        row, later = np.nonzero(number[:, 1:] == number[:, :-1])
        fresh = np.ones(drawn.shape, dtype=bool)
        fresh[row, place[row, later + 1]] = False
        rank = fresh.cumsum(axis=1)
        if (rank[:, -1] >= size).all():
            return drawn[fresh & (rank <= size)].reshape(rows, size)
        spare *= 2
    return rng.permuted(np.broadcast_to(np.arange(count), (rows, count)), axis=1)[:, :size]
