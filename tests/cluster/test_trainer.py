"""One run over Ray's actors: the contract of trainers, and the same bytes whatever happens."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.run.execute import execute
from fedast.testing import trainer_contract
from fedast.training.options import OnRay

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

TestRayTrainer = trainer_contract(OnRay(actors=2, shard=2))

QUICK = Path(__file__).parents[2] / "examples" / "quickstart.toml"


def run(out: Path, trainer: str) -> dict[str, bytes]:
    settings = ("simulation.clients=30", "simulation.max_time=25", f"compute.trainer={trainer}",
                "compute.device=cpu")  # fmt: skip
    execute(resolve(load(QUICK, settings), QUICK.parent), out, events=True)
    return {name: (out / name).read_bytes() for name in ("events.jsonl", "curves.csv")}


def actors() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"])
            if "ray::TrainingActor" in " ".join(p.info["cmdline"] or ())]  # fmt: skip


def test_any_number_of_actors_and_any_of_them_killed(tmp_path: Path) -> None:
    alone = run(tmp_path / "1", '{name="ray", actors=1}')
    assert run(tmp_path / "2", '{name="ray", actors=2, shard=3}') == alone
    over = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not over.wait(1.0):
            found = actors()
            if found and len(killed) < 4:
                os.kill(found[-1].pid, signal.SIGKILL)
                killed.append(found[-1].pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        hurt = run(tmp_path / "3", '{name="ray", actors=2}')
    finally:
        over.set()
        thread.join()
    assert killed
    assert hurt == alone
