"""A learner whose trainer works ahead: what it is told, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.learner.local import LocalLearner
from fedast.run.checkpointing import Every
from fedast.run.execute import execute, resume
from fedast.tasks.dataset import Arrays, Windows
from fedast.training.trainer import Job, SerialTrainer, Update
from tests.learner.test_learner import CPU, shift_task

QUICK = Path(__file__).parents[2] / "examples" / "quickstart.toml"
TOLD: list[list[tuple[str, int]]] = []
SPREAD: list[str] = []


class Eager:
    """Trains all that is planned at once, and pieces of evaluations when it is asked to."""

    def __init__(self, device_tasks: Any, seed: int) -> None:
        self._device_tasks = device_tasks
        self._trainer = SerialTrainer(device_tasks, seed)
        self._found: dict[tuple[str, int], Update] = {}
        self._kept: dict[Any, Any] = {"precision": "fp32"}

    def limit(self, task: str) -> int:
        return 8

    def ahead(self, task: str) -> bool:
        return True

    def plan(self, jobs: Sequence[tuple[str, Job]]) -> None:
        TOLD.append([(task, job.request) for task, job in jobs])
        for task, job in jobs:
            if (task, job.request) not in self._found:
                self._found[task, job.request] = self._trainer.train(task, [job])[0]

    def bound(self, task: str) -> list[int]:
        return [request for name, request in self._found if name == task]

    def train(self, task: str, jobs: Sequence[Job]) -> list[Update]:
        return [self._found.pop((task, job.request)) for job in jobs]

    def spread(self, task: str, model: Any, function: Any, pieces: Sequence[Any]) -> list[Any]:
        SPREAD.append(task)
        return [function(self._device_tasks[task], model, piece, self._kept) for piece in pieces]

    def close(self) -> None:
        pass


def test_all_open_requests_are_planned_before_one_is_trained() -> None:
    TOLD.clear()
    plane = LocalLearner(
        [shift_task([3.0, -1.0])], {"shift": 0.4}, seed=0, device=CPU, variance_window=2,
        trainer=Eager,
    )  # fmt: skip
    for request in range(3):
        plane.dispatch(request, "shift", request % 2, version=0)
    assert TOLD == [], "nobody has asked for a value"
    plane.accept(1, "shift")
    plane.aggregate("shift", (1,))
    assert TOLD == [[("shift", 0), ("shift", 1), ("shift", 2)]]
    assert plane.open_updates()[0] is None, "only what is wanted is taken"
    plane.state()
    assert plane.open_updates()[0] is not None, "what is bound must be in a checkpoint"


def run(out: Path, trainer: str, until: float, **options: Any) -> dict[str, bytes]:
    wanted = ("simulation.clients=20", f"simulation.max_time={until}", "compute.device=cpu",
              f"compute.trainer={trainer}")  # fmt: skip
    execute(resolve(load(QUICK, wanted), QUICK.parent), out, events=True, **options)
    return {name: (out / name).read_bytes() for name in ("events.jsonl", "curves.csv")}


def test_a_run_is_the_same_and_a_replay_plans_nothing(tmp_path: Path) -> None:
    SPREAD.clear()
    mine = "tests.learner.test_ahead:Eager"
    wanted = run(tmp_path / "serial", "serial", 8)
    assert run(tmp_path / "eager", mine, 8) == wanted
    assert set(SPREAD) == {"digits-mlp", "synthetic"}
    TOLD.clear()

    def stop() -> bool:
        return len(TOLD) > 3

    out = tmp_path / "stopped"
    run(out, mine, 8, stop=stop, every=Every.parse("1000"))
    TOLD.clear()
    resume(out)
    first = min(request for plan in TOLD for _, request in plan)
    assert first > 0, "the first requests were trained before"
    assert {name: (out / name).read_bytes() for name in wanted} == wanted


def test_datasets_can_be_pickled_with_little_memory() -> None:
    import pickle

    labels = torch.arange(4)
    data = Arrays((torch.randn(4, 2), {"a": torch.ones(4, 1)}["a"]), labels)
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.inputs[0], data.inputs[0])
    assert torch.equal(again.labels, labels)
    text = Windows(torch.arange(9, dtype=torch.uint8), torch.arange(3), 5)
    assert torch.equal(pickle.loads(pickle.dumps(text)).codes, text.codes)
    buffers: list[Any] = []
    thin = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 3, "arrays travel beside the pickle, where they can be shared"
    read_only = [memoryview(bytes(buffer.raw())) for buffer in buffers]
    shared = pickle.loads(thin, buffers=read_only)
    assert np.array_equal(shared.batch(torch.tensor([1, 2]))[1].numpy(), [1, 2])
