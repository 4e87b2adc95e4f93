"""``fedast federation``: set up, start, look after a federation."""

from __future__ import annotations

from typing import Any

import click

from fedast.cli.errors import reports_errors
from fedast.cli.options import (
    folder_argument,
    json_option,
    quiet_option,
    track_option,
    ui_option,
)
from fedast.cli.starting import loading_pytorch


@click.group()
def federation() -> None:
    """Set up and run a real federation over NATS JetStream."""


@federation.command()
@folder_argument()
@click.option("--clients", default=8, show_default=True, type=click.IntRange(1, 100_000),
              help="How many clients get a key.")  # fmt: skip
@click.option("--config", type=click.Path(dir_okay=False),
              help="What to train; default: two small embedded tasks.")  # fmt: skip
@click.option("--host", "hosts", multiple=True,
              help="Names and addresses under which clients reach the NATS server, for its "
                   "certificate; default: only this machine can.")  # fmt: skip
@click.option("--node", "nodes", multiple=True,
              help="A machine of a NATS cluster, by name or address; give three.")  # fmt: skip
@click.option("--port", default=4222, show_default=True, type=click.IntRange(1, 65535))
@reports_errors
def init(folder: str, **options: Any) -> None:
    """Create FOLDER with a certificate authority, everybody's keys, and all configuration."""
    from fedast.cli import federation as work

    work.init(folder, **options)


@federation.command()
@folder_argument()
@click.option("--local", type=click.IntRange(min=0),
              help="Start only this many of the clients; default: all.")  # fmt: skip
@click.option("--detach", is_flag=True, help="Leave everything running in the background.")
@ui_option()
@track_option()
@quiet_option()
@reports_errors
def up(folder: str, **options: Any) -> None:
    """Start nats-server, the FedAST server and clients; continue where they left off."""
    with loading_pytorch():
        from fedast.cli import federation as work

    work.up(folder, **options)


@federation.command()
@folder_argument()
@reports_errors
def down(folder: str) -> None:
    """Stop everything that `up --detach` started."""
    from fedast.cli import federation as work

    work.down(folder)


@federation.command()
@folder_argument()
@json_option("Print as JSON.")
@reports_errors
def status(folder: str, as_json: bool) -> None:
    """Show what is running and how far training has got."""
    from fedast.cli import federation as work

    work.status(folder, as_json)


@federation.command()
@folder_argument()
@click.option("--clients", default=1, show_default=True, type=click.IntRange(1, 100_000),
              help="How many more get a key.")  # fmt: skip
@reports_errors
def admit(folder: str, clients: int) -> None:
    """Make keys for further clients; a federation that is running lets them in at once."""
    from fedast.cli import members, upkeep

    with upkeep.audited(folder, "admit", f"{clients} clients"):
        members.admit(folder, clients)


@federation.command()
@folder_argument()
@click.argument("names", nargs=-1)
@click.option("--expiring", is_flag=True, help="Renew all that expire within 30 days.")
@reports_errors
def renew(folder: str, names: tuple[str, ...], expiring: bool) -> None:
    """Make new keys for NAMES (client-7, server, control, observer); the old ones stop working.

    \b
    nats: new certificates for the NATS servers, before the old ones expire.
    """
    from fedast.cli import members, upkeep

    if not names and not expiring:
        raise click.UsageError("name who gets a new key, or use --expiring")
    wanted = [*names, *(upkeep.expiring(folder) if expiring else ())]
    if not wanted and expiring:
        click.echo("nothing expires within 30 days")
        return
    with upkeep.audited(folder, "renew", " ".join(wanted)):
        members.renew(folder, wanted)


@federation.command()
@folder_argument()
@click.argument("names", nargs=-1, required=True)
@reports_errors
def expel(folder: str, names: tuple[str, ...]) -> None:
    """Refuse the clients NAMES (client-7) from now on."""
    from fedast.cli import members, upkeep

    with upkeep.audited(folder, "expel", " ".join(names)):
        members.expel(folder, names)


@federation.command()
@folder_argument()
@reports_errors
def upgrade(folder: str) -> None:
    """Give every client of an older FOLDER an account of its own in NATS; keys stay valid."""
    from fedast.cli import members

    members.upgrade(folder)


@federation.command()
@folder_argument()
@json_option("Print as JSON.")
@reports_errors
def keys(folder: str, as_json: bool) -> None:
    """List who has a key, and until when it is valid."""
    from fedast.cli import members

    members.keys(folder, as_json)


@federation.command()
@folder_argument()
@click.argument("name", required=False)
@click.option("--lines", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("-f", "--follow", is_flag=True, help="Follow the logs.")
@reports_errors
def logs(folder: str, name: str | None, lines: int, follow: bool) -> None:
    """Show the last lines of the logs: nats, server, client-0, ..."""
    from fedast.cli import federation as work

    work.logs(folder, name, lines, follow)


@federation.command()
@folder_argument()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--out", type=click.Path(file_okay=False),
              help="Folder of the records; default: run in FOLDER.")  # fmt: skip
@reports_errors
def backup(folder: str, file: str, out: str | None) -> None:
    """Copy keys, configuration and the server's log to FILE (tar); it may be running."""
    from fedast.cli import upkeep

    upkeep.backup(folder, file, out)


@federation.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("folder", type=click.Path())
@reports_errors
def restore(file: str, folder: str) -> None:
    """Make FOLDER, which must not exist, from the backup FILE."""
    from fedast.cli import upkeep

    upkeep.restore(file, folder)


@federation.command()
@reports_errors
def alerts() -> None:
    """Print alert rules for Prometheus; docs/runbook.md says what to do about each."""
    from fedast.cli.federation import alerts

    click.echo(alerts(), nl=False)
