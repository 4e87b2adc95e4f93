"""Runs that share a device and run out of its memory: fewer at a time, and all are done."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.run.batch import BatchRun, default_jobs, run_batch
from fedast.tasks.task import TrainingFailed

CROWDED = """
    import os, time
    from pathlib import Path
    import numpy as np, torch
    from torch import nn
    from fedast import Goal, Task, Training

    def alive(number):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return False
        return True

    class Net(nn.Linear):
        '''A device with room for this many processes; a process frees its place when it ends.'''

        def __init__(self, room, place):
            super().__init__(2, 2)
            self.room, self.place = room, Path(place)

        def forward(self, x):
            if self.training:
                (self.place / str(os.getpid())).touch()
                others = [int(file.name) for file in self.place.iterdir()]
                if sum(map(alive, others)) > self.room:
                    raise torch.OutOfMemoryError("CUDA out of memory")
                time.sleep(0.005)
            return super().forward(x)

    def make(clients, seed, *, room, place):
        values = np.random.default_rng(seed).normal(size=(40, 2)).astype(np.float32)
        labels = (values[:, 0] > 0).astype(np.int64)
        parts = np.array_split(np.arange(40), clients)
        return Task(
            name="crowded", model=lambda: Net(room, place), train=(values, labels),
            test=(values, labels), partition=parts,
            training=Training(local_steps=2, batch_size=4, client_lr=0.1),
            goal=Goal(max_rounds=30),
        )
"""


def crowded(folder: Path, room: int) -> RunConfig:
    folder.mkdir()
    (folder / "crowded.py").write_text(textwrap.dedent(CROWDED))
    (folder / "place").mkdir()
    path = folder / "run.toml"
    path.write_text(
        "[simulation]\nclients = 4\n[algorithm]\nname = 'fedast-s'\nrequests = 4\nratio = 2\n"
        "[compute]\ndevice = 'cpu'\ntrainer = 'serial'\n"
        "[[tasks]]\ntask = 'crowded:make'\n"
        f"options = {{ room = {room}, place = '{folder / 'place'}' }}\n"
    )
    return resolve(load(path), folder)


def runs_of(config: RunConfig, count: int, out: Path | None = None) -> list[BatchRun]:
    return [
        BatchRun(
            f"run {seed}",
            config.model_copy(update={"seed": seed}),
            None if out is None else out / str(seed),
        )
        for seed in range(count)
    ]


@pytest.mark.parametrize("room", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_runs_that_do_not_fit_beside_each_other_are_put_back(tmp_path: Path, room: int) -> None:
    config = crowded(tmp_path / "task", room)
    said: list[str] = []
    done: list[int] = []
    results = run_batch(
        runs_of(config, 4, tmp_path / "out"),
        jobs=3,
        done=lambda number, result, compute: done.append(number),
        say=said.append,
    )
    assert [result.seed for result in results] == [0, 1, 2, 3]
    assert sorted(done) == [0, 1, 2, 3]
    assert not any(result.interrupted for result in results)
    assert said
    assert all("out of memory" in text and "\n" not in text for text in said)
    alone = run_batch(runs_of(crowded(tmp_path / "alone", 1), 4), jobs=1)
    assert [result.tasks for result in results] == [result.tasks for result in alone]


def test_a_run_that_does_not_even_fit_alone_fails(tmp_path: Path) -> None:
    config = crowded(tmp_path / "task", 0)
    failed: dict[int, Exception] = {}
    said: list[str] = []
    results = run_batch(
        runs_of(config, 2),
        jobs=2,
        failed=lambda number, error: failed.update({number: error}),
        say=said.append,
    )
    assert results == []
    assert sorted(failed) == [0, 1]
    assert all("out of memory" in str(error) for error in failed.values())
    assert said
    with pytest.raises(TrainingFailed, match="out of memory"):
        run_batch(runs_of(config, 1), jobs=1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="not on this system")
def test_runs_are_as_many_as_cores_that_may_be_used() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert default_jobs() == 1
    finally:
        os.sched_setaffinity(0, before)
