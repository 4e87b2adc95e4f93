"""pytest: what this project adds is tried out in a short simulation."""

from __future__ import annotations

import numpy as np
from my_algorithm import MoreForTheSlow
from my_tasks import wine

from fedast import Simulation, simulate


def test_the_task_has_a_sample_for_every_client() -> None:
    task = wine(clients=30, seed=1)
    assert len(task.partition) == 30
    assert min(map(len, task.partition)) > 0


def test_the_model_learns_with_fedast() -> None:
    outcome = simulate(
        [wine(clients=30, seed=1)], "fedast-d", Simulation(clients=30, max_time=200.0), seed=1
    )
    assert outcome.result.tasks["wine"].finish_reason == "target"


def test_the_own_algorithm_trains_and_repeats_itself() -> None:
    def run() -> list[float]:
        outcome = simulate(
            [wine(clients=30, seed=1)],
            MoreForTheSlow(first_k=4),
            Simulation(clients=30, max_time=60.0),
            seed=1,
        )
        return [point.value for point in outcome.curves["wine"]]

    first = run()
    assert first[-1] > first[0]
    assert np.array_equal(first, run())
