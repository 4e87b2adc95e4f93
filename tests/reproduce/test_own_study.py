"""A study of one's own needs none of the paper's fields, and shows its numbers."""

from __future__ import annotations

from pathlib import Path

from fedast.reproduce.load import load_study
from tests.reproduce.support import fedast

OWN = """
seeds = 2

[base]
tasks = [{ use = "synthetic", target = 0.2 }]

[base.simulation]
clients = 30
max_time = 6

[[axes]]
name = "clients' learning rate"
values = [
  { label = "0.02", set = { each = { client_lr = 0.02 } } },
  { label = "0.05", set = { each = { client_lr = 0.05 } } },
]
"""


def test_a_study_without_the_papers_fields(tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    path.write_text(OWN)
    study = load_study(path)
    assert study.config.title == "rates"
    assert [axis.role for axis in study.axes] == ["series"]
    out = tmp_path / "out"
    done = fedast("reproduce", path, "--out", out, "--jobs", "1", "--quiet")
    assert done.exit_code == 0, done.output
    done = fedast("report", out, path)
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines() if " synthetic " in line]
    assert [row[0] for row in rows] == ["0.02", "0.05"]
    assert all(row[-1] == "2" and "accuracy" in row for row in rows)
    page = (out / "report.html").read_text()
    assert "time to target" in page
    assert "In the paper:" not in page
