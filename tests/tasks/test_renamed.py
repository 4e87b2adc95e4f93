"""Names of earlier versions: old keywords and keys mean what they meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedast
from fedast.config.load import parse
from fedast.config.renamed import renamed
from fedast.config.resolve import resolve


def make(**extra: Any) -> fedast.Task:
    data = (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    return fedast.Task(
        name="t",
        model=lambda: nn.Linear(2, 3),
        train=data,
        test=data,
        partition=[np.arange(4)],
        **extra,
    )


def test_a_task_takes_its_step_cost_as_size() -> None:
    with pytest.warns(DeprecationWarning, match="size is now called step_cost") as caught:
        task = make(size=0.25)
    assert task.step_cost == 0.25
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match="step_cost, which is given too"):
        make(size=0.25, step_cost=0.5)


def test_training_takes_its_learning_rates_as_rates() -> None:
    old: dict[str, Any] = {"client_rate": 0.2, "server_rate": 0.5}
    with pytest.warns(DeprecationWarning, match="is now Training") as caught:
        training = fedast.Training(local_steps=3, **old)
    assert training == fedast.Training(local_steps=3, client_lr=0.2, server_lr=0.5)
    assert [str(warning.message) for warning in caught] == [
        "Training(client_rate=...) is now Training(client_lr=...)",
        "Training(server_rate=...) is now Training(server_lr=...)",
    ]
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="client_lr, which is given too"):
        fedast.Training(client_lr=0.1, **old)


def test_partitions_take_samples_as_points() -> None:
    labels = np.arange(40) % 4
    now = fedast.iid(labels, 4, samples=5, rng=np.random.default_rng(0))
    old: dict[str, Any] = {"points": 5}
    with pytest.warns(DeprecationWarning, match="points is now called samples"):
        before = fedast.iid(labels, 4, rng=np.random.default_rng(0), **old)
    assert [part.tolist() for part in before] == [part.tolist() for part in now]


def table(cost: str, samples: str, most: str) -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedast-s"},
        "tasks": [
            {"use": "digits-mlp", cost: 0.3, "options": {samples: 20}},
            {"task": "synthetic", "options": {most: 60}},
        ],
    }


def test_keys_of_earlier_versions_resolve_to_the_same_run() -> None:
    old = table("size", "points", "max_points")
    now = resolve(parse(table("step_cost", "samples", "max_samples")))
    assert resolve(parse(old)) == now
    assert now.tasks[0].step_cost == 0.3
    assert now.tasks[0].options["samples"] == 20
    assert now.tasks[1].options["max_samples"] == 60
    assert [line.split(";")[0] for line in renamed(old)] == [
        "tasks.digits-mlp.size is now called step_cost",
        "tasks.digits-mlp.options.points is now called samples",
        "tasks.1.options.max_points is now called max_samples",
    ]


def test_options_of_a_users_own_task_keep_their_names() -> None:
    own = {"tasks": [{"use": "examples.own_tasks:diabetes", "options": {"points": 20}}]}
    assert renamed(own) == []
