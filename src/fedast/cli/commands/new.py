"""``fedast new``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@reports_errors
def new(folder: str) -> None:
    """Begin a project in FOLDER: a task and an algorithm of your own, a configuration, a test."""
    from fedast.cli.copying import new_project

    new_project(folder)
