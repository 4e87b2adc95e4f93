"""``fedast list``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import json_option


@click.command(name="list")
@click.argument(
    "what",
    type=click.Choice(
        ["algorithms", "tasks", "partitions", "metrics", "delays", "availability", "server"]
    ),
)
@json_option("Print as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="The reference page of algorithms.")
@reports_errors
def catalogue(what: str, as_json: bool, as_markdown: bool) -> None:
    """Show what can be named in a configuration, with its options and defaults."""
    from fedast.cli.catalogue import show

    show(what, as_json, as_markdown)
