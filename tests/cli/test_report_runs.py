"""``fedast report`` and ``fedast.plot`` of the folders that ``run`` and ``compare`` leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedast import plot
from fedast.records.metrics import Point
from fedast.records.run import RunResult, TaskResult, write_result
from tests.cli.command import fedast, refused


def record(folder: Path, algorithm: str, seed: int, reached: float | None) -> None:
    folder.mkdir(parents=True)
    curve = tuple(Point(float(t), t, 0.1 * t, 1.0 / (t + 1)) for t in range(5))
    task = TaskResult("accuracy", reached, 0.4, 0.2, 4, 9, 1.0, 2, "target", curve=curve)
    write_result(folder, RunResult(algorithm, seed, {"wine": task}, 4.0, 1.0, 9.0))
    (folder / "config.toml").write_text(
        f'seed = {seed}\n[algorithm]\nname = "{algorithm}"\n[[tasks]]\nuse = "synthetic"\n'
        'name = "wine"\ntarget = 0.3\n'
    )


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    for seed in (1, 2):
        record(tmp_path / "both" / "sync-st" / f"seed-{seed}", "sync-st", seed, 4.0)
        record(tmp_path / "both" / "fedast-d" / f"seed-{seed}", "fedast-d", seed, 3.0)
    (tmp_path / "both" / "comparison.json").write_text('{"baseline": "sync-st"}')
    return tmp_path / "both"


def test_report_of_a_comparison(comparison: Path) -> None:
    done = fedast("report", str(comparison))
    assert done.returncode == 0, done.stderr
    assert "25.0 %" in done.stdout  # 3 against 4, the baseline that the comparison had
    page = (comparison / "report.html").read_text()
    assert "FedAST(D)" in page
    assert page.count("data:image/png") == 2
    assert {p.name for p in (comparison / "figures").iterdir()} >= {
        "runs-curves.png", "runs-times.pdf",
    }  # fmt: skip
    found = json.loads(fedast("report", str(comparison), "--json").stdout)
    assert found["baseline"] == "Sync-ST"
    assert "leave it out" in refused("report", str(comparison), "heterogeneous")


def test_report_of_one_run(tmp_path: Path) -> None:
    record(tmp_path / "run", "fedast-d", 1, None)
    done = fedast("report", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "wine" in done.stdout
    assert (tmp_path / "run" / "figures" / "runs-curves.svg").is_file()
    assert "fedast reproduce" in refused("report", str(tmp_path / "nothing"))


def test_plot_takes_a_folder(comparison: Path) -> None:
    assert plot.curves(comparison).axes
    assert plot.times(str(comparison)).axes
