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
from fedast.cli.starting import loading_pytorch

_OF_MODELS = ("trainers", "clients", "seconds", "device", "precision", "as_json")


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
@click.option("--models", is_flag=True,
              help="Measure nets of many kinds on random data.")  # fmt: skip
@click.option("--only", multiple=True, metavar="MODEL",
              help="With --models: only this one; repeatable.")  # fmt: skip
@click.option("--quick", is_flag=True,
              help="With --models: tiny nets; the numbers say nothing.")  # fmt: skip
@click.option("--markdown", is_flag=True, help="With --models: print a Markdown table.")
@click.option("--clients", type=click.IntRange(min=1),
              help="Clients that the batched trainer trains together; default: 48 (--models on a "
              "CPU: 4).")  # fmt: skip
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
def bench(
    config: str | None,
    models: bool,
    only: tuple[str, ...],
    quick: bool,
    markdown: bool,
    **options: Any,
) -> None:
    """Measure local training, with CONFIG's tasks or with models of the paper on random data."""
    with loading_pytorch():
        from fedast.cli.bench import run_bench, run_models

    if models:
        if config or options.pop("settings") or options.pop("whole") or options.pop("updates"):
            raise click.UsageError("--models takes no CONFIG, --set, --updates and --whole")
        options = {name: options[name] for name in _OF_MODELS}
        run_models(only=only, quick=quick, markdown=markdown, **options)
    elif only or quick or markdown:
        raise click.UsageError("--only, --quick and --markdown need --models")
    else:
        run_bench(config, **options)
