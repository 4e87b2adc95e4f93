"""How training samples are split over clients: index arrays into data that is stored once.

Every partition is a function of its random generator, and vectorised over clients. A task
that takes its partition as a part takes the options below, or a function
``(labels, clients, samples, rng)`` of your own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedast.deprecated import renamed_keywords
from fedast.parts.options import Options
from fedast.parts.registry import Registry
from fedast.tasks.task import Indices

Labels: TypeAlias = npt.NDArray[np.int64]
Partition: TypeAlias = Callable[[Labels, int, int, np.random.Generator], list[Indices]]
"""(labels, clients, samples per client, rng) -> the indices of each client's samples"""


class PartitionOptions(Options, ABC):
    """How labelled samples are split over clients."""

    @abstractmethod
    def build(self) -> Partition: ...


class Dirichlet(PartitionOptions):
    """Label skew: every client draws its class proportions from Dirichlet(alpha)."""

    name: ClassVar[str] = "dirichlet"
    alpha: float = Field(0.1, gt=0)
    """Concentration: smaller is more heterogeneous."""

    def build(self) -> Partition:
        return lambda labels, clients, samples, rng: dirichlet(
            labels, clients, samples, self.alpha, rng
        )


class IID(PartitionOptions):
    """Samples at random, as many for each client."""

    name: ClassVar[str] = "iid"

    def build(self) -> Partition:
        return iid


class Shards(PartitionOptions):
    """A fixed number of classes for each client, in equal parts."""

    name: ClassVar[str] = "shards"
    classes_per_client: int = Field(2, ge=1)
    """Classes per client."""

    def build(self) -> Partition:
        return lambda labels, clients, samples, rng: shards(
            labels, clients, samples, self.classes_per_client, rng
        )


class PowerLaw(PartitionOptions):
    """Unequal sizes: the k-th largest client has k^-exponent of the largest's samples."""

    name: ClassVar[str] = "power-law"
    exponent: float = Field(0.5, ge=0)
    """How unequal the clients' sizes are; 0 is equal."""

    def build(self) -> Partition:
        return lambda labels, clients, samples, rng: power_law(
            labels, clients, samples, self.exponent, rng
        )


def _from_function(name: str, function: Callable[..., Any]) -> type[PartitionOptions]:
    class FromFunction(PartitionOptions):
        def build(self) -> Partition:
            return function

    FromFunction.name = name
    return FromFunction


PARTITIONS: Registry[PartitionOptions] = Registry(
    "partitions",
    PartitionOptions,  # type: ignore[type-abstract]
    [__name__],
    adapt=_from_function,
)


@renamed_keywords(points="samples")
def dirichlet(
    labels: Labels, clients: int, samples: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Label skew, client by client.

    Each client draws class proportions p ~ Dirichlet(alpha) and gets
    ``samples`` samples: per class the largest-remainder rounding of
    ``samples * p``. A class's samples are handed out without replacement in a
    random order; when all are used, they are used again in a new order.
    """
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    classes = len(np.unique(labels))
    proportions = rng.dirichlet(np.full(classes, alpha), size=clients)
    # With a tiny alpha all proportions can underflow to zero: then one class at random.
    empty = ~np.isfinite(proportions).all(axis=1) | (proportions.sum(axis=1) == 0)
    proportions[empty] = np.eye(classes)[rng.integers(classes, size=int(empty.sum()))]
    return _by_class(labels, _round_rows(samples * proportions, samples), rng)


@renamed_keywords(points="samples")
def shards(
    labels: Labels, clients: int, samples: int, classes_per_client: int, rng: np.random.Generator
) -> list[Indices]:
    """``samples`` samples for each client, in equal parts from ``classes_per_client`` classes."""
    classes = len(np.unique(labels))
    if not 1 <= classes_per_client <= classes:
        raise ValueError(f"classes_per_client is {classes_per_client}, there are {classes} classes")
    chosen = rng.random((clients, classes)).argsort(axis=1)[:, :classes_per_client]
    quotas = np.zeros((clients, classes))
    np.put_along_axis(quotas, chosen, samples / classes_per_client, axis=1)
    return _by_class(labels, _round_rows(quotas, samples), rng)


@renamed_keywords(points="samples")
def iid(labels: Labels, clients: int, samples: int, rng: np.random.Generator) -> list[Indices]:
    """``samples`` samples for each client, at random; none is used twice before all are used."""
    return list(_cycle(np.arange(len(labels)), clients * samples, rng).reshape(clients, samples))


@renamed_keywords(points="samples")
def power_law(
    labels: Labels, clients: int, samples: int, exponent: float, rng: np.random.Generator
) -> list[Indices]:
    """Sizes by a power law (the k-th largest client ~ k^-exponent), ``samples`` on average.

    Which clients are large is random. Every client has at least one sample, and
    labels are distributed as in the whole dataset.
    """
    shares = np.arange(1, clients + 1) ** -float(exponent)
    sizes = np.maximum(1, np.floor(clients * samples * shares / shares.sum())).astype(np.int64)
    rng.shuffle(sizes)
    drawn = _cycle(np.arange(len(labels)), int(sizes.sum()), rng)
    return np.split(drawn, np.cumsum(sizes)[:-1])


def natural(starts: Indices, owners: Indices) -> list[Indices]:
    """Data that comes with owners: client i gets the block of owner ``owners[i]``.

    ``starts`` has the first sample of each owner, and the end of the last.
    """
    return [np.arange(starts[owner], starts[owner + 1]) for owner in owners]


def one_each(people: int, clients: int, rng: np.random.Generator) -> Indices:
    """Whose data each client has: everybody's once in a random order, then again in a new one."""
    return _cycle(np.arange(people), clients, rng)


def _by_class(
    labels: Labels, counts: npt.NDArray[np.int64], rng: np.random.Generator
) -> list[Indices]:
    """Give client i ``counts[i, c]`` samples of class c; all rows have the same sum."""
    clients, samples = len(counts), int(counts[0].sum())
    _, members = np.unique(labels, return_inverse=True)
    owners, drawn = [], []
    for number in range(counts.shape[1]):
        owners.append(np.repeat(np.arange(clients), counts[:, number]))
        of_class = np.flatnonzero(members == number)
        drawn.append(_cycle(of_class, int(counts[:, number].sum()), rng))
    by_owner = np.argsort(np.concatenate(owners), kind="stable")
    return list(np.concatenate(drawn)[by_owner].reshape(clients, samples))


def _cycle(indices: Indices, wanted: int, rng: np.random.Generator) -> Indices:
    """``wanted`` of these in a random order; when all are used, again in a new order."""
    rounds = -(-wanted // len(indices))
    if rounds == 0:
        return indices[:0]
    return np.concatenate([rng.permutation(indices) for _ in range(rounds)])[:wanted]


def _round_rows(quotas: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.int64]:
    """Largest remainder, row by row, to rows that sum to ``total``."""
    parts = np.floor(quotas).astype(np.int64)
    missing = total - parts.sum(axis=1)
    rank = np.argsort(np.argsort(parts - quotas, axis=1, kind="stable"), axis=1)
    parts += rank < missing[:, None]
    return parts
