"""``fedast compare``."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from fedast.cli.errors import reports_errors
from fedast.cli.options import columns_option, jobs_option, on_option, run_options
from fedast.cli.starting import loading_pytorch

_WITH_RESUME = (
    "resume", "out", "jobs", "on", "checkpoint_every", "quiet", "as_json", "offline", "ui",
    "columns",
)  # fmt: skip
"""The options that may stand beside ``--resume`` where no CONFIG is given."""


@click.command()
@click.argument("configs", nargs=-1, type=click.Path(dir_okay=False))
@click.option("--algorithm", "algorithms", multiple=True,
              help="Run each configuration with this algorithm, or all; repeatable.")  # fmt: skip
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1),
              help="Seeds per configuration: its own seed and the following ones.")  # fmt: skip
@click.option("--baseline", help="Label that gains are measured against; default: the last.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for records and figures.")
@click.option("--checkpoint-every", metavar="TIME",
              help="Take checkpoints, for --resume: 50 is simulated time, 30s, 5m, 1h real time.",
              )  # fmt: skip
@click.option("--resume", is_flag=False, flag_value="", metavar="[DIR]",
              help="Go on with the comparison in DIR (or --out), without CONFIGs or with the same "
                   "ones: interrupted runs from their checkpoints, finished ones never again.",
              )  # fmt: skip
@jobs_option()
@on_option()
@columns_option()
@run_options
@reports_errors
def compare(configs: tuple[str, ...], resume: str | None, **options: Any) -> None:
    """Run several configurations over several seeds; a table with gains, and a figure.

    Without --resume, the same command goes on too, but begins interrupted runs anew.
    """
    with loading_pytorch():
        from fedast.cli.compare import compare_configs, resume_comparison

    if resume and os.path.isfile(resume):  # the flag stood before a CONFIG
        configs, resume = (resume, *configs), ""
    if resume:
        if options["out"] not in (None, resume):
            raise click.UsageError("--resume and --out name different folders; leave one out")
        options["out"] = resume
    if resume is None and not configs:
        raise click.UsageError("give a CONFIG, or --resume with the folder of a comparison")
    if resume is not None and options["out"] is None:
        raise click.UsageError("--resume needs the folder of the comparison: --resume DIR")
    if resume is not None and options["overwrite"]:
        raise click.UsageError("--resume keeps what is there, --overwrite starts over; choose one")
    if configs:
        compare_configs(configs, resume=resume is not None, **options)
        return
    given = click.get_current_context().get_parameter_source
    for key in options:
        if key not in _WITH_RESUME and given(key) is ParameterSource.COMMANDLINE:
            option = {"settings": "set", "algorithms": "algorithm"}.get(key, key)
            raise click.UsageError(
                f"--resume goes on with the comparison as it was; leave out --{option}"
            )
    resume_comparison(**{key: options[key] for key in _WITH_RESUME if key in options})
