"""``fedast cluster``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import json_option


@click.group()
def cluster() -> None:
    """Runs over a cluster (docs/cluster.md)."""


@cluster.command()
@click.argument("address", required=False, metavar="[HOST:PORT]")
@click.option("--cores", type=click.IntRange(min=1), default=1, show_default=True,
              help="Cores of each run.")  # fmt: skip
@click.option("--gpus", type=click.FloatRange(min=0), default=0.0, help="GPUs of each run.")
@click.option("--allow-mixed", is_flag=True, help="As for --on ray.")
@json_option()
@reports_errors
def check(address: str | None, cores: int, gpus: float, allow_mixed: bool, as_json: bool) -> None:
    """What a Ray cluster offers, whether its versions match, and what runs would use.

    The exit status is 1 if runs would be refused there.
    """
    from fedast.cli.cluster import check_cluster

    check_cluster(address, cores, gpus, allow_mixed, as_json)
