"""A metric, a partition and a task of one's own, from Python and from a configuration file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import Field, ValidationError
from torch import nn

from fedast import Allocation, Goal, Simulation, Task, Training, simulate
from fedast.config.load import load, parse
from fedast.config.renamed import renamed
from fedast.config.resolve import resolve
from fedast.config.schema import TaskConfig
from fedast.parts.errors import ConfigError
from fedast.run.execute import execute
from fedast.tasks.metrics import METRICS, MetricOptions, Sums
from fedast.tasks.options import TASKS, TaskOptions
from fedast.tasks.paper import CIFAR100, MNIST
from fedast.tasks.partitions import (
    IID,
    PARTITIONS,
    Dirichlet,
    Labels,
    Partition,
    PartitionOptions,
    Shards,
)
from fedast.tasks.task import BadTask, Indices

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


class Blocks(PartitionOptions):
    """Consecutive samples, of which a client gets every ``step``-th."""

    step: int = Field(1, ge=1)

    def build(self) -> Partition:
        return lambda labels, clients, samples, rng: [
            np.arange(client, client + samples * self.step, self.step) for client in range(clients)
        ]


def first_samples(
    labels: Labels, clients: int, samples: int, rng: np.random.Generator
) -> list[Indices]:
    return [np.arange(samples) for _ in range(clients)]


class Line(TaskOptions):
    """A line through noisy points."""

    noise: float = Field(0.1, ge=0)

    def build(self, clients: int, seed: int, name: str) -> Task:
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(10 * clients, 1, generator=generator)
        y = 2 * x[:, 0] + self.noise * torch.randn(10 * clients, generator=generator)
        return Task(
            name=name,
            model=lambda: nn.Linear(1, 1),
            train=(x, y),
            test=(x, y),
            partition=list(np.arange(10 * clients).reshape(clients, 10)),
            metric="rmse",
            training=Training(local_steps=5, batch_size=5, client_lr=0.3),
            goal=Goal(target=0.2 + self.noise),
        )


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


# --- partitions -----------------------------------------------------------------------------------


def split(task: MNIST) -> list[list[int]]:
    parts = task.split(np.arange(100) % 10, 3, np.random.default_rng(0))
    return [part.tolist() for part in parts]


def test_a_partition_of_ones_own() -> None:
    wanted = [[0, 2, 4], [1, 3, 5], [2, 4, 6]]
    given: tuple[Any, ...] = (Blocks(step=2), {"name": f"{HERE}:Blocks", "step": 2})
    for partition in given:
        assert split(MNIST(partition=partition, samples=3)) == wanted
    for function in (first_samples, f"{HERE}:first_samples"):
        assert split(MNIST(partition=function, samples=3)) == [[0, 1, 2]] * 3  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"step: input should be greater than or equal to 1"):
        MNIST(partition={"name": f"{HERE}:Blocks", "step": 0})  # type: ignore[arg-type]


def resolved(use: str, options: dict[str, Any], **task: Any) -> dict[str, Any]:
    table = {"tasks": [{"use": use, "options": options, **task}]}
    return resolve(parse(table)).tasks[0].options


def test_a_partition_of_ones_own_in_a_file() -> None:
    table = {"name": f"{HERE}:Blocks", "step": 2}
    assert resolved("mnist", {"partition": table}) == {"partition": table, "samples": 300}
    config = resolve(parse({"tasks": [{"use": "mnist", "options": {"partition": table}}]}))
    assert config.path, "where its module is found again"
    with pytest.raises(ConfigError, match=r"tasks.mnist.options.partition.steps: unknown key"):
        resolved("mnist", {"partition": {"name": f"{HERE}:Blocks", "steps": 2}})
    with pytest.raises(ConfigError, match=r"tasks.mnist.options.partition: unknown value 'blocks'"):
        resolved("mnist", {"partition": "blocks"})


@pytest.mark.parametrize(
    ("use", "old", "now"),
    [
        ("mnist", {}, Dirichlet(alpha=0.1)),
        ("cifar100", {}, Dirichlet(alpha=1.0)),
        ("cifar100", {"partition": "dirichlet"}, Dirichlet(alpha=1.0)),
        ("cifar100", {"alpha": 0.3}, Dirichlet(alpha=0.3)),
        ("mnist", {"partition": "dirichlet", "alpha": 0.3}, Dirichlet(alpha=0.3)),
        ("mnist", {"partition": "iid", "alpha": 0.1, "exponent": 0.5}, IID()),
        ("mnist", {"partition": "shards", "classes_per_client": 4}, Shards(classes_per_client=4)),
    ],
)
def test_options_that_stood_beside_the_partition(
    use: str, old: dict[str, Any], now: PartitionOptions
) -> None:
    assert resolved(use, old) == {"partition": now.model_dump(), "samples": 300}
    assert resolved(use, {"partition": now.model_dump()}) == resolved(use, old)
    assert {"mnist": MNIST, "cifar100": CIFAR100}[use].read(
        resolved(use, old), "x"
    ).partition == now
    told = renamed({"tasks": [{"use": use, "options": old}]})
    kept = [key for key in type(now).model_fields if key in old]
    assert told == [
        f"tasks.{use}.options.{key} is now called partition.{key}; the old name is still read"
        for key in kept
    ]


def test_a_setting_by_the_old_name_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[[tasks]]\nuse = "mnist"\noptions = {alpha = 0.2}\n')
    for key in ("alpha", "partition.alpha"):
        config = resolve(load(path, [f"tasks.mnist.options.{key}=0.7"]))
        assert config.tasks[0].options["partition"] == {"name": "dirichlet", "alpha": 0.7}
    config = resolve(load(path, ["tasks.mnist.options.partition=iid"]))
    assert config.tasks[0].options["partition"] == {"name": "iid"}


def test_the_partitions_of_fedast() -> None:
    assert list(PARTITIONS.builtin) == ["dirichlet", "iid", "shards", "power-law"]
    with pytest.raises(ValidationError, match="greater than 0"):
        Dirichlet(alpha=0)


# --- tasks ----------------------------------------------------------------------------------------


def test_a_task_of_ones_own_in_a_file(tmp_path: Path) -> None:
    table = {
        "algorithm": {"name": "fedast-s", "requests": 4},
        "simulation": {"clients": 6},
        "tasks": [
            {"use": f"{HERE}:Line", "options": {"noise": 0.05}},
            {"use": f"{HERE}:Line", "name": "other", "local_steps": 3},
        ],
    }
    config = resolve(parse(table))
    line, other = config.tasks
    assert (line.name, line.options, line.local_steps, line.target) == (
        "Line", {"noise": 0.05}, 5, 0.25
    )  # fmt: skip
    assert (other.name, other.options, other.local_steps) == ("other", {"noise": 0.1}, 3)
    result = execute(config, tmp_path / "run").result
    assert {name: task.metric for name, task in result.tasks.items()} == {
        "Line": "rmse", "other": "rmse"
    }  # fmt: skip
    assert {task.finish_reason for task in result.tasks.values()} == {"target"}
    assert resolve(load(tmp_path / "run/config.toml")).tasks == config.tasks
    with pytest.raises(ConfigError, match=r"options.noise: input should be greater than or equal"):
        resolved(f"{HERE}:Line", {"noise": -1.0})


def test_tasks_by_name_and_as_objects() -> None:
    kind = TASKS.find("digits-mlp", "use")
    found: TaskOptions = TASKS.parse({"name": "digits-mlp", "samples": 20}, "task")
    assert isinstance(found, kind)
    for options in (found, Line()):
        task = options.build(clients=6, seed=1, name="mine")
        outcome = simulate([task], "fedast-s", Simulation(clients=6, max_time=2.0), seed=1)
        assert list(outcome.result.tasks) == ["mine"]


def test_each_kind_as_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "plugged_kinds-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-kinds\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[fedast.metrics]\nf1 = {HERE}:F1\n[fedast.partitions]\nblocks = {HERE}:Blocks\n"
        f"[fedast.tasks]\nline = {HERE}:Line\nby-f1 = {HERE}:by_f1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert two_classes("f1").metric == F1()
    assert MNIST.read({"partition": {"name": "blocks", "step": 2}}, "x").partition == Blocks(step=2)
    table: dict[str, Any] = {"simulation": {"clients": 6}, "tasks": [
        {"use": "line", "options": {"noise": 0.05}}, {"use": "by-f1"}
    ]}  # fmt: skip
    config = resolve(parse(table))
    assert [(task.name, task.target) for task in config.tasks] == [("line", 0.25), ("mine", 0.9)]
    assert [entry.source for entry in TASKS.listed()][-2:] == ["plugged-kinds"] * 2


# --- settings in Python ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (Training, {"local_steps": 0}, "local_steps\n.*greater than or equal to 1"),
        (Training, {"client_lr": -0.1}, "client_lr\n.*greater than 0"),
        (Training, {"sampling": "epoch"}, "sampling\n.*'epochs' or 'independent'"),
        (Training, {"learning_rate": 0.1}, "learning_rate\n.*not permitted"),
        (Goal, {"max_rounds": 0}, "max_rounds\n.*greater than or equal to 1"),
        (Goal, {"target": float("nan")}, "target\n.*finite number"),
        (Allocation, {"share": 0.0}, "share\n.*greater than 0"),
    ],
)
def test_settings_are_checked_as_those_of_a_file(
    make: type[Training | Goal | Allocation], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        make(**given)
    if set(given) <= set(TaskConfig.model_fields):
        with pytest.raises(ConfigError, match=f"tasks.digits-mlp.{next(iter(given))}: input"):
            parse({"tasks": [{"use": "digits-mlp", **given}]})


def test_a_step_must_cost_something() -> None:
    with pytest.raises(BadTask, match="task 'mine': step_cost must be positive, got 0"):
        replace(two_classes("accuracy"), step_cost=0.0)


def test_a_task_without_data_has_settings_only() -> None:
    whole = Line().build(4, 1, "line")
    bare = whole.settings()
    assert (bare.training, bare.goal, bare.trainable) == (whole.training, whole.goal, False)
    assert bare == Task(
        name="line", metric="rmse", training=whole.training, goal=Goal(target=0.2 + Line().noise)
    )
    with pytest.raises(ConfigError, match="line: has no model and data"):
        simulate([bare], simulation=Simulation(clients=4))
    with pytest.raises(BadTask, match="'line': test and partition missing"):
        replace(bare, model=whole.model, train=whole.train)
