"""``fedast bench``."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import (
    config_argument,
    device_option,
    json_option,
    precision_option,
    set_option,
)
from fedast.cli.starting import say


@click.command()
@config_argument(required=False)
@click.option(
    "--trainer",
    "trainers",
    multiple=True,
    metavar="NAME",
    help="Measure this one: serial, processes, batched, or one of your own (package.module:Name); "
    "repeatable. Default: those of fedast that suit the device.",
)
@click.option("--clients", default=48, show_default=True, type=click.IntRange(min=1),
              help="Clients that the batched trainer trains together.")  # fmt: skip
@click.option("--seconds", default=2.0, show_default=True, type=click.FloatRange(min=0.0),
              help="Measure each case at least this long.")  # fmt: skip
@click.option("--updates", type=click.IntRange(min=1),
              help="Profile this many updates of CONFIG's run; default 500.")  # fmt: skip
@click.option("--whole", is_flag=True, help="Profile the whole run, to its end.")
@set_option()
@device_option("Where to train.")
@precision_option("Precision of matrix products on a GPU.")
@json_option()
@reports_errors
def bench(config: str | None, **options: Any) -> None:
    """Measure local training, with CONFIG's tasks or with models of the paper on random data."""
    say("loading PyTorch")
    from fedast.cli.bench import run_bench

    run_bench(config, **options)
