"""``fedast ctl``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import folder_argument

VERBS = ("status", "pause", "resume", "stop", "add", "halt", "pardon")


@click.command()
@folder_argument()
@click.argument("verb", type=click.Choice(VERBS))
@click.argument("task", default="")
@reports_errors
def ctl(folder: str, verb: str, task: str) -> None:
    """Control the server of the federation in FOLDER; stop and add name a TASK, pardon
    the client whose quarantine ends."""
    from fedast.cli import federation as work

    work.ctl(folder, verb, task)
