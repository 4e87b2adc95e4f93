"""``fedast cluster check``: what a Ray cluster offers, and whether runs would be the same there."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.console import Console

from fedast.cli.tables import new_table
from fedast.parts.errors import ConfigError
from fedast.run.on_ray import places
from fedast.training.nodes import Facts, my_facts, problems
from fedast.training.ray_connection import connect, node_facts, require_ray


def check_cluster(
    address: str | None, cores: int, gpus: float, allow_mixed: bool, as_json: bool
) -> None:
    require_ray()
    connect(address)
    import ray

    mine, found = my_facts(), node_facts()
    wrong = problems(mine, found, allow_mixed=allow_mixed, gpus=gpus > 0)
    try:
        room = places(cores, gpus)
    except ConfigError as error:
        room = 0
        wrong.append(error.problem)
    has = {
        f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})": node["Resources"]
        for node in ray.nodes()
        if node["Alive"]
    }
    if as_json:
        nodes = {
            name: {
                "cores": has[name].get("CPU", 0),
                "gpus": has[name].get("GPU", 0),
                "memory": has[name].get("memory", 0),
                **(asdict(facts) if isinstance(facts, Facts) else {"problem": facts}),
            }
            for name, facts in found.items()
        }
        table = {"ray": ray.__version__, "nodes": nodes, "runs_at_a_time": room, "problems": wrong}
        click.echo(json.dumps(table, indent=2))
    else:
        columns = ("node", "cores", "GPUs", "memory", "fedast", "torch", "Python", "processor")
        table_of_nodes = new_table(f"Ray {ray.__version__}, {len(found)} nodes", columns)
        for name, facts in found.items():
            offers = has[name]
            installed = (
                (facts.fedast, facts.torch, facts.python, facts.processor)
                if isinstance(facts, Facts)
                else ("–", "–", "–", "–")
            )
            table_of_nodes.add_row(
                name,
                f"{offers.get('CPU', 0):g}",
                f"{offers.get('GPU', 0):g}",
                f"{offers.get('memory', 0) / 2**30:.1f} GiB",
                *installed,
            )
        Console(highlight=False).print(table_of_nodes)
        each = f"{cores} core{'s' if cores > 1 else ''}" + (f" and {gpus:g} GPUs" if gpus else "")
        click.echo(f"A run takes {each}: {room} runs at a time")
        for line in wrong:
            click.echo(f"problem: {line}", err=True)
        if not wrong:
            click.echo("All nodes match this machine: runs give the same results there")
    if wrong:
        sys.exit(1)
