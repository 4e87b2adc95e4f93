"""``fedast report``."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import columns_option, folder_argument, json_option
from fedast.cli.starting import say


@click.command()
@folder_argument()
@click.argument("names", nargs=-1)
@click.option("--update", multiple=True, type=click.Path(dir_okay=False), metavar="FILE.md",
              help="Also write the table between the markers of this document.")  # fmt: skip
@click.option("--page/--no-page", default=True, help="Write report.html and the figures.")
@columns_option()
@json_option("Print the table as JSON only.")
@reports_errors
def report(folder: str, names: tuple[str, ...], **options: Any) -> None:
    """Make figures, a table and a page of the results in FOLDER, of reproduce, run or compare.

    Results of `fedast reproduce` stand beside the paper's numbers.
    """
    say("reading runs")
    from fedast.cli import reproduce as work

    work.report(folder, names, **options)
