"""``fedast federation backup`` and ``restore``, and the audit trail of what is done in a shell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fedast.cli.federation import layout_of
from fedast.federation.audit import AuditTrail, shell_user
from fedast.federation.certificates import visible
from fedast.federation.nats.setup import SERVER, Layout


@contextmanager
def audited(folder: str, command: str, argument: str) -> Iterator[None]:
    """Record a command in the audit trail beside the records, whether it is done or refused."""
    trail = AuditTrail(layout_of(folder).run)
    try:
        yield
    except Exception as error:
        trail.write(shell_user(), command, argument, f"refused: {error}")
        raise
    trail.write(shell_user(), command, argument, "done")


def expiring(folder: str) -> list[str]:
    """Names for ``renew`` of certificates that expire soon."""
    found = visible(layout_of(folder).credentials(SERVER))
    names = [c.name.partition(" ")[0] for c in found if c.soon and c.name != "authority"]
    return list(dict.fromkeys(names))


def backup(folder: str, file: str, out: str | None) -> None:
    from fedast.federation.backup import back_up  # it loads torch

    layout = layout_of(folder)
    run = layout.run if out is None else Path(out)
    with audited(folder, "backup", file):
        about = back_up(layout, Path(file), run)
    size = Path(file).stat().st_size
    click.echo(f"{file}: {len(about.files)} files, {size / 1e6:.1f} MB; {_log(about.entries)}")
    click.echo("It contains private keys (only you can read it): store it as safely as they are.")


def restore(file: str, folder: str) -> None:
    from fedast.federation.backup import restore as restore_to

    about = restore_to(Path(file), Path(folder))
    with audited(folder, "restore", file):
        pass
    click.echo(f"{folder}: restored from a backup of {about.name}, made {about.made} by fedast "
               f"{about.fedast}; {_log(about.entries)}")  # fmt: skip
    click.echo(f"End {about.name} if it still runs anywhere: two with the same keys do not mix.")
    if Layout(Path(folder)).nodes:
        click.echo(f"Now copy each folder of {Layout(Path(folder)).nats} to its machine")
    else:
        click.echo(f"Now: fedast federation up {folder}")


def _log(entries: int) -> str:
    return f"{entries} entries of the server's log" if entries else "the server had not begun"
