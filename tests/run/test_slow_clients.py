"""The example of a world where speed goes with data."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "slow_clients.py"


def test_it_reports_participation_and_accuracy_by_speed_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = importlib.util.spec_from_file_location("slow_clients", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(["--clients", "40", "--time", "6"])
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split("; ")[0] for row in rows] == list(example.METHODS)
    for row in rows:
        _, _, asked, weights, accuracy = row.split("; ")
        assert all(0 < float(x) < 3 for x in (*asked.split(), *weights.split()))
        assert all(0 < float(x) <= 1 for x in accuracy.split()[1:])

    task = example.build_task(example.TASKS.parse("digits-mlp", "tasks"), 40, 1, "t")
    groups = [np.arange(0, 10), np.arange(10, 30), np.arange(30, 40)]
    _, shares = example.sorted_by_speed(task, groups)
    mean = [share @ np.arange(10) for share in shares]
    assert mean[0] < mean[1] - 1 < mean[2] - 2, "slow clients have the first classes"
