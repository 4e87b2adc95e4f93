"""``fedast ui``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(file_okay=False), metavar="[DIR]...")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of 127.0.0.1; default: 8437, or "
              "any that is free.")  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--attached", is_flag=True, hidden=True, help="End when the standard input ends.")
@reports_errors
def ui(folders: tuple[str, ...], port: int | None, no_browser: bool, attached: bool) -> None:
    """Show the runs and federations under each DIR (default: here) on a local page, live."""
    from fedast.cli.ui import show

    show(folders or (".",), port=port, browser=not no_browser, attached=attached)
