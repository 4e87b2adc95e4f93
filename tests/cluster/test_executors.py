"""The contract of executors, on a real Ray of three nodes and on submitit's local executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedast.run.on_ray import Ray
from fedast.run.on_slurm import Slurm
from fedast.testing import executor_contract

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster", "elsewhere")]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # submitit's files


TestRayShared = executor_contract(Ray())
TestRayApart = executor_contract(Ray(shared=False))
TestSubmitit = executor_contract(Slurm(through="local"))
