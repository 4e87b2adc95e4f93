"""A run that did not end as asked does not look like success; and no command is silent for long."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedast.cli.ends import end_style, ending_lines, missed
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.config.schema import RunConfig
from fedast.records.run import RunResult, TaskResult
from tests.cli.command import fedast

QUICK = str(Path(__file__).parents[2] / "examples" / "quickstart.toml")
SHORT = ("--set", "simulation.max_time=3", "--set", "simulation.clients=30", "--trainer", "serial")


def config(tmp_path: Path, target: str = "target = 0.5", until: str = "each") -> RunConfig:
    path = tmp_path / "run.toml"
    limits = f'max_time = 9\nuntil = "{until}"\n'
    path.write_text(f'[simulation]\n{limits}[[tasks]]\nuse = "synthetic"\n{target}\n')
    return resolve(load(path))


def result(reason: str, *, reached: float | None = None, held: float | None = None) -> RunResult:
    task = TaskResult("accuracy", reached, 0.25, 1.0, 3, 9, 1.0, 2, reason, time_held=held)
    return RunResult("fedast-d", 0, {"synthetic": task}, 9.0, 1.0, 9.0)


def test_what_counts_as_missed(tmp_path: Path) -> None:
    asked = config(tmp_path)
    late = {"synthetic": "time limit at 0.250, target 0.5"}
    assert missed(result("time"), asked) == late
    assert missed(result("rounds"), asked) == {"synthetic": "round limit at 0.250, target 0.5"}
    assert missed(result("diverged"), asked) == {"synthetic": "diverged"}
    assert missed(result("target", reached=3.0), asked) == {}
    assert missed(result("removed"), asked) == {}
    # Where no target is to be reached, the end of time is the end that was asked for.
    for free in (config(tmp_path, until="time"),):
        assert missed(result("time"), free) == {}
        assert missed(result("diverged"), free) == {"synthetic": "diverged"}
    held = config(tmp_path, until="held")
    assert missed(result("time", reached=3.0), held) == late
    assert missed(result("time", reached=3.0, held=8.0), held) == {}


def test_words_and_colours(tmp_path: Path) -> None:
    (line,) = ending_lines(result("time"), config(tmp_path))
    assert line == "TARGET MISSED: synthetic (time limit at 0.250, target 0.5)"
    (line,) = ending_lines(result("diverged"), config(tmp_path))
    assert line.startswith("DIVERGED: synthetic; lower client_lr")
    assert end_style("target", reached=True, wanted=True) == "green"
    assert end_style("time", reached=False, wanted=True) == "yellow"
    assert end_style("time", reached=False, wanted=False) == ""
    assert end_style("diverged", reached=True, wanted=True) == "bold red"


@pytest.mark.parametrize(
    ("settings", "status", "word"),
    [
        ((), 3, "TARGET MISSED: digits-mlp (time limit at"),
        (("simulation.until=time",), 0, ""),
        (("tasks.0.target=0.01", "tasks.1.target=0.01"), 0, ""),
        (("simulation.until=time", "tasks.0.client_lr=1e6"), 3, "DIVERGED: digits-mlp"),
    ],
)
def test_exit_codes_of_run(settings: tuple[str, ...], status: int, word: str) -> None:
    chosen = [part for setting in settings for part in ("--set", setting)]
    done = fedast("run", QUICK, *SHORT, *chosen, "--quiet")
    assert done.returncode == status, done.stdout + done.stderr
    assert word in done.stdout
    assert done.stderr == ""
    if status == 0:
        assert not {"MISSED", "DIVERGED"} & set(done.stdout.replace(":", " ").split())


def test_compare_tells_of_divergence_and_ends_well() -> None:
    """A comparison of methods of which one diverges is a comparison all the same."""
    done = fedast(
        "compare", QUICK, *SHORT, "--algorithm", "fedast-d", "--seeds", "1",
        "--set", "tasks.0.client_lr=1e6",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning: fedast-d: diverged: digits-mlp (seed 1)" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", QUICK, *SHORT),
        ("compare", QUICK, *SHORT, "--seeds", "1"),
        ("bench", "--seconds", "0.01"),
        ("federation", "up", "nowhere"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_something_is_said_at_once(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Before torch, pydantic or rich are loaded, that is in the time Python and click take."""
    program = (
        "import sys\n"
        "from fedast.cli import starting\n"
        "from fedast.cli.main import main\n"
        "told = starting.click.echo\n"
        "def tell(text, **how):\n"
        "    heavy = {'torch', 'pydantic', 'rich', 'numpy', 'nats'} & set(sys.modules)\n"
        "    told(f'{text} after {sorted(heavy)}', **how)\n"
        "    sys.exit(0)\n"
        "starting.click.echo = tell\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.stderr.strip().endswith("... after []"), done.stderr
    assert done.stdout == ""


def test_quiet_and_json_stay_so() -> None:
    began = time.monotonic()
    for option in ("--quiet", "--json"):
        done = subprocess.run(
            [sys.executable, "-m", "fedast", "theory", QUICK, "--json"]
            if option == "--json"
            else [sys.executable, "-m", "fedast", "run", QUICK, *SHORT, option],
            capture_output=True, text=True, timeout=240, env={**os.environ, "COLUMNS": "80"},
        )  # fmt: skip
        assert done.stderr == "", time.monotonic() - began
