"""``fedast client``."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import config_argument
from fedast.cli.starting import loading_pytorch


@click.command()
@config_argument()
@click.option("--server", "servers", multiple=True, required=True, metavar="URL",
              help="Where nats-server is, such as tls://host:4222; repeatable.")  # fmt: skip
@click.option("--creds", required=True, type=click.Path(file_okay=False),
              help="Folder with this client's keys.")  # fmt: skip
@click.option("--log", type=click.Path(dir_okay=False),
              help="Log to this file, of limited size, instead of the terminal.")  # fmt: skip
@reports_errors
def client(config: str, **options: Any) -> None:
    """Take part in a federation with this machine's own data."""
    with loading_pytorch():
        from fedast.cli.programs import run_client

    run_client(config, **options)
