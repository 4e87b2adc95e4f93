"""One run over Ray's actors: the contract of trainers, and the same bytes whatever happens."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.run.execute import execute, resume
from fedast.testing import trainer_contract
from fedast.testing.trainers import SEED, _jobs, _task
from fedast.training.options import OnRay
from fedast.training.ray_trainer import RayTrainer
from fedast.training.trainer import DeviceTask, Job
from tests.cluster.conftest import SMALL

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

TestRayTrainer = trainer_contract(OnRay(actors=2, shard=2))
TestBatchesOnRay = trainer_contract(OnRay(actors=2, shard=3, together=True))

QUICK = Path(__file__).parents[2] / "examples" / "quickstart.toml"
SAME = ("events.jsonl", "curves.csv", "models/digits-mlp.safetensors",
        "models/synthetic.safetensors")  # fmt: skip


def settings(trainer: str, until: float) -> tuple[str, ...]:
    return ("simulation.clients=30", f"simulation.max_time={until}", f"compute.trainer={trainer}",
            "compute.device=cpu", "compute.workers=2")  # fmt: skip


def run(out: Path, trainer: str, until: float = 25, **options: Any) -> dict[str, bytes]:
    config = resolve(load(QUICK, settings(trainer, until)), QUICK.parent)
    execute(config, out, events=True, **options)
    return {name: (out / name).read_bytes() for name in SAME}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """With the trainer of processes on this machine."""
    return run(tmp_path_factory.mktemp("alone") / "run", "processes")


def actors() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"])
            if "ray::TrainingActor" in " ".join(p.info["cmdline"] or ())]  # fmt: skip


@contextmanager
def killing(every: float, most: int) -> Iterator[list[int]]:
    """Kill some actor again and again, at odd moments."""
    over = threading.Event()
    killed: list[int] = []
    draw = random.Random(1)

    def kill() -> None:
        while len(killed) < most and not over.wait(draw.uniform(0.2, 1.8) * every):
            found = actors()
            if found:
                os.kill(draw.choice(found).pid, signal.SIGKILL)
                killed.append(1)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("actors", "shard"), [(1, 4), (2, 3)])
def test_any_number_of_actors(
    actors: int, shard: int, alone: dict[str, bytes], tmp_path: Path
) -> None:
    assert run(tmp_path / "run", f'{{name="ray", actors={actors}, shard={shard}}}') == alone


def test_sixteen_actors(cluster: Any, alone: dict[str, bytes], tmp_path: Path) -> None:
    nodes = [cluster.add_node(**{**SMALL, "num_cpus": 8}) for _ in range(2)]
    try:
        assert run(tmp_path / "run", '{name="ray", actors=16}') == alone
    finally:
        for node in nodes:
            cluster.remove_node(node)


def test_actors_are_killed_at_any_moment(alone: dict[str, bytes], tmp_path: Path) -> None:
    with killing(every=0.3, most=6) as killed:
        hurt = run(tmp_path / "run", '{name="ray", actors=2}')
    assert killed
    assert hurt == alone


def test_a_node_is_killed(cluster: Any, alone: dict[str, bytes], tmp_path: Path) -> None:
    doomed = cluster.add_node(**{**SMALL, "num_cpus": 4})
    log = tmp_path / "run" / "events.jsonl"

    def kill() -> None:
        while not (log.exists() and log.stat().st_size > 10_000):
            time.sleep(0.02)
        cluster.remove_node(doomed, allow_graceful=False)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    assert run(tmp_path / "run", '{name="ray", actors=6}') == alone
    thread.join(timeout=30)
    assert doomed not in cluster.list_all_nodes()


def test_batches_do_not_depend_on_the_actors_nor_on_a_resumption(tmp_path: Path) -> None:
    """As on GPUs, where rounding depends on what is trained together."""
    trainer = '{{name="ray", actors={}, shard=5, together=true}}'
    one = run(tmp_path / "1", trainer.format(1))
    with killing(every=1.5, most=2):
        assert run(tmp_path / "3", trainer.format(3)) == one
    from fedast.run.checkpointing import Every

    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 120

    run(tmp_path / "2", trainer.format(2), stop=stop, every=Every.parse("1000"))
    resume(tmp_path / "2")
    assert {name: (tmp_path / "2" / name).read_bytes() for name in SAME} == one


def test_a_version_goes_to_an_actor_once() -> None:
    device_tasks = {kind: DeviceTask.build(_task(kind), SEED, torch.device("cpu"))
                    for kind in ("plain", "normalized")}  # fmt: skip
    trainer = RayTrainer(device_tasks, SEED, actors=1, shard=2)
    try:
        bases = [device_tasks["plain"].model.read() + number for number in range(3)]
        jobs = [Job(number, number % 4, bases[number % 3], 0) for number in range(24)]
        trainer.plan([("plain", job) for job in jobs])
        first = trainer.train("plain", jobs[:12])
        trainer.plan([("plain", job) for job in jobs[12:]])
        trainer.train("plain", jobs[12:])
        assert trainer.sent["versions"] == 3
        assert trainer.sent["messages"] <= 24
        again = trainer.train("plain", jobs[:12])
        assert all(torch.equal(a.delta, b.delta) for a, b in zip(first, again, strict=True))
        assert trainer.sent["versions"] == 3
    finally:
        trainer.close()


def test_what_is_planned_is_trained_before_it_is_wanted() -> None:
    device_tasks = {kind: DeviceTask.build(_task(kind), SEED, torch.device("cpu"))
                    for kind in ("plain", "dropout")}  # fmt: skip
    trainer = RayTrainer(device_tasks, SEED, actors=1, shard=4)
    try:
        other = _jobs(device_tasks["dropout"], 4)
        (job,) = _jobs(device_tasks["plain"], 1)
        trainer.plan([("plain", job), *(("dropout", later) for later in other)])
        trainer.train("plain", [job])
        deadline = time.monotonic() + 60
        while trainer._running and time.monotonic() < deadline:
            trainer._step(timeout=1.0)
        before = trainer.sent["messages"]
        assert len(trainer.train("dropout", other)) == 4
        assert trainer.sent["messages"] == before
    finally:
        trainer.close()
