"""``fedast theory``."""

from __future__ import annotations

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import config_argument, json_option, set_option
from fedast.cli.starting import say


@click.command()
@config_argument()
@click.option("--rounds", default=1000, show_default=True, type=click.IntRange(min=1),
              help="T, the rounds of each task.")  # fmt: skip
@click.option("--smoothness", default=1.0, show_default=True,
              type=click.FloatRange(min=0.0, min_open=True), help="L of the losses.")  # fmt: skip
@click.option("--gap", default=1.0, show_default=True, type=click.FloatRange(min=0.0),
              help="f(x0) - min f.")  # fmt: skip
@click.option("--local-variance", default=1.0, show_default=True, type=click.FloatRange(min=0.0),
              help="Variance of a stochastic gradient.")  # fmt: skip
@click.option("--heterogeneity", default=1.0, show_default=True, type=click.FloatRange(min=0.0),
              help="Squared distance of local gradients from the global one.")  # fmt: skip
@set_option()
@json_option()
@reports_errors
def theory(
    config: str, rounds: int, settings: tuple[str, ...], as_json: bool, **known: float
) -> None:
    """What the paper's analysis says about CONFIG: learning rates, error terms, round times."""
    say("simulating rounds, without training")
    from fedast.algorithms.theory import Problem
    from fedast.cli.theory import run_theory

    run_theory(config, settings=settings, rounds=rounds, problem=Problem(**known), as_json=as_json)
