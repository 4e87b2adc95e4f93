"""``--on`` and what goes with it, and which nodes are refused; no cluster is needed."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

from fedast.cli.main import cli
from fedast.training.nodes import my_facts, problems
from tests.cli.test_cli import QUICK


@pytest.mark.parametrize("command", [("compare", QUICK), ("reproduce", "heterogeneous")])
def test_what_an_executor_does_not_have_is_refused(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, [*command, "--address", "somewhere:1"])
    assert done.exit_code == 2
    assert "--on.cluster: local has no such option (ray: yes)" in done.output
    done = CliRunner().invoke(cli, [*command, "--on", "rey"])
    assert done.exit_code == 2
    assert "did you mean 'ray'?" in done.output


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_extra_that_is_missing(name: str, package: str) -> None:
    done = CliRunner().invoke(cli, ["compare", QUICK, "--on", name])
    assert done.exit_code == 2
    assert package in done.output
    assert "is not installed; pip install 'fedast[cluster]'" in done.output


def test_nodes_that_would_give_other_results() -> None:
    mine = my_facts()

    def found(*others: object, allow_mixed: bool = False, gpus: bool = False) -> list[str]:
        nodes = {f"n{number}": facts for number, facts in enumerate((mine, *others))}
        return problems(mine, nodes, allow_mixed=allow_mixed, gpus=gpus)  # type: ignore[arg-type]

    assert found(mine, mine) == []
    (line,) = found(replace(mine, fedast="0.1.0"))
    assert line.startswith(f"node n1: has fedast 0.1.0, this machine has {mine.fedast}")
    (line,) = found("cannot run fedast (No module named 'fedast')")
    assert "No module named 'fedast'" in line
    other = replace(mine, processor="another one", gpus=("A100",))
    (line,) = found(other)
    assert "--allow-mixed" in line
    assert found(other, allow_mixed=True, gpus=True) == []
    assert len(found(other, gpus=True)) == 2
    assert len(found(replace(mine, torch="2.0.0"), allow_mixed=True)) == 1
