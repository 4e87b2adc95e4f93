"""The contract of executors, on a real Ray of three nodes and on submitit's local executor."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from fedast.records.run import read_run
from fedast.records.series import read
from fedast.run.batch import BatchRun, carry_out
from fedast.run.on_ray import Ray
from fedast.run.on_slurm import Slurm, SlurmWorkers, _of_the_first
from fedast.testing import executor_contract
from fedast.testing.executors import small_config
from fedast.training.nodes import my_facts

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster", "elsewhere")]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # submitit's files


TestRayShared = executor_contract(Ray())
TestRayApart = executor_contract(Ray(shared=False))
TestSubmitit = executor_contract(Slurm(through="local"))


def test_slurm_refuses_nodes_of_another_kind(tmp_path: Path) -> None:
    mine = my_facts()
    assert _of_the_first(tmp_path, mine) == mine
    other = replace(mine, processor="another one")
    assert _of_the_first(tmp_path, other) == mine
    run = BatchRun("run", small_config(tmp_path / "task", 0, rounds=2), None)
    executor = Slurm(through="local", logs=str(tmp_path / "logs"))
    workers = SlurmWorkers(executor)
    (workers._place / "first-node").write_bytes(pickle.dumps(other))
    with pytest.raises(RuntimeError, match="have different processors"):
        carry_out(workers, [run], jobs=1)
    mixed = SlurmWorkers(executor.model_copy(update={"allow_mixed": True}))
    (mixed._place / "first-node").write_bytes(pickle.dumps(other))
    assert len(carry_out(mixed, [run], jobs=1)) == 1


def test_the_page_sees_a_run_on_a_node_that_does_not_see_the_folder(tmp_path: Path) -> None:
    """Its time series is there while it goes on."""
    config = small_config(tmp_path / "task", 0, rounds=10**6)
    out = tmp_path / "out"
    seen: list[int] = []

    def prune(number: int) -> bool:
        path = out / "series.jsonl"
        if path.exists() and (out / "config.toml").exists():
            seen.append(len(read(path)[0]))
        return bool(seen) and seen[-1] > seen[0] + 2

    Ray(shared=False).build()([BatchRun("run", config, out)], jobs=1, prune=prune)
    assert seen[-1] > 3
    assert read_run(out).interrupted
