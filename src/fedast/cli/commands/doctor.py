"""``fedast doctor``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import json_option
from fedast.cli.starting import say


@click.command()
@json_option("Print as JSON.")
@reports_errors
def doctor(as_json: bool) -> None:
    """Check what works here, what does not, and how to get it.

    The exit code is 1 if something is missing that fedast cannot do without.
    """
    say("looking around")
    from fedast.cli.doctor import run_doctor

    run_doctor(as_json)
