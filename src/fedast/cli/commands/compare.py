"""``fedast compare``."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import columns_option, jobs_option, on_option, run_options


@click.command()
@click.argument("configs", nargs=-1, required=True, type=click.Path(dir_okay=False))
@click.option("--algorithm", "algorithms", multiple=True,
              help="Run each configuration with this algorithm, or all; repeatable.")  # fmt: skip
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1),
              help="Seeds per configuration: its own seed and the following ones.")  # fmt: skip
@click.option("--baseline", help="Label that gains are measured against; default: the last.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for records and figures.")
@jobs_option()
@on_option()
@columns_option()
@run_options
@reports_errors
def compare(configs: tuple[str, ...], **options: Any) -> None:
    """Run several configurations over several seeds; a table with gains, and a figure."""
    from fedast.cli.compare import compare_configs

    compare_configs(configs, **options)
