"""``fedast serve``."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import config_argument, quiet_option, track_option
from fedast.cli.starting import loading_pytorch


@click.command()
@config_argument()
@click.option("--server", "servers", multiple=True, required=True, metavar="URL",
              help="Where nats-server is, such as tls://host:4222; repeatable.")  # fmt: skip
@click.option("--creds", required=True, type=click.Path(file_okay=False),
              help="Folder with the server's keys.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(file_okay=False),
              help="Folder for records and the write-ahead log; an existing one is "
                   "continued.")  # fmt: skip
@click.option("--log", type=click.Path(dir_okay=False),
              help="Log to this file, of limited size, instead of the terminal.")  # fmt: skip
@track_option()
@quiet_option()
@reports_errors
def serve(config: str, **options: Any) -> None:
    """Run the FedAST server of a federation with the tasks of CONFIG."""
    with loading_pytorch():
        from fedast.cli.programs import serve as go

    go(config, **options)
