"""Metrics from any function, and several of them for one task."""

from __future__ import annotations

import csv
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedast import Simulation, Task, Training, metric, simulate
from fedast.learner.replay import RecordingLearner
from fedast.records.run import read_run
from fedast.tasks.task import BadTask
from tests.cli.command import fedast


def recall(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Of the second class: no mean over batches gives it."""
    wanted = labels == 1
    return float((outputs.argmax(dim=1)[wanted] == 1).float().mean())


def worst_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none").max()


worst_loss.higher_is_better = False  # type: ignore[attr-defined]


def task(**changes: object) -> Task:
    x = torch.linspace(-1, 1, 40)[:, None]
    x = x + x.sign()  # two classes, well apart
    y = (x[:, 0] > 0).long()
    made = Task(
        name="sign",
        model=lambda: nn.Linear(1, 2),
        train=(x, y),
        test=(x, y),
        partition=[np.arange(n, 40, 4) for n in range(4)],
        training=Training(local_steps=4, batch_size=5, client_lr=0.5),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_any_function_is_a_metric() -> None:
    lower = metric(worst_loss)
    assert (lower.name, lower.higher_is_better) == ("worst_loss", False)
    named = metric(lambda outputs, labels: 1.0, name="one")
    assert (named.name, named.higher_is_better) == ("one", True)
    again = pickle.loads(pickle.dumps(lower))
    assert (again.name, again.higher_is_better, again.whole()) == ("worst_loss", False, worst_loss)
    made = task(metric=worst_loss)
    assert made.metric.higher_is_better is False
    assert replace(made, name="other").metric == made.metric
    with pytest.raises(BadTask, match="different names"):
        task(metrics=["accuracy"])


def test_a_lower_metric_reaches_its_target_from_above() -> None:
    made = task(metric=worst_loss)
    goal = made.goal.model_copy(update={"target": 0.3})
    world = Simulation(clients=4, max_time=400.0)
    outcome = simulate([replace(made, goal=goal)], "fedast-s", world, seed=1)
    found = outcome.result.tasks["sign"]
    assert (found.metric, found.finish_reason) == ("worst_loss", "target")
    assert found.final is not None
    assert found.final <= 0.3
    last = outcome.models["sign"](made.test.inputs).detach()
    assert found.final == pytest.approx(float(worst_loss(last, made.test.labels)), rel=1e-5)


def test_further_metrics_are_further_rows(tmp_path: Path) -> None:
    made = task(metrics=[recall, "perplexity"])
    world = Simulation(clients=4, max_time=30.0)
    outcome = simulate([made], "fedast-s", world, seed=1)
    alone = simulate([task()], "fedast-s", world, seed=1)
    assert outcome.curves == alone.curves, "they change nothing"
    more = outcome.result.tasks["sign"].more
    assert set(more) == {"recall", "perplexity"}
    curve = outcome.curves["sign"]
    assert [p.time for p in more["recall"]] == [p.time for p in curve]
    assert more["perplexity"][-1].value == pytest.approx(np.exp(curve[-1].loss))
    last = outcome.models["sign"](made.test.inputs).detach()
    assert more["recall"][-1].value == pytest.approx(recall(last, made.test.labels))
    outcome.save(tmp_path / "run")
    with (tmp_path / "run" / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["metric"] for row in rows} == {"accuracy", "recall", "perplexity"}
    read = read_run(tmp_path / "run").tasks["sign"]
    assert (read.curve, read.more) == (curve, more)


def test_they_are_there_after_a_resume() -> None:
    """A checkpoint has the answers of evaluations; a replay gives them again."""

    class Learner:
        def evaluate(self, name: str) -> object:
            return first

    from fedast.learner.protocol import Evaluation

    first = Evaluation(0.5, 1.0, raw=(0.4, 1.1), more=(0.25, 3.0))
    recording = RecordingLearner(Learner())  # type: ignore[arg-type]
    assert recording.evaluate("a") == first
    answers = recording.take()
    again = RecordingLearner(Learner(), answers)  # type: ignore[arg-type]
    assert again.evaluate("a") == first
    assert again.take() == answers


def test_a_function_in_a_file_of_tasks(tmp_path: Path) -> None:
    """An error in the metric names its line."""
    (tmp_path / "mine_metric.py").write_text(
        "from tests.tasks.test_own_metrics import task\n"
        "def wrong(outputs, labels):\n"
        "    raise RuntimeError('no metric')\n"
        "def make(clients, seed):\n"
        "    return task(metric=wrong)\n"
    )
    (tmp_path / "run.toml").write_text(
        '[simulation]\nclients = 4\nmax_time = 3\n[[tasks]]\nuse = "mine_metric:make"\n'
    )
    done = fedast("run", str(tmp_path / "run.toml"), "--trainer", "serial")
    assert done.returncode == 1
    assert "mine_metric.py:3, in wrong" in done.stderr
