"""Users' own tasks: from a configuration, as a plug-in, and when they are wrong."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedast import Simulation, Task, Training, simulate
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.parts.errors import ConfigError
from fedast.run.build import build_tasks
from fedast.run.execute import execute
from fedast.tasks.options import TASKS
from fedast.tasks.task import BadTask
from tests.tasks.test_sources import tiny_cifar100

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_worked_examples_reach_their_targets(tmp_path: Path) -> None:
    path = EXAMPLES / "own-tasks.toml"
    config = resolve(load(path), path.parent)
    assert [task.name for task in config.tasks] == ["diabetes", "manual"]
    result = execute(config, tmp_path / "run", events=True).result
    assert result.tasks["diabetes"].metric == "rmse"
    assert result.tasks["diabetes"].final is not None
    assert result.tasks["diabetes"].final <= 0.75, "lower is better"
    assert result.tasks["manual"].finish_reason == "target"
    again = resolve(load(tmp_path / "run" / "config.toml"), tmp_path / "run")
    execute(again, tmp_path / "again", events=True)
    assert (tmp_path / "again/events.jsonl").read_bytes() == (
        tmp_path / "run/events.jsonl"
    ).read_bytes()


def module(tmp_path: Path, name: str, body: str) -> None:
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(body))


def config_for(tmp_path: Path, use: str, options: str = "{}") -> Path:
    path = tmp_path / "run.toml"
    path.write_text(
        f'[simulation]\nclients = 4\n[[tasks]]\ntask = "{use}"\nmax_rounds = 2\n'
        f"requests = 2\nbuffer = 1\noptions = {options}\n"
    )
    return path


GOOD = """
    import numpy as np, torch
    from torch import nn
    from fedast import Goal, Task, Training

    def make(clients, seed, *, width=3):
        x = torch.randn(40, 2, generator=torch.Generator().manual_seed(seed))
        return Task(
            name="mine", model=lambda: nn.Linear(2, width), train=(x, torch.arange(40) % 3),
            test=(x, torch.arange(40) % 3), partition=list(np.arange(40).reshape(clients, -1)),
            metric="perplexity", training=Training(local_steps=2, batch_size=5),
            goal=Goal(target=0.5, evaluate_every=1),
        )
"""


def test_a_plug_in_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, "plugged", GOOD)
    info = tmp_path / "plugged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedast.tasks]\nmy-task = plugged:make\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert TASKS.installed()["my-task"].value == "plugged:make"
    config = resolve(load(config_for(tmp_path, "my-task")), tmp_path)
    assert config.tasks[0].target == 0.5
    result = execute(config).result
    assert result.tasks["mine"].metric == "perplexity"
    assert result.tasks["mine"].finish_reason == "rounds", "perplexity is above 1: not at 0.5"


@pytest.mark.parametrize(
    ("use", "options", "message"),
    [
        ("nowhere:make", "{}", "module 'nowhere' cannot be imported"),
        ("good_one:build", "{}", "module 'good_one' has no 'build'"),
        ("good_one:make", "{depth = 3}", "cannot be called .* unexpected keyword argument 'depth'"),
        ("bad_one:make", "{}", "returned int, not a fedast.Task"),
        ("empty_model:make", "{}", "its model has no parameters to train"),
        ("good_one:make", "{width = 2}", "label 2, outside the model's 2 classes"),
        ("wrong_shape:make", "{}", "model, loss and train data do not fit"),
        ("late_shape:make", "{}", "model, loss and final_test data do not fit"),
        ("bad_loss:make", "{}", "model, loss and train data do not fit: grad can be implicitly"),
        ("one_hot:make", "{}", "accuracy needs one class number per sample"),
        ("raises:make", "{}", "raises:make: ZeroDivisionError"),
        ("broken:make", "{}", "module 'broken' cannot be imported: SyntaxError"),
        ("no_factory:make", "{}", "its model cannot be built"),
        ("odd_parts:make", "{}", "client 0 must have a list of integers"),
        (":make", "{}", "cannot be imported"),
    ],
)
def test_what_is_wrong_with_a_task_is_said_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str, options: str, message: str
) -> None:
    module(tmp_path, "good_one", GOOD)
    module(tmp_path, "bad_one", "def make(clients, seed):\n    return 3\n")
    module(tmp_path, "empty_model", GOOD.replace("nn.Linear(2, width)", "nn.Identity()"))
    module(tmp_path, "wrong_shape", GOOD.replace("nn.Linear(2, width)", "nn.Linear(5, width)"))
    labels = "test=(x, torch.arange(40) % 3),"
    module(tmp_path, "late_shape", GOOD.replace(labels, labels + "final_test=(x[:, :1], x[:, 0]),"))
    module(tmp_path, "bad_loss", GOOD.replace(labels, labels + "loss=lambda o, y: o.sum(1),"))
    one_hot = GOOD.replace("torch.arange(40) % 3", "torch.eye(3)[torch.arange(40) % 3]")
    module(tmp_path, "one_hot", one_hot.replace('"perplexity"', '"accuracy"'))
    module(tmp_path, "raises", "def make(clients, seed):\n    return 1 / 0\n")
    module(tmp_path, "broken", "def make(:\n")
    module(tmp_path, "no_factory", GOOD.replace("lambda: nn.Linear", "nn.Linear"))
    module(tmp_path, "odd_parts", GOOD.replace("np.arange(40)", "np.arange(40.0)"))
    for name in [path.stem for path in tmp_path.glob("*.py")]:
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises((BadTask, ConfigError), match=message):
        execute(resolve(load(config_for(tmp_path, use, options)), tmp_path))


def test_a_larger_last_test_gives_the_final_number() -> None:
    x, y = torch.tensor([[1.0], [-1.0]] * 10), torch.tensor([1, 0] * 10)
    task = Task(
        name="a",
        model=lambda: nn.Linear(1, 2),
        train=(x, y),
        test=(x, y),
        final_test=(-x, y),
        partition=[np.arange(20)],
        training=Training(batch_size=20),
    )
    result = simulate([task], "fedast-s", Simulation(clients=1, max_time=300.0)).result
    assert result.curves["a"][-1].value == 1.0
    assert result.tasks["a"].final == 0.0, "the last test turns every point around"


def test_cifar100_trains_on_a_small_generated_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedast.tasks import paper as paper_tasks
    from fedast.tasks.data.sources import fetch

    monkeypatch.setenv("FEDAST_DATA", str(tmp_path / "cache"))
    paper_tasks._images.cache_clear()
    fetch("cifar100", str(tiny_cifar100(tmp_path / "data")), False, lambda step: None)
    path = tmp_path / "run.toml"
    path.write_text(
        '[algorithm]\nname = "fedast-s"\n[simulation]\nclients = 4\n[[tasks]]\nuse = "cifar100"\n'
        "options = {samples = 4}\nlocal_steps = 1\nbatch_size = 4\nmax_rounds = 2\n"
        "requests = 2\nbuffer = 1\nevaluate_every = 2\n"
    )
    config = resolve(load(path), tmp_path)
    (task,) = build_tasks(config)
    assert task.augment is not None
    result = execute(config).result
    assert (result.tasks["cifar100"].rounds, result.tasks["cifar100"].finish_reason) == (
        2,
        "rounds",
    )
    paper_tasks._images.cache_clear()
