"""``fedast reproduce``."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import (
    jobs_option,
    json_option,
    offline_option,
    on_option,
    quiet_option,
    set_option,
)
from fedast.cli.starting import say


@click.command()
@click.argument("names", nargs=-1, metavar="NAME|all|FILE.toml")
@click.option("--list", "list_only", is_flag=True, help="Show what can be reproduced.")
@click.option("--seeds", type=click.IntRange(min=1), help="Seeds; default: three.")
@click.option("--scale", type=click.Choice(["full", "quick"]), default="full", show_default=True,
              help="quick: few clients, small tasks, embedded data; minutes on a CPU.")  # fmt: skip
@jobs_option("Runs at a time; default: one per core, one on a GPU.")
@on_option()
@click.option("--out", type=click.Path(file_okay=False),
              help="Results folder; default: results, or results-quick.")  # fmt: skip
@click.option("--only", multiple=True, metavar="LABEL",
              help="Only runs with this label, such as MNIST; repeatable.")  # fmt: skip
@set_option("Override a key of every run (needs a results folder of its own).")
@click.option("--again", is_flag=True, help="Repeat runs that already exist, too.")
@click.option("--dry-run", is_flag=True, help="Only list the runs that are missing.")
@click.option("--estimate", is_flag=True,
              help="Only measure speed here on generated images, and say how long runs would take "
              "(larger-model).")  # fmt: skip
@offline_option()
@quiet_option("Print only where the results are.")
@json_option("With --list and --estimate: as JSON.")
@reports_errors
def reproduce(
    names: tuple[str, ...], list_only: bool, as_json: bool, estimate: bool, **options: Any
) -> None:
    """Run experiments of the paper (or a FILE like theirs) that have not been run yet."""
    from fedast.cli import reproduce as work

    if list_only:
        work.list_studies(as_json)
    elif not names:
        raise click.UsageError("name an experiment (fedast reproduce --list), or all")
    elif estimate:
        from fedast.cli.bench import run_estimate

        run_estimate(names, as_json=as_json)
    else:
        say("reading studies and the runs that are there")
        work.reproduce(names, **options)
