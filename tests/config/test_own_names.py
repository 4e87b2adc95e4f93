"""How settings find tasks and parts: by the names that tables and curves show."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.parts.errors import ConfigError, nearest
from fedast.sim.availability import ActiveCap

SOURCE = """
import numpy as np
from torch import nn
from fedast import Task

def make(clients, seed, *, name="wine"):
    x, y = np.zeros((clients, 3), np.float32), np.zeros(clients, np.int64)
    return Task(name=name, model=lambda: nn.Linear(3, 2), train=(x, y), test=(x, y),
                partition=[np.array([i]) for i in range(clients)])
"""
FILE = """
[simulation]
clients = 9
[[tasks]]
use = "cellar:make"
[[tasks]]
use = "cellar:make"
options = {name = "beer"}
[[tasks]]
use = "synthetic"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cellar.py").write_text(SOURCE)
    (tmp_path / "file.toml").write_text(FILE)
    monkeypatch.delitem(sys.modules, "cellar", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    importlib.invalidate_caches()
    return tmp_path / "file.toml"


def test_an_own_task_is_set_by_the_name_that_it_has_in_tables(file: Path) -> None:
    """Neither its function nor the file says "wine" or "beer"."""
    config = load(file, ["tasks.beer.target=0.7", "tasks.wine.target=0.6", "simulation.clients=5"])
    assert [task.target for task in config.tasks] == [0.6, 0.7, None]
    assert [task.name for task in resolve(config, file.parent).tasks] == [
        "wine", "beer", "synthetic",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="no task 'whine'; did you mean 'wine'"):
        load(file, ["tasks.whine.target=0.7"])


def test_what_is_wrong_with_an_own_task_is_said_about_the_task(file: Path) -> None:
    """A setting whose task cannot be found because its function fails does not hide that."""
    config = load(file, ["tasks.0.options={wrong=1}", "tasks.make.target=0.7"])
    with pytest.raises(ValueError, match="cellar:make: cannot be called"):
        resolve(config, file.parent)


def test_part_of_a_default_table_needs_no_name(file: Path) -> None:
    """The cap of the default model of availability, in a setting and in a file."""
    assert load(file, ["simulation.availability.cap=4"]).simulation.availability == ActiveCap(cap=4)
    file.write_text(FILE + "[simulation.availability]\ncap = 5\n[simulation.delay]\nscale = 2.0\n")
    simulation = load(file).simulation
    assert simulation.availability == ActiveCap(cap=5)
    assert simulation.delay.model_dump()["scale"] == 2.0


def test_part_of_a_name_is_enough_to_be_helped() -> None:
    known = ["sequential-fedavg", "fedbuff", "sync-st"]
    assert nearest("fedavg", known) == "; did you mean 'sequential-fedavg'?"
    assert nearest("FedAvg", known) == "; did you mean 'sequential-fedavg'?"
    assert nearest("xyz", known).startswith("; there are")
