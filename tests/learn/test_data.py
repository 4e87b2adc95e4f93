from __future__ import annotations

import numpy as np
import pytest

from fedast.learn.embedded import digits, synthetic
from fedast.learn.partition import dirichlet
from fedast.learn.presets import PRESETS


def test_digits_are_real_and_split_once() -> None:
    (train_x, train_y), (test_x, test_y) = digits()
    assert train_x.shape == (1437, 1, 8, 8)
    assert test_x.shape == (360, 1, 8, 8)
    assert np.concatenate((train_x, test_x)).mean() == pytest.approx(0.0, abs=1e-4)
    assert set(train_y) == set(test_y) == set(range(10))


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_dirichlet_gives_everyone_the_same_number(alpha: float) -> None:
    labels = np.repeat(np.arange(10), 60)
    parts = dirichlet(labels, 50, 30, alpha, np.random.default_rng(0))
    assert len(parts) == 50
    assert all(len(part) == 30 for part in parts)


def test_dirichlet_skew_grows_as_alpha_falls() -> None:
    labels = np.repeat(np.arange(10), 600)

    def largest_share(alpha: float) -> float:
        parts = dirichlet(labels, 200, 300, alpha, np.random.default_rng(0))
        shares = [np.bincount(labels[part], minlength=10).max() / 300 for part in parts]
        return float(np.mean(shares))

    assert largest_share(0.1) > 0.6 > largest_share(1.0) > 0.2 > largest_share(100.0)


def test_a_class_is_used_up_before_it_is_reused() -> None:
    labels = np.repeat(np.arange(4), 100)
    parts = dirichlet(labels, 40, 50, 1000.0, np.random.default_rng(0))
    used = np.bincount(np.concatenate(parts), minlength=400)
    for number in range(4):
        of_class = used[labels == number]
        assert of_class.max() - of_class.min() <= 1


def test_dirichlet_is_deterministic_by_its_generator() -> None:
    labels = np.arange(100) % 7
    one = dirichlet(labels, 9, 20, 0.3, np.random.default_rng(4))
    two = dirichlet(labels, 9, 20, 0.3, np.random.default_rng(4))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_synthetic_clients_own_their_points() -> None:
    rng = np.random.default_rng(0)
    (x, y), (test_x, test_y), parts = synthetic(30, 1.0, 1.0, 200, rng)
    assert np.array_equal(np.concatenate(parts), np.arange(len(x)))
    assert all(40 <= len(part) <= 160 for part in parts)
    assert len(x) == len(y)
    assert len(test_x) == len(test_y) == pytest.approx(len(x) / 4, rel=0.05)
    assert x.shape[1] == test_x.shape[1] == 60
    # Sigma's diagonal is j^-1.2: within one client the first input varies most.
    spread = np.mean([x[part].var(axis=0) for part in parts], axis=0)
    assert spread[0] == pytest.approx(1.0, rel=0.1)
    assert spread[9] == pytest.approx(10**-1.2, rel=0.15)


def test_alpha_and_beta_set_how_much_clients_differ() -> None:
    def centres(beta: float) -> float:
        (x, _), _, parts = synthetic(60, 0.0, beta, 100, np.random.default_rng(0))
        return float(np.std([x[part].mean() for part in parts]))

    assert centres(0.0) < 0.3 < 1.0 < centres(4.0)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_build_by_seed(name: str) -> None:
    preset = PRESETS[name]
    one, two, other = (preset.build(preset.options(), 12, seed, "x") for seed in (1, 1, 2))
    assert len(one.partition) == 12
    outputs = one.model()(one.test[0][:5])
    assert outputs.shape == (5, 10)
    assert all(np.array_equal(a, b) for a, b in zip(one.partition, two.partition, strict=True))
    different = [
        len(a) != len(b) or not np.array_equal(one.train[0][a], other.train[0][b])
        for a, b in zip(one.partition, other.partition, strict=True)
    ]
    assert any(different)
