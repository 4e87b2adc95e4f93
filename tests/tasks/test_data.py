from __future__ import annotations

import numpy as np
import pytest
import torch

from fedast.tasks.data.embedded import digits, synthetic
from fedast.tasks.dataset import Windows, as_dataset
from fedast.tasks.embedded import DigitsCNN, DigitsMLP, Synthetic
from fedast.tasks.options import TaskOptions
from fedast.tasks.partitions import dirichlet, iid, natural, power_law, shards


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


@pytest.mark.parametrize("kind", [DigitsMLP, DigitsCNN, Synthetic], ids=lambda kind: kind.name)
def test_tasks_build_by_seed(kind: type[TaskOptions]) -> None:
    one, two, other = (kind().build(12, seed, "x") for seed in (1, 1, 2))
    assert len(one.partition) == 12
    assert kind.defaults is not None
    assert (one.name, one.metric.name) == ("x", "accuracy")
    assert (one.training, one.step_cost) == (kind.defaults.training, kind.defaults.step_cost)
    assert one.goal.target == kind.defaults.goal.target
    outputs = one.model()(one.test.inputs[:5])
    assert outputs.shape == (5, 10)
    assert all(np.array_equal(a, b) for a, b in zip(one.partition, two.partition, strict=True))
    different = [
        len(a) != len(b) or not np.array_equal(one.train.inputs[a], other.train.inputs[b])
        for a, b in zip(one.partition, other.partition, strict=True)
    ]
    assert any(different)


# --- other partitions -----------------------------------------------------------------------

LABELS = np.arange(1000) % 10


def test_iid_uses_every_sample_before_any_twice() -> None:
    parts = iid(LABELS, 20, 75, np.random.default_rng(0))
    used = np.bincount(np.concatenate(parts), minlength=1000)
    assert set(used) == {1, 2}
    assert all(len(part) == 75 for part in parts)


def test_shards_have_just_so_many_classes() -> None:
    parts = shards(LABELS, 50, 40, 3, np.random.default_rng(0))
    for part in parts:
        counts = np.bincount(LABELS[part], minlength=10)
        assert sorted(counts[counts > 0]) == [13, 13, 14]
    assert {int(c) for part in parts for c in LABELS[part]} == set(range(10))
    with pytest.raises(ValueError, match="there are 10 classes"):
        shards(LABELS, 5, 40, 11, np.random.default_rng(0))


def test_power_law_sizes() -> None:
    parts = power_law(LABELS, 200, 50, 0.8, np.random.default_rng(0))
    sizes = np.array(sorted((len(part) for part in parts), reverse=True))
    assert sizes.mean() == pytest.approx(50, rel=0.05)
    assert sizes[0] / sizes[9] == pytest.approx(10**0.8, rel=0.02), "the k-th is k^-0.8"
    first = [len(part) for part in parts[:5]]
    assert first != sorted(first, reverse=True), "who is large is random"


def test_natural_gives_owners_blocks() -> None:
    parts = natural(np.array([0, 3, 4, 9]), np.array([2, 0, 2]))
    assert [list(part) for part in parts] == [[4, 5, 6, 7, 8], [0, 1, 2], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize("alpha", [1e-4, 0.01])
def test_a_tiny_alpha_still_gives_everyone_their_points(alpha: float) -> None:
    parts = dirichlet(LABELS, 300, 30, alpha, np.random.default_rng(0))
    assert all(len(part) == 30 for part in parts)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_an_alpha_that_makes_no_sense(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha must be positive and finite"):
        dirichlet(LABELS, 3, 5, alpha, np.random.default_rng(0))


# --- datasets -----------------------------------------------------------------------------------


def test_windows_are_cut_from_one_text() -> None:
    dataset = Windows(torch.arange(20, dtype=torch.uint8), torch.tensor([0, 5, 12]), 4)
    inputs, labels = dataset.batch(torch.tensor([2, 0]))
    assert inputs.tolist() == [[12, 13, 14, 15], [0, 1, 2, 3]]
    assert labels.tolist() == [16, 4]
    assert len(dataset) == 3


class Items:
    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        return self.items[index]


def test_points_from_what_users_have() -> None:
    for data in (
        (np.ones((3, 2)), np.array([0, 1, 2])),
        (torch.ones(3, 2), torch.tensor([0, 1, 2])),
        Items([([1.0, 1.0], 0), (np.ones(2), 1), (torch.ones(2), 2)]),
    ):
        inputs, labels = as_dataset(data).batch(torch.tensor([2]))
        assert inputs.tolist() == [[1.0, 1.0]]
        assert inputs.dtype == torch.float32
        assert labels.tolist() == [2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Items([([1.0], 0), ([1.0, 2.0], 1)]), "pairs of one shape"),
        (Items(["ab", "cd"]), "pairs of one shape"),
        (Items([]), "is empty"),
        (Items([{"image": [1.0], "label": 0}]), "pairs of one shape"),
        ((np.array([[np.nan]]), np.array([0])), "NaN"),
        ((np.ones((2, 1)), np.array([0])), "2 inputs but 1 labels"),
        (3, "neither"),
    ],
)
def test_points_that_cannot_be(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_dataset(data)
