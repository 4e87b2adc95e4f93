"""``fedast list``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import json_option


@click.command(name="list")
@click.argument("kind", required=False)
@json_option("Print as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="The reference page of algorithms.")
@reports_errors
def catalogue(kind: str | None, as_json: bool, as_markdown: bool) -> None:
    """Show the parts of a KIND that a configuration can name, with their options and defaults.

    Parts of installed plug-ins are shown too. Without KIND: the kinds that there are.
    """
    from fedast.cli.catalogue import show

    show(kind, as_json, as_markdown)
