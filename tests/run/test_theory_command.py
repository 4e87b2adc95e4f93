"""``fedast theory``: the simulated round times beside the model's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedast.algorithms.theory import Problem
from fedast.cli.main import cli
from fedast.config.load import load
from fedast.config.resolve import resolve
from fedast.parts.errors import ConfigError
from fedast.run.theory import theory

EXAMPLES = Path(__file__).parents[2] / "examples"


def config(*settings: str) -> tuple[str, list[str]]:
    options = [part for setting in settings for part in ("--set", setting)]
    return str(EXAMPLES / "quickstart.toml"), options


def test_where_nobody_queues_the_model_is_the_simulation() -> None:
    """Many clients, all alike, always there: a round takes b / (R lambda), whatever the delays."""
    path = EXAMPLES / "quickstart.toml"
    settings = [
        "algorithm.requests=40",
        "algorithm.ratio=10",
        "simulation.clients=2000",
        "simulation.availability={model='always'}",
        "simulation.speeds={factors=[1.0], shares=[1.0]}",
    ]
    loaded = resolve(load(path, settings, algorithm="fedast-s"), path.parent)
    found = theory(loaded, Problem(), rounds=100, updates=8000)
    assert len(found.tasks) == 2
    for task in found.tasks:
        assert task.simulated_round == pytest.approx(task.model_round, rel=0.05)
        ratio = task.setting.active_requests / task.setting.buffer_size
        assert task.simulated_staleness == pytest.approx(ratio, rel=0.15)


def test_the_command_prints_tables_and_json() -> None:
    path, options = config("algorithm.name=fedast-s")
    shown = CliRunner().invoke(cli, ["theory", path, *options])
    assert shown.exit_code == 0
    assert "Theorem 1 (option S)" in shown.output
    assert "Corollary 1: rates" in shown.output
    asked = CliRunner().invoke(cli, ["theory", path, "--json", "--smoothness", "2"])
    table = json.loads(asked.output)
    assert {task["name"] for task in table["tasks"]} == {"digits-mlp", "synthetic"}
    assert table["simulated_sync"] >= table["simulated_sync_first_k"] > 0


def test_it_is_about_asynchronous_algorithms() -> None:
    path = EXAMPLES / "quickstart.toml"
    loaded = resolve(load(path, (), algorithm="sync-st"), path.parent)
    with pytest.raises(ConfigError, match="the analysis is of FedAST"):
        theory(loaded, Problem(), 10)


def test_the_dynamic_option_has_its_own_theorem() -> None:
    """Two tasks with R = 20 and b = 2: b moves from 1 (R = 10) to 4 (R = 40)."""
    path, options = config()
    shown = CliRunner().invoke(cli, ["theory", path, *options])
    assert "option D" in shown.output
    assert "Corollary 1: rates" not in shown.output
    table = json.loads(CliRunner().invoke(cli, ["theory", path, "--json"]).output)
    for task in table["tasks"]:
        assert task["moving"] == {"min_buffer": 1, "max_buffer": 4, "max_requests": 40}
        assert task["corollary"] is None
        limit = math.sqrt(task["setting"]["local_steps"] * 1) / 4**1.5
        assert task["conditions"]["server_limit"] == pytest.approx(limit)


@pytest.mark.parametrize(
    ("algorithm", "setting", "said"),
    [
        ("fedbuff", "seed=1", "FedBuff asks idle ones only"),
        ("fedast-plus", "seed=1", "Theorem 1 does not cover fedast-plus"),
        ("fedast-s", "algorithm.selection=speed", "chosen uniformly"),
        ("fedast-d", "algorithm.staleness_weight=polynomial", "weigh the same"),
    ],
)
def test_what_the_analysis_does_not_cover_is_refused(
    algorithm: str, setting: str, said: str
) -> None:
    path = EXAMPLES / "quickstart.toml"
    loaded = resolve(load(path, [setting], algorithm=algorithm), path.parent)
    with pytest.raises(ConfigError, match=said):
        theory(loaded, Problem(), 10)


def test_the_synchronous_round_is_that_of_the_configured_first_k() -> None:
    times = []
    for k in (3, 12):
        path, options = config(f"algorithms.sync-st.first_k={k}")
        table = json.loads(CliRunner().invoke(cli, ["theory", path, *options, "--json"]).output)
        assert table["first_k"] == k
        times.append(table["simulated_sync_first_k"])
    assert times[0] < times[1] < table["simulated_sync"]


def test_fedbuff_over_any_client_is_covered() -> None:
    path = EXAMPLES / "quickstart.toml"
    loaded = resolve(load(path, ["algorithm.idle=false"], algorithm="fedbuff"), path.parent)
    assert theory(loaded, Problem(), 10, updates=200).tasks[0].moving is None


def test_limits_of_the_tasks_do_not_cut_the_simulation_short() -> None:
    path = EXAMPLES / "quickstart.toml"
    rounds = []
    for settings in ((), ("tasks.0.max_rounds=3", "tasks.1.max_rounds=3")):
        loaded = resolve(load(path, settings, algorithm="fedast-s"), path.parent)
        found = theory(loaded, Problem(), rounds=100, updates=1000)
        rounds.append([task.simulated_round for task in found.tasks])
    assert len(rounds[0]) == 2
    assert rounds[0] == rounds[1]
