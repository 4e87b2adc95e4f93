"""``fedast federation admit``, ``renew``, ``expel`` and ``keys``: who belongs to a federation."""

from __future__ import annotations

import datetime
import json
import os
import signal
import time
from collections.abc import Sequence

import click
from rich.console import Console

from fedast.cli.federation import layout_of, processes_of
from fedast.cli.processes import by_hand
from fedast.cli.tables import new_table
from fedast.federation.certificates import WARN
from fedast.federation.keys import expiry
from fedast.federation.nats.setup import CONTROL, OBSERVER, SERVER, Layout, register_of
from fedast.parts.errors import ConfigError

_NATS = "nats"
_BETWEEN_RELOADS = 0.5


def admit(folder: str, clients: int) -> None:
    layout = _with_register(folder)
    _needs(layout, "key.pem")
    with register_of(layout) as register:
        names = register.admit(clients)
    click.echo(f"keys for {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else ""))
    click.echo(f"Copy to each its folder in {layout.root / 'clients'}, and the configuration.")
    _reload(layout)


def renew(folder: str, names: Sequence[str]) -> None:
    layout = _with_register(folder)
    _needs(layout, "key.pem")
    with register_of(layout) as register:
        wanted = [name for name in dict.fromkeys(names) if name != _NATS]
        _check(wanted, [*register.numbers, OBSERVER])  # earlier versions made none
        if _NATS in names:
            if layout.nodes:
                _needs(layout, "routes/key.pem")
            register.renew_nats()
            click.echo("nats: a new certificate, for the same hosts")
        register.issue(wanted)
    for name in wanted:
        click.echo(f"{name}: a new key in {layout.credentials(name)}; the old one is invalid")
    if SERVER in wanted:
        click.echo("NATS disconnects the FedAST server, which then ends: start it again.")
    _reload(layout)


def expel(folder: str, names: Sequence[str]) -> None:
    layout = _with_register(folder)
    with register_of(layout) as register:
        wanted = list(dict.fromkeys(names))
        _check(wanted, [*register.numbers, *register.expelled])
        for name in (SERVER, CONTROL):
            if name in wanted:
                raise ConfigError("", f"{name} cannot be expelled; give it a new key: renew")
        register.expel(wanted)
    click.echo(f"{', '.join(wanted)}: expelled")
    _reload(layout)


def upgrade(folder: str) -> None:
    layout = _with_register(folder)
    if layout.separated:
        click.echo(f"{folder}: every key has an account of its own already")
        return
    if "nats" in processes_of(layout).alive():
        raise ConfigError("", f"{folder} is up; first fedast federation down {folder}")
    try:
        with register_of(layout) as register:
            register.upgrade()
    except ValueError as error:
        raise ConfigError("", str(error)) from None
    click.echo(f"{folder}: every key has an account of its own in NATS; the keys are the same")
    if layout.nodes:
        click.echo(f"Stop all nodes, delete their folders 'data', copy what has changed in "
                   f"{layout.nats} to them, and start them again.")  # fmt: skip
    else:
        click.echo(f"Now: fedast federation up {folder}")


def keys(folder: str, as_json: bool) -> None:
    layout = _with_register(folder)
    with register_of(layout) as register:
        numbers = dict(register.numbers)
    places = {name: layout.credentials(name) for name in numbers}
    for node in layout.nodes or [""]:
        name = f"{_NATS} {node}".strip()
        places[name] = layout.nats / node / "tls"
    ends = {
        name: expiry(place) if (place / "cert.pem").exists() else None
        for name, place in places.items()
    }
    if as_json:
        found = {
            name: {"key": numbers.get(name, 1), "until": end and end.isoformat()}
            for name, end in ends.items()
        }
        click.echo(json.dumps(found, indent=2))
        return
    table = new_table(f"Keys of {folder}", ("name", "key", "valid until", ""))
    now = datetime.datetime.now(datetime.UTC)
    for name, end in ends.items():
        if end is None:
            until, note = "?", "no certificate here"
        else:
            until = f"{end:%Y-%m-%d}"
            note = "expired" if end < now else "renew it" if end - now < WARN else ""
        table.add_row(name, str(numbers.get(name, 1)), until, note)
    Console(highlight=False).print(table)
    soon = [name for name, end in ends.items() if end is not None and end - now < WARN]
    if soon:
        click.echo(f"{len(soon)} expire within {WARN.days} days, {soon[0]} among them: "
                   f"fedast federation renew {folder} --expiring")  # fmt: skip


def _with_register(folder: str) -> Layout:
    layout = layout_of(folder)
    if not layout.register.is_file():
        raise ConfigError("", f"{layout.register}: is missing; it records who has which key")
    return layout


def _needs(layout: Layout, key: str) -> None:
    if not (layout.authority / key).is_file():
        raise ConfigError("", f"{layout.authority / key}: is missing, the key of the authority")


def _check(names: Sequence[str], known: Sequence[str] | dict[str, int]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError("", f"{name!r} has no key here; names are like client-7")


def _reload(layout: Layout) -> None:
    """Have NATS read its accounts again."""
    if layout.nodes:
        click.echo(f"Copy what has changed in {layout.nats} to the nodes, then on each of them: "
                   "nats-server --signal reload, twice")  # fmt: skip
    elif _hangup(layout):
        # nats-server 2.15 connects what a new account imports only when it reloads once more.
        time.sleep(_BETWEEN_RELOADS)
        _hangup(layout)
        click.echo("nats-server has reloaded its accounts")
    else:
        click.echo("If nats-server is running, twice: nats-server --signal reload")


def _hangup(layout: Layout) -> bool:
    """Have NATS reload, whether we started it or somebody did by hand; False if nobody did."""
    if processes_of(layout).signal("nats", signal.SIGHUP):
        return True
    pid = by_hand(layout.root).get("nats")
    try:
        if pid is not None:
            os.kill(pid, signal.SIGHUP)
    except OSError:  # another user's
        return False
    return pid is not None
