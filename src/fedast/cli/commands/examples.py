"""``fedast examples``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--to", default=".", show_default=True, type=click.Path(file_okay=False),
              help="Folder to copy to.")  # fmt: skip
@reports_errors
def examples(names: tuple[str, ...], to: str) -> None:
    """List the examples, or copy those that are named, with the files that they need."""
    from fedast.cli.copying import copy_examples, list_examples

    if names:
        copy_examples(names, to)
    else:
        list_examples()
