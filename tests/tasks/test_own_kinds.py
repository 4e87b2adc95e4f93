"""A metric, a partition and a task of one's own, from Python and from a configuration file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from fedast import Goal, Simulation, Task, Training, simulate
from fedast.config.load import parse
from fedast.config.resolve import resolve
from fedast.run.execute import execute
from fedast.tasks.metrics import METRICS, MetricOptions, Sums
from fedast.tasks.task import BadTask

HERE = __name__


class F1(MetricOptions):
    """F1 of one class."""

    positive: int = 1

    def build(self) -> Sums:
        def sums(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            found, true = outputs.argmax(1) == self.positive, labels == self.positive
            return torch.stack([(found & true).sum(), (found ^ true).sum()])

        return sums

    def finish(self, means: Sequence[float]) -> float:
        hits, errors = means
        return 2 * hits / (2 * hits + errors) if hits + errors else 0.0


class ErrorRate(MetricOptions):
    """The part of the samples whose class is wrong."""

    name: ClassVar[str] = "error-rate"
    higher_is_better = False

    def build(self) -> Sums:
        return lambda outputs, labels: (outputs.argmax(1) != labels).sum()


def two_classes(metric: object, **goal: float) -> Task:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return Task(
        name="mine",
        model=lambda: nn.Linear(2, 2),
        train=(x, y),
        test=(x, y),
        partition=list(np.arange(60).reshape(6, -1)),
        metric=metric,
        training=Training(local_steps=3, batch_size=5, client_lr=0.5),
        goal=Goal(**goal),  # type: ignore[arg-type]
    )


def by_f1(clients: int, seed: int) -> Task:
    return two_classes(f"{HERE}:F1", target=0.9)


# --- metrics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [F1(), F1, f"{HERE}:F1", {"name": f"{HERE}:F1"}])
def test_a_metric_of_ones_own_is_measured_and_recorded(metric: object, tmp_path: Path) -> None:
    outcome = simulate([two_classes(metric, target=0.9)], "fedast-s", Simulation(clients=6))
    found = outcome.result.tasks["mine"]
    assert found.metric == f"{HERE}:F1", "it has no short name"
    assert found.finish_reason == "target"
    x, y = two_classes("accuracy").test.batch(torch.arange(60))
    guess = outcome.models["mine"](x).argmax(1)
    hits = int((guess & y).sum())
    assert found.final == pytest.approx(2 * hits / int((guess + y).sum()))
    outcome.save(tmp_path / "run")
    with (tmp_path / "run/curves.csv").open() as file:
        assert {row["metric"] for row in csv.DictReader(file)} == {f"{HERE}:F1"}


def test_a_metric_says_which_direction_is_better() -> None:
    task = two_classes(ErrorRate(), target=0.1)
    found = simulate([task], "fedast-s", Simulation(clients=6)).result.tasks["mine"]
    assert (found.metric, found.finish_reason) == ("error-rate", "target")
    assert found.final is not None
    assert found.final <= 0.1


def test_a_task_in_a_file_has_its_own_metric() -> None:
    table = {
        "algorithm": {"name": "fedast-s", "requests": 4},
        "simulation": {"clients": 6},
        "tasks": [{"use": f"{HERE}:by_f1"}],
    }
    result = execute(resolve(parse(table))).result
    assert result.tasks["mine"].metric == f"{HERE}:F1"
    assert result.tasks["mine"].finish_reason == "target"


def test_what_is_wrong_with_a_metric_is_said_by_name() -> None:
    assert list(METRICS.builtin) == ["accuracy", "rmse", "perplexity"]
    with pytest.raises(BadTask, match=r"task 'mine': metric: unknown value 'f1'; there are accur"):
        two_classes("f1")
    with pytest.raises(BadTask, match=r"nowhere:F1: module 'nowhere' cannot be imported"):
        two_classes("nowhere:F1")
    with pytest.raises(BadTask, match=r"positive: input should be a valid integer, got 'yes'"):
        two_classes({"name": f"{HERE}:F1", "positive": "yes"})
