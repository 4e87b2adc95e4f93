"""A small study, and the command line, for the tests of studies."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from fedast.cli.main import cli

SMALL = """
title = "A study of one's own"
where = "nowhere"
says = "that it works"
figures = ["bars", "curves", "dots", "ranking"]
baseline = "Sync-ST"
per_run = "mean"
seeds = 2

[base]
template = { use = "mnist" }

[base.simulation]
until = "all"
max_time = 600

[[axes]]
name = "tasks"
role = "x"
values = [{ label = "1", set = { copies = 1 } }, { label = "2", set = { copies = 2 } }]

[[axes]]
name = "algorithm"
role = "series"
values = [
  { label = "FedAST(S)", set = { algorithm = { name = "fedast-s" } } },
  { label = "Sync-ST", set = { algorithm = { name = "sync-st" } } },
]

[[claims]]
what = "FedAST is first"
where = "nowhere"
measure = "first"
at = { tasks = "2", algorithm = "FedAST(S)" }
others = ["Sync-ST"]
"""


def fedast(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])
