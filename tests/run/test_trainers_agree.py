"""A run is the same run whatever trains it: one schedule, and models that differ by rounding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.run.execute import execute
from fedast.run.simulate import Outcome

EXAMPLES = Path(__file__).parents[2] / "examples"
MEASURED = ("value", "loss", "variances")


def run(out: Path, algorithm: str, *settings: str) -> tuple[list[dict[str, object]], Outcome]:
    path = EXAMPLES / "quickstart.toml"
    usual = (
        f"simulation.max_time={25 if algorithm == 'sync-st' else 6}",
        "simulation.clients=30",
        "tasks.0.target=1.0",  # no decision hangs on the last digit of an accuracy
        "tasks.1.target=1.0",
    )
    config = resolve(load(path, (*usual, *settings), algorithm=algorithm), path.parent)
    outcome = execute(config, out, events=True)
    lines = (out / "events.jsonl").read_text().splitlines()
    schedule = [
        {key: value for key, value in json.loads(line).items() if key not in MEASURED}
        for line in lines
    ]
    return schedule, outcome


@pytest.mark.parametrize("algorithm", ["fedast-s", "sync-st", "fedbuff"])
@pytest.mark.parametrize(
    "settings",
    [
        ("compute.trainer=batched",),
        ("compute.trainer=batched", "compute.batch_limit=4"),
        ("compute.trainer=processes", "compute.workers=2"),
    ],
)
def test_the_schedule_is_that_of_the_serial_trainer(
    tmp_path: Path, algorithm: str, settings: tuple[str, ...]
) -> None:
    serial, wanted = run(tmp_path / "serial", algorithm, "compute.trainer=serial")
    other, found = run(tmp_path / "other", algorithm, *settings)
    assert other == serial
    assert len(serial) > 100
    for task, model in wanted.models.items():
        one, two = (
            torch.cat([p.detach().flatten() for p in m.parameters()])
            for m in (model, found.models[task])
        )
        assert float((one - two).norm() / one.norm()) < 1e-4


def test_what_a_calibration_chose_is_in_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedast.run.compute.available_cores", lambda: 2)
    run(tmp_path / "first", "fedast-d")
    config = load(tmp_path / "first" / "config.toml")
    assert set(config.compute.trainers) == {"digits-mlp", "synthetic"}
    assert config.compute.workers == 2
    again = resolve(config, tmp_path / "first")
    execute(again, tmp_path / "second", events=True)
    logs = [(tmp_path / part / "events.jsonl").read_bytes() for part in ("first", "second")]
    assert logs[0] == logs[1]
