"""``fedast ctl``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import folder_argument


@click.command()
@folder_argument()
@click.argument("verb", type=click.Choice(["status", "pause", "resume", "stop", "add", "halt"]))
@click.argument("task", default="")
@reports_errors
def ctl(folder: str, verb: str, task: str) -> None:
    """Control the server of the federation in FOLDER; stop and add name a TASK."""
    from fedast.cli import federation as work

    work.ctl(folder, verb, task)
