"""The ``fedast`` command, assembled from one module per command (``fedast.cli.commands``)."""

from __future__ import annotations

import click

from fedast.cli.commands.bench import bench
from fedast.cli.commands.catalogue import catalogue
from fedast.cli.commands.client import client
from fedast.cli.commands.cluster import cluster
from fedast.cli.commands.compare import compare
from fedast.cli.commands.ctl import ctl
from fedast.cli.commands.data import data
from fedast.cli.commands.demo import demo
from fedast.cli.commands.doctor import doctor
from fedast.cli.commands.examples import examples
from fedast.cli.commands.export import export
from fedast.cli.commands.federation import federation
from fedast.cli.commands.new import new
from fedast.cli.commands.report import report
from fedast.cli.commands.reproduce import reproduce
from fedast.cli.commands.run import run
from fedast.cli.commands.serve import serve
from fedast.cli.commands.sweep import sweep
from fedast.cli.commands.theory import theory
from fedast.cli.commands.ui import ui
from fedast.cli.commands.validate import validate
from fedast.cli.errors import debug_option
from fedast.cli.starting import enable
from fedast.version import version_with_commit

_COMMANDS: tuple[click.Command, ...] = (
    demo, new, doctor, examples,
    run, compare, sweep, ui, validate, catalogue, theory, bench,
    reproduce, report, export, data, cluster,
    federation, serve, client, ctl,
)  # fmt: skip


def _version(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"fedast, version {version_with_commit()}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
              help="Show the version and exit.")  # fmt: skip
@debug_option
def cli() -> None:
    """Train several models at once over one pool of federated clients.

    Start with `fedast demo`. Then begin a project with `fedast new`, or write a
    configuration (`fedast examples` has some) and give it to `fedast run`, or
    several to `fedast compare`. `fedast doctor` says what works here.
    """


for command in _COMMANDS:
    cli.add_command(command)


def main() -> None:
    enable()
    cli()
