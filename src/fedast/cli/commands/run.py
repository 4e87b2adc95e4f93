"""``fedast run``."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import config_argument, run_options
from fedast.cli.starting import loading_pytorch

_WITH_RESUME = ("checkpoint_every", "quiet", "as_json", "offline", "ui")
"""The options that may stand beside ``--resume``."""


@click.command()
@config_argument(required=False)
@click.option("--out", type=click.Path(file_okay=False), help="Folder for the run's records.")
@click.option("--seed", type=click.IntRange(min=0), help="Use this seed.")
@click.option("--algorithm", help="Use this algorithm, with its [algorithms.NAME] settings.")
@click.option("--checkpoint-every", metavar="TIME",
              help="Take checkpoints: 50 is simulated time, 30s, 5m, 1h real time.")  # fmt: skip
@click.option("--resume", metavar="DIR", type=click.Path(file_okay=False),
              help="Continue the run in this folder, without a CONFIG.")  # fmt: skip
@run_options
@reports_errors
def run(config: str | None, resume: str | None, **options: Any) -> None:
    """Simulate CONFIG (a TOML file) and write its records to a folder."""
    with loading_pytorch():
        from fedast.cli.run import resume_run, run_config

    if config is not None and resume is None:
        run_config(config, **options)
    elif resume is not None and config is None:
        _refuse_other_options(options)
        resume_run(resume, **{key: options[key] for key in _WITH_RESUME})
    else:
        raise click.UsageError("give a CONFIG, or --resume with the folder of a run")


def _refuse_other_options(options: dict[str, Any]) -> None:
    for key, value in options.items():
        given = value is not None and value is not False and value != ()  # a seed may be 0
        if given and key not in _WITH_RESUME:
            option = key.replace("settings", "set").replace("_", "-")
            raise click.UsageError(f"--resume continues the run as it was; leave out --{option}")
