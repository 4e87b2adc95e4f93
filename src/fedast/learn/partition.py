"""How training points are dealt out to clients: index arrays into data that is stored once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedast.learn.task import Indices


def dirichlet(
    labels: npt.NDArray[np.int64],
    clients: int,
    points: int,
    alpha: float,
    rng: np.random.Generator,
) -> list[Indices]:
    """Label skew, client by client.

    Each client draws class proportions p ~ Dirichlet(alpha), and takes
    ``points`` points in total: per class the largest-remainder rounding of
    ``points * p``. Points of a class are dealt without replacement from a
    shuffled deck, which is shuffled anew when it is used up.
    """
    classes, members = np.unique(labels, return_inverse=True)
    proportions = rng.dirichlet(np.full(len(classes), alpha), size=clients)
    counts = _round_rows(points * proportions, points)
    owners, dealt = [], []
    for number in range(len(classes)):
        deck = np.flatnonzero(members == number)
        wanted = int(counts[:, number].sum())
        decks = [rng.permutation(deck) for _ in range(-(-wanted // len(deck)))]
        owners.append(np.repeat(np.arange(clients), counts[:, number]))
        dealt.append(np.concatenate(decks)[:wanted] if decks else deck[:0])
    by_owner = np.argsort(np.concatenate(owners), kind="stable")
    return list(np.concatenate(dealt)[by_owner].reshape(clients, points))


def _round_rows(quotas: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.int64]:
    """Largest remainder, row by row, to rows that sum to ``total``."""
    parts = np.floor(quotas).astype(np.int64)
    missing = total - parts.sum(axis=1)
    rank = np.argsort(np.argsort(parts - quotas, axis=1, kind="stable"), axis=1)
    parts += rank < missing[:, None]
    return parts
