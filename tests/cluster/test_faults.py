"""What can go wrong on a cluster: nodes die, versions differ, the driver is killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedast as package
from fedast.parts.errors import ConfigError
from fedast.records.run import SERIES
from fedast.records.series import read
from fedast.records.sweeps import read_trials
from fedast.run.batch import BatchRun, Pulse
from fedast.run.execute import execute
from fedast.run.on_ray import Ray
from fedast.testing.executors import small_config
from fedast.training.options import OnRay
from fedast.training.ray_connection import check_nodes, node_facts
from tests.cluster.conftest import SMALL

pytestmark = pytest.mark.cluster


def fedast(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedast", *arguments],
        capture_output=True, text=True, cwd=cwd, timeout=600,
    )  # fmt: skip


def test_the_runs_of_a_node_that_dies_go_on_elsewhere(cluster: Any, tmp_path: Path) -> None:
    doomed = cluster.add_node(**{**SMALL, "num_cpus": 8})
    configs = [small_config(tmp_path / "task", seed, rounds=1500) for seed in range(4)]
    runs = [
        BatchRun(f"run {n}", config, tmp_path / str(n), every="50")
        for n, config in enumerate(configs)
    ]
    said: list[str] = []
    begun: set[int] = set()

    def progress(pulse: Pulse) -> None:
        begun.add(pulse.run)
        checkpoints = any((tmp_path / str(n) / "checkpoints").glob("*.json") for n in range(4))
        if len(begun) == 4 and checkpoints and doomed in cluster.list_all_nodes():
            cluster.remove_node(doomed, allow_graceful=False)

    results = Ray(shared=False).build()(runs, jobs=4, progress=progress, say=said.append)
    assert len(results) == 4
    assert said, "the large node had some of them"
    assert all("its worker is gone" in line and "begun again" in line for line in said)
    for number, config in enumerate(configs):
        execute(config, tmp_path / "alone", overwrite=True)
        alone = (tmp_path / "alone" / "curves.csv").read_bytes()
        assert (tmp_path / str(number) / "curves.csv").read_bytes() == alone


def test_a_node_that_leaves_while_nodes_are_asked_is_no_reason_to_refuse(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    node = cluster.add_node(**SMALL)
    while sum(one["Alive"] for one in ray.nodes()) < 4:
        time.sleep(0.1)
    before = ray.nodes()
    cluster.remove_node(node)
    while sum(one["Alive"] for one in ray.nodes()) > 3:
        time.sleep(0.1)
    listed, now = [before], ray.nodes
    monkeypatch.setattr(ray, "nodes", lambda: listed.pop() if listed else now())
    found = node_facts()
    assert len(found) == 3
    assert not any(isinstance(facts, str) for facts in found.values())


def test_what_no_node_has_is_refused(cluster: Any) -> None:
    with pytest.raises(ConfigError, match="no node of the cluster has 3 cores for a run"):
        Ray(cores=3).build()([], jobs=1)
    assert Ray().jobs() == 3


@pytest.mark.parametrize(("asked", "most"), [({}, 3), ({"cores": 0.5}, 6), ({"gpus": 0.5}, 2)])
def test_runs_get_what_they_asked_for_and_no_more(
    asked: dict[str, Any], most: int, cluster: Any, tmp_path: Path
) -> None:
    """Three cores, and for a while a node with a GPU, as far as Ray is concerned."""
    big = {**SMALL, "num_cpus": 4, "num_gpus": 1}
    node = cluster.add_node(**big) if "gpus" in asked else None
    try:
        config = [small_config(tmp_path / "task", seed, rounds=400) for seed in range(7)]
        runs = [BatchRun(f"run {n}", config, tmp_path / str(n)) for n, config in enumerate(config)]
        Ray(**asked).build()(runs, jobs=7)
        spans = []
        for number in range(7):
            head, *_, last = read(tmp_path / str(number) / SERIES)[0]
            spans.append((head["began"], head["began"] + last[1]))
        together = [sum(one <= begun < end for one, end in spans) for begun, _ in spans]
        assert max(together) <= most
        assert Ray(**asked).jobs() == most
    finally:
        if node is not None:
            cluster.remove_node(node)


@pytest.fixture(params=["torch", "fedast"])
def odd_node(request: Any, cluster: Any, tmp_path: Path) -> Iterator[str]:
    """A node with another version of torch, as far as it can tell, or really of fedast."""
    odd = tmp_path / "odd"
    if request.param == "torch":
        about = odd / "torch-9.9.9.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    else:
        shutil.copytree(Path(package.__file__).parent, odd / "fedast")
        (odd / "fedast" / "version.py").write_text('__version__ = "9.9.9"\n')
    path = os.pathsep.join([str(odd), *sys.path])
    node = cluster.add_node(**SMALL, env_vars={"PYTHONPATH": path})
    yield request.param
    cluster.remove_node(node)


def test_another_version_is_refused(odd_node: str, cluster: Any, tmp_path: Path) -> None:
    line = rf"has {odd_node} 9\.9\.9, this machine has"
    with pytest.raises(ConfigError, match=line):
        check_nodes(allow_mixed=False, gpus=False)
    config = small_config(tmp_path / "task", 0, rounds=2)
    with pytest.raises(ConfigError, match=line):
        Ray().build()([BatchRun("run", config, None)], jobs=1)
    compute = config.compute.model_copy(update={"trainer": OnRay()})
    with pytest.raises(ConfigError, match=f"compute.trainer: node .*{line}"):
        execute(config.model_copy(update={"compute": compute}), None)
    done = fedast("cluster", "check", cluster.address, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "problem: node" in done.stderr
    assert "install the same version everywhere" in done.stderr


SWEEP = """
search."tasks.*.client_lr" = [0.02, 0.05, 0.1, 0.2]
prune = "off"
[base]
tasks = [{ use = "digits-mlp", target = 0.3 }]
algorithm = { requests = 8, ratio = 4 }
simulation = { clients = 12, max_time = 20 }
compute = { device = "cpu", trainer = "serial", workers = 1 }
"""


def test_a_sweep_whose_driver_is_killed_goes_on(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "rates.toml").write_text(SWEEP)
    checked = fedast("cluster", "check", cluster.address, "--json", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["runs_at_a_time"] == 3
    command = ["sweep", "rates.toml", "--on", "ray", "--address", cluster.address, "--out", "ray"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedast", *command], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    while not any((tmp_path / "ray").glob("trial-*/seed-*/result.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    limit = time.monotonic() + 120
    while (done := fedast(*command, cwd=tmp_path)).returncode == 2 and time.monotonic() < limit:
        assert "another fedast command is using" in done.stderr  # Ray has not ended its runs yet
    assert done.returncode == 0, done.stderr
    local = fedast("sweep", "rates.toml", "--out", "local", "--jobs", "1", cwd=tmp_path)
    assert local.returncode == 0, local.stderr
    mine, theirs = read_trials(tmp_path / "ray"), read_trials(tmp_path / "local")
    assert {n: trial.value for n, trial in mine.items()} == {
        n: trial.value for n, trial in theirs.items()
    }


def test_nobody_answers(tmp_path: Path) -> None:
    done = fedast("cluster", "check", "127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "no Ray answers at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
