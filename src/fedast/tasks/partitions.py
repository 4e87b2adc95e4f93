"""How training points are dealt out to clients: index arrays into data that is stored once.

Every way is deterministic by its generator and vectorised over clients.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedast.tasks.task import Indices

Labels = npt.NDArray[np.int64]


def dirichlet(
    labels: Labels, clients: int, points: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Label skew, client by client.

    Each client draws class proportions p ~ Dirichlet(alpha), and takes
    ``points`` points in total: per class the largest-remainder rounding of
    ``points * p``. Dataset of a class are dealt without replacement from a
    shuffled deck, which is shuffled anew when it is used up.
    """
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    classes = len(np.unique(labels))
    proportions = rng.dirichlet(np.full(classes, alpha), size=clients)
    # With a tiny alpha the draw can underflow to nothing at all: one class at random then.
    empty = ~np.isfinite(proportions).all(axis=1) | (proportions.sum(axis=1) == 0)
    proportions[empty] = np.eye(classes)[rng.integers(classes, size=int(empty.sum()))]
    return _deal(labels, _round_rows(points * proportions, points), rng)


def shards(
    labels: Labels, clients: int, points: int, classes_per_client: int, rng: np.random.Generator
) -> list[Indices]:
    """Each client has ``points`` points of just ``classes_per_client`` classes, in equal parts."""
    classes = len(np.unique(labels))
    if not 1 <= classes_per_client <= classes:
        raise ValueError(f"classes_per_client is {classes_per_client}, there are {classes} classes")
    chosen = rng.random((clients, classes)).argsort(axis=1)[:, :classes_per_client]
    quotas = np.zeros((clients, classes))
    np.put_along_axis(quotas, chosen, points / classes_per_client, axis=1)
    return _deal(labels, _round_rows(quotas, points), rng)


def iid(labels: Labels, clients: int, points: int, rng: np.random.Generator) -> list[Indices]:
    """``points`` points for each client from one deck, shuffled anew when it is used up."""
    return list(_deck(np.arange(len(labels)), clients * points, rng).reshape(clients, points))


def power_law(
    labels: Labels, clients: int, points: int, exponent: float, rng: np.random.Generator
) -> list[Indices]:
    """Sizes by a power law (the k-th largest client ~ k^-exponent), ``points`` on average.

    Who is large is random; every client has at least one point, and labels are
    as in the whole.
    """
    shares = np.arange(1, clients + 1) ** -float(exponent)
    sizes = np.maximum(1, np.floor(clients * points * shares / shares.sum())).astype(np.int64)
    rng.shuffle(sizes)
    dealt = _deck(np.arange(len(labels)), int(sizes.sum()), rng)
    return np.split(dealt, np.cumsum(sizes)[:-1])


def natural(starts: Indices, owners: Indices) -> list[Indices]:
    """Dataset that belong to somebody: client i gets the block of owner ``owners[i]``.

    ``starts`` has the first point of each owner, and the end of the last.
    """
    return [np.arange(starts[owner], starts[owner + 1]) for owner in owners]


def _deal(labels: Labels, counts: npt.NDArray[np.int64], rng: np.random.Generator) -> list[Indices]:
    """Give client i ``counts[i, c]`` points of class c; rows have equal sums."""
    clients, points = len(counts), int(counts[0].sum())
    _, members = np.unique(labels, return_inverse=True)
    owners, dealt = [], []
    for number in range(counts.shape[1]):
        owners.append(np.repeat(np.arange(clients), counts[:, number]))
        deck = np.flatnonzero(members == number)
        dealt.append(_deck(deck, int(counts[:, number].sum()), rng))
    by_owner = np.argsort(np.concatenate(owners), kind="stable")
    return list(np.concatenate(dealt)[by_owner].reshape(clients, points))


def _deck(deck: Indices, wanted: int, rng: np.random.Generator) -> Indices:
    """``wanted`` cards: the deck shuffled, and shuffled again whenever it is used up."""
    rounds = -(-wanted // len(deck))
    if rounds == 0:
        return deck[:0]
    return np.concatenate([rng.permutation(deck) for _ in range(rounds)])[:wanted]


def _round_rows(quotas: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.int64]:
    """Largest remainder, row by row, to rows that sum to ``total``."""
    parts = np.floor(quotas).astype(np.int64)
    missing = total - parts.sum(axis=1)
    rank = np.argsort(np.argsort(parts - quotas, axis=1, kind="stable"), axis=1)
    parts += rank < missing[:, None]
    return parts
