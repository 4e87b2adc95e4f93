"""What every executor must keep to.

- A run gives what it gives alone, wherever it is carried out: the same result and the same files,
  which are in its folder when ``done`` is called. Results come in the order of the runs.
- Runs are taken from their iterator as there is room, not before.
- With ``failed``, a run that fails does not end the others, and its error says what happened.
- ``prune`` ends one run early; ``stop`` ends all, and raises ``Interrupted``. Both leave records,
  and with checkpoints something to go on from, to the same result.
- A run whose worker is killed is begun again (where ``survives`` is said of the executor), and
  with checkpoints not from its start.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from fedast.config.load import parse
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.records.run import read_run
from fedast.run.batch import BatchRun, Interrupted, Pulse
from fedast.run.execute import execute
from fedast.run.executors import EXECUTORS, Executor, ExecutorOptions

_TASK = """
    import os, signal
    from pathlib import Path

    import numpy as np
    import torch
    from torch import nn
    from fedast import Goal, Task, Training

    class Net(nn.Linear):
        def __init__(self, trouble, place):
            super().__init__(2, 2)
            self.trouble, self.place, self.steps = trouble, Path(place), 0

        def forward(self, x):
            self.steps += self.training
            if self.trouble == "raise" and self.steps > 3:
                raise RuntimeError("out of luck")
            if self.trouble == "kill" and self.steps > 60 and not (self.place / "killed").exists():
                (self.place / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "count" and self.training:
                with (self.place / "steps").open("a") as file:
                    file.write(".")
            return super().forward(x)

    def make(clients, seed, *, rounds=30, trouble="", place="."):
        values = np.random.default_rng(seed).normal(size=(40, 2)).astype(np.float32)
        labels = (values[:, 0] > 0).astype(np.int64)
        return Task(
            name="small", model=lambda: Net(trouble, place), train=(values, labels),
            test=(values, labels), partition=np.array_split(np.arange(40), clients),
            training=Training(local_steps=2, batch_size=4, client_lr=0.1),
            goal=Goal(max_rounds=rounds, evaluate_every=5),
        )
"""


def executor_contract(executor: Any, *, survives: bool = True) -> type[ExecutorContract]:
    """The suite for an executor: its options, or its name. ``survives``: a run whose process is
    killed is begun again."""
    fields = {"options": EXECUTORS.parse(executor, "executor"), "survives": survives}
    return type("TestExecutor", (ExecutorContract,), fields)


def small_config(folder: Path, seed: int, **options: Any) -> RunConfig:
    folder.mkdir(exist_ok=True)
    (folder / "contract_task.py").write_text(textwrap.dedent(_TASK), encoding="utf-8")
    table = {
        "seed": seed,
        "path": [str(folder)],
        "simulation": {"clients": 4},
        "algorithm": {"name": "fedast-s", "requests": 4, "ratio": 2},
        "compute": {"device": "cpu", "trainer": "serial", "workers": 1},
        "tasks": [
            {"use": "contract_task:make", "options": {"place": str(folder), **options}},
        ],
    }
    return resolve(parse(table, folder), folder)


class ExecutorContract:
    options: ClassVar[ExecutorOptions]
    survives: ClassVar[bool]

    @property
    def executor(self) -> Executor:
        return self.options.build()

    def test_a_run_is_what_it_is_alone(self, tmp_path: Path) -> None:
        task, out = tmp_path / "task", tmp_path / "out"
        runs = [BatchRun(f"run {n}", small_config(task, n), out / str(n)) for n in range(3)]
        here: dict[int, bool] = {}
        pulses: list[Pulse] = []
        results = self.executor(
            runs,
            jobs=2,
            events=True,
            done=lambda number, result, compute: here.update(
                {number: (out / str(number) / "result.json").exists()}
            ),
            progress=pulses.append,
        )
        assert [result.seed for result in results] == [0, 1, 2]
        assert here == {0: True, 1: True, 2: True}
        assert {pulse.run for pulse in pulses} == {0, 1, 2}
        for run, result in zip(runs, results, strict=True):
            assert run.out is not None
            execute(run.config, tmp_path / "alone", events=True, overwrite=True)
            assert read_run(run.out).tasks == result.tasks
            for name in ("curves.csv", "events.jsonl"):
                mine, alone = run.out / name, tmp_path / "alone" / name
                assert mine.read_bytes() == alone.read_bytes(), name
            model = "models/small.safetensors"
            tensors, others = load_file(run.out / model), load_file(tmp_path / "alone" / model)
            assert tensors.keys() == others.keys()
            assert all(torch.equal(tensors[key], others[key]) for key in tensors)

    def test_runs_are_taken_when_there_is_room(self, tmp_path: Path) -> None:
        ended = 0
        ahead: list[int] = []

        def coming() -> Iterator[BatchRun]:
            for number in range(4):
                ahead.append(number - ended)
                yield BatchRun("run", small_config(tmp_path / "task", number, rounds=2), None)

        def done(number: int, result: Any, compute: Any) -> None:
            nonlocal ended
            ended += 1

        assert len(self.executor(coming(), jobs=2, done=done)) == 4
        assert max(ahead) <= 1, "two are under way at most"

    def test_one_that_fails_does_not_end_the_others(self, tmp_path: Path) -> None:
        runs = [
            BatchRun("bad", small_config(tmp_path / "task", 0, trouble="raise"), None),
            BatchRun("good", small_config(tmp_path / "task", 1), None),
        ]
        failed: dict[int, Exception] = {}
        results = self.executor(
            runs, jobs=1, failed=lambda number, error: failed.update({number: error})
        )
        assert [result.seed for result in results] == [1]
        assert list(failed) == [0]
        assert "out of luck" in str(failed[0])
        with pytest.raises(Exception, match="out of luck"):
            self.executor(runs, jobs=1)

    def test_one_that_is_pruned_ends_with_what_it_has(self, tmp_path: Path) -> None:
        endless = small_config(tmp_path / "task", 0, rounds=10**6)
        other = small_config(tmp_path / "task", 1)
        begun: set[int] = set()
        results = self.executor(
            [BatchRun("a", endless, tmp_path / "a"), BatchRun("b", other, tmp_path / "b")],
            jobs=2,
            progress=lambda pulse: begun.add(pulse.run),
            prune=lambda number: number == 0 and 0 in begun,
        )
        assert [result.interrupted for result in results] == [True, False]
        assert read_run(tmp_path / "a").interrupted

    def test_all_stop_and_go_on_to_the_same_result(self, tmp_path: Path) -> None:
        config = small_config(tmp_path / "task", 0, rounds=2000)
        run = BatchRun("run", config, tmp_path / "out", every="60s")
        begun: list[Pulse] = []
        with pytest.raises(Interrupted):
            self.executor([run], jobs=1, progress=begun.append, stop=lambda: bool(begun))
        assert read_run(tmp_path / "out").interrupted
        assert any((tmp_path / "out" / "checkpoints").glob("*.json"))
        self.executor([replace(run, resume=True)], jobs=1)
        execute(config, tmp_path / "alone")
        mine = (tmp_path / "out" / "curves.csv").read_bytes()
        assert mine == (tmp_path / "alone" / "curves.csv").read_bytes()

    def test_one_whose_worker_is_killed_is_begun_again(self, tmp_path: Path) -> None:
        if not self.survives:
            pytest.skip("this executor says that the run has failed")
        config = small_config(tmp_path / "task", 0, rounds=200, trouble="kill")
        said: list[str] = []
        run = BatchRun("run", config, tmp_path / "out", every="5")
        (result,) = self.executor([run], jobs=1, say=said.append)
        assert not result.interrupted
        assert (tmp_path / "task" / "killed").exists()
        assert len(said) == 1
        assert said[0].startswith("run: ")
        execute(config, tmp_path / "alone")
        mine = (tmp_path / "out" / "curves.csv").read_bytes()
        assert mine == (tmp_path / "alone" / "curves.csv").read_bytes()
