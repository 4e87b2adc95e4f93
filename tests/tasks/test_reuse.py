"""A task can be used again: in another run, under another name, with other settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedast import Goal, Simulation, Task, Training, simulate
from fedast.tasks.task import BadTask


def task() -> Task:
    x = torch.linspace(-1, 1, 40)[:, None]
    return Task(
        name="sign",
        model=lambda: nn.Linear(1, 2),
        train=(x, (x[:, 0] > 0).long()),
        test=(x, (x[:, 0] > 0).long()),
        partition=[np.arange(n, 40, 4) for n in range(4)],
        training=Training(local_steps=4, batch_size=5, client_lr=0.5),
        goal=Goal(target=2.0 / 3.0),
    )


def test_a_copy_has_other_settings_and_the_same_data() -> None:
    first = task()
    second = first.copy("slow", client_lr=0.1, target=0.9, requests=3, step_cost=2.0)
    assert (second.name, second.step_cost) == ("slow", 2.0)
    assert second.training == first.training.model_copy(update={"client_lr": 0.1})
    assert (second.goal.target, second.allocation.requests) == (0.9, 3)
    assert second.train is first.train
    assert first.copy() == first.copy(first.name)
    assert (first.name, first.training.client_lr) == ("sign", 0.5)
    with pytest.raises(BadTask, match="no 'clientlr'; did you mean 'client_lr'"):
        first.copy(clientlr=0.1)
    with pytest.raises(BadTask, match="batch_size"):
        first.copy(batch_size=0)


def test_a_task_runs_twice_and_beside_its_copy() -> None:
    first, world = task(), Simulation(clients=4, max_time=30.0)
    runs = [simulate([first], "fedast-s", world, seed=1).curves for _ in range(2)]
    assert runs[0] == runs[1]
    both = simulate([first, first.copy("again")], "fedast-s", world, seed=1)
    assert set(both.curves) == {"sign", "again"}
