"""``fedast sweep``."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import jobs_option, on_option, run_options
from fedast.cli.starting import loading_pytorch


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--out", type=click.Path(file_okay=False),
              help="Folder for the trials; default: sweeps/NAME.")  # fmt: skip
@click.option("--trials", type=click.IntRange(min=1),
              help="How many trials, instead of the sampler's own number.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), help="Seeds of each trial.")
@jobs_option()
@on_option()
@click.option("--checkpoint-every", metavar="TIME",
              help="Take checkpoints, from which interrupted runs go on: 50 is simulated time, "
                   "30s, 5m, 1h real time.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Only go on with a sweep that is in the folder.")
@click.option("--dry-run", is_flag=True, help="Only say which runs there are.")
@run_options
@reports_errors
def sweep(file: str, **options: Any) -> None:
    """Search for the best values of configuration keys, as FILE describes (docs/sweeps.md).

    After an interruption the same command goes on: finished runs are never repeated.
    """
    with loading_pytorch():
        from fedast.cli.sweep import sweep_file

    sweep_file(file, **options)
