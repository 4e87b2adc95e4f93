"""Data that needs no download: scikit-learn's digits, and LEAF's synthetic(alpha, beta)."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedast.tasks.task import Indices

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]

_TEST_DIGITS = 360


def _digits_table() -> npt.NDArray[np.float64]:
    """A row per digit: its pixels, and which it is. Read from scikit-learn's file: to import it
    takes two thirds as long as to import torch, since it brings SciPy and, if there, pandas."""
    found = find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


@cache
def digits() -> tuple[Arrays, Arrays]:
    """1,797 real handwritten digits of 8x8 pixels: (train, test), 1,437 and 360 of them.

    From the UCI set "Optical Recognition of Handwritten Digits", as bundled
    with scikit-learn; pixels 0 to 16 are scaled to mean 0 and deviation 1.
    """
    table = _digits_table()
    images = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32)
    images = (images - images.mean()) / images.std()
    labels = table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:_TEST_DIGITS], order[_TEST_DIGITS:]
    return (images[train], labels[train]), (images[test], labels[test])


def synthetic(
    clients: int, alpha: float, beta: float, max_samples: int, rng: np.random.Generator
) -> tuple[Arrays, Arrays, list[Indices]]:
    """LEAF's and FedProx's synthetic(alpha, beta): (train, test, partition).

    Li et al., "Federated Optimization in Heterogeneous Networks", 2020. Client
    k labels its samples by its own softmax model W_k ~ N(u_k, 1), b_k ~ N(u_k, 1)
    with u_k ~ N(0, alpha), and draws inputs x ~ N(v_k, Sigma), v_k ~ N(B_k, 1),
    B_k ~ N(0, beta), Sigma diagonal with j^-1.2. Clients have lognormal(4, 2) + 50 samples,
    here at most ``max_samples``; a fifth of every client's samples is test data.
    """
    features, classes = 60, 10
    sizes = np.minimum(rng.lognormal(4.0, 2.0, clients).astype(np.int64) + 50, max_samples)
    scale = np.arange(1, features + 1) ** -0.6  # the square root of Sigma's diagonal
    inputs, labels, held_out = [], [], []
    for size in sizes:
        u = rng.normal(0.0, np.sqrt(alpha))
        center = rng.normal(rng.normal(0.0, np.sqrt(beta)), 1.0, features)
        weights = rng.normal(u, 1.0, (features, classes))
        bias = rng.normal(u, 1.0, classes)
        x = center + scale * rng.normal(size=(size, features))
        inputs.append(x)
        labels.append((x @ weights + bias).argmax(axis=1))
        held_out.append(np.arange(size) >= size - size // 5)
    x, y = np.concatenate(inputs).astype(np.float32), np.concatenate(labels).astype(np.int64)
    test = np.concatenate(held_out)
    ends = np.cumsum(sizes - sizes // 5)
    partition = [np.arange(end - n, end) for end, n in zip(ends, sizes - sizes // 5, strict=True)]
    return (x[~test], y[~test]), (x[test], y[test]), partition
