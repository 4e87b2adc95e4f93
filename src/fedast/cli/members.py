"""``fedast federation admit``, ``renew``, ``expel`` and ``keys``: who belongs to a federation."""

from __future__ import annotations

import datetime
import json
import signal
from collections.abc import Sequence

import click
from rich.console import Console

from fedast.cli.federation import layout_of, processes_of
from fedast.cli.tables import new_table
from fedast.deploy.keys import expiry
from fedast.deploy.setup import CONTROL, SERVER, Layout, Register
from fedast.experiments.load import ConfigError

_SOON = datetime.timedelta(days=30)
_NATS = "nats"


def admit(folder: str, clients: int) -> None:
    layout = _with_authority(folder)
    names = Register(layout).admit(clients)
    click.echo(f"keys for {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else ""))
    click.echo(f"Carry to each its folder of {layout.root / 'clients'}, and the configuration.")
    _reload(layout)


def renew(folder: str, names: Sequence[str]) -> None:
    layout = _with_authority(folder)
    register = Register(layout)
    known = _known(register, [name for name in names if name != _NATS])
    if _NATS in names:
        register.renew_nats()
        click.echo("nats: a new certificate, for the same hosts")
    register.issue(known)
    for name in known:
        click.echo(f"{name}: a new key in {layout.credentials(name)}; the old one opens nothing")
    _reload(layout)


def expel(folder: str, names: Sequence[str]) -> None:
    layout = _with_authority(folder)
    register = Register(layout)
    known = _known(register, names)
    for name in known:
        if name in (SERVER, CONTROL):
            raise ConfigError("", f"{name} cannot be expelled; give it a new key: renew")
    register.expel(known)
    click.echo(f"{', '.join(known)}: let in no more")
    _reload(layout)


def keys(folder: str, as_json: bool) -> None:
    layout = layout_of(folder)
    register = Register(layout)
    now = datetime.datetime.now(datetime.UTC)
    places = {name: layout.credentials(name) for name in register.numbers}
    places |= {
        " ".join((_NATS, *node)): layout.nats.joinpath(*node, "tls")
        for node in ([[name] for name in layout.nodes] or [[]])
    }
    ends = {name: expiry(place) for name, place in places.items() if (place / "cert.pem").exists()}
    if as_json:
        found = {
            name: {"key": register.numbers.get(name, 1), "until": end.isoformat()}
            for name, end in ends.items()
        }
        click.echo(json.dumps(found, indent=2))
        return
    table = new_table(f"Keys of {folder}", ("name", "key", "valid until", ""))
    for name, end in ends.items():
        note = "expired" if end < now else "renew it" if end - now < _SOON else ""
        table.add_row(name, str(register.numbers.get(name, 1)), f"{end:%Y-%m-%d}", note)
    Console(highlight=False).print(table)


def _with_authority(folder: str) -> Layout:
    layout = layout_of(folder)
    if not (layout.authority / "key.pem").is_file():
        raise ConfigError("", f"{layout.authority}: the authority's key is not here")
    return layout


def _known(register: Register, names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in register.numbers:
            raise ConfigError("", f"{name!r} has no key here; names are like client-7")
    return list(dict.fromkeys(names))


def _reload(layout: Layout) -> None:
    """NATS must hear of it."""
    if layout.nodes:
        click.echo(f"Carry what has changed in {layout.nats} to the nodes, then on each of them: "
                   "nats-server --signal reload")  # fmt: skip
    elif processes_of(layout).signal("nats", signal.SIGHUP):
        click.echo("nats-server reads it anew")
    else:
        click.echo("If nats-server is running: nats-server --signal reload")
