"""``fedast ctl`` and ``fedast federation status``: asking the server of a federation."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedast.cli.processes import by_hand
from fedast.cli.tables import result_table
from fedast.federation import wire
from fedast.federation.certificates import visible
from fedast.federation.nats.client import NoFederation, NoServer, send_command
from fedast.federation.nats.connection import Credentials
from fedast.federation.nats.setup import CONTROL, OBSERVER, SERVER, Layout
from fedast.federation.transport import TransportError
from fedast.parts.errors import ConfigError
from fedast.records.run import RESULT, read_run

_LISTED = 10


def shown(path: Path) -> Path:
    """A path as one would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path


def url(layout: Layout) -> str:
    return f"tls://localhost:{_port(layout)}"


def _port(layout: Layout) -> int:
    for line in layout.nats_config.read_text().splitlines():
        if line.startswith("port:"):
            return int(line.partition(":")[2])
    raise ConfigError("", f"{layout.nats_config}: has no port")


def ask(layout: Layout, verb: str, argument: str = "") -> str:
    """The server's answer to a command; ``TransportError`` says in one line why there is none."""
    observer = verb == "status" and (layout.credentials(OBSERVER) / "key.pem").is_file()
    key = OBSERVER if observer else CONTROL  # a folder of an earlier version has no observer
    logging.getLogger("fedast").addHandler(logging.NullHandler())  # the error says it all
    message = wire.encode(wire.Control(verb, argument))
    where, folder = url(layout), shown(layout.root)
    try:
        data = asyncio.run(
            send_command([where], Credentials(layout.credentials(key)), message, key=key)
        )
    except NoFederation as error:
        raise NoFederation(
            f"{folder} is down ({error}); start it: fedast federation up {folder}"
        ) from None
    except NoServer as error:
        raise NoServer(
            f"{error}: it has ended, is still starting or is busy; look: "
            f"fedast federation logs {folder} server"
        ) from None
    return wire.decode(data, wire.Control).answer


def command(layout: Layout, verb: str, argument: str) -> None:
    text = ask(layout, verb, argument)
    if text.startswith("refused: "):
        raise ConfigError("", text.removeprefix("refused: "))
    click.echo(text)


def status(layout: Layout, alive: dict[str, int], as_json: bool) -> None:
    """``alive``: processes that ``up`` has started; others are looked for."""
    hand = {name: pid for name, pid in by_hand(layout.root).items() if pid not in alive.values()}
    answer: dict[str, Any] | None = None
    trouble: TransportError | None = None
    try:
        answer = json.loads(ask(layout, "status"))
    except TransportError as error:
        trouble = error
    certificates = visible(layout.credentials(SERVER))
    warnings = [found.warning(shown(layout.root)) for found in certificates if found.soon]
    if as_json:
        found = {"processes": alive, "by_hand": hand, "server": answer,
                 "trouble": None if trouble is None else str(trouble),
                 "warnings": warnings, "records": str(layout.run)}  # fmt: skip
        click.echo(json.dumps(found, indent=2))
        return
    down = not alive and not hand and isinstance(trouble, NoFederation)
    if not layout.nodes or alive or hand:
        click.echo("up: " + (", ".join(alive) or ("nothing" if not hand else "by hand only")))
    if hand:
        listed = ", ".join(f"{name} (process {pid})" for name, pid in sorted(hand.items()))
        click.echo(f"started by hand: {listed}")
    others = {**alive, **hand}
    if isinstance(trouble, NoFederation) and others and "nats" not in others and not layout.nodes:
        folder = shown(layout.root)
        click.echo("nats-server has ended, and the others wait for it: start it again, or "
                   f"fedast federation down {folder}, then up {folder}")  # fmt: skip
    elif trouble is not None:
        click.echo(str(trouble))
    if answer is not None:
        _print_answer(answer)
    elif (layout.run / RESULT).is_file() and (down or isinstance(trouble, NoServer)):
        title = f"the last result, {shown(layout.run)}"
        Console(highlight=False).print(result_table(read_run(layout.run), title, "seconds"))
    for warning in warnings[:_LISTED]:
        click.echo(warning)
    if len(warnings) > _LISTED:
        click.echo(f"{len(warnings) - _LISTED} more certificates expire soon: "
                   f"fedast federation keys {shown(layout.root)}")  # fmt: skip
    click.echo(f"records: {shown(layout.run)}")


def _print_answer(answer: dict[str, Any]) -> None:
    here, wanted = answer["client_count"], answer.get("min_clients", 0)
    line = f"{answer['seconds']} s, {here} clients here"
    if not answer.get("began", True):
        line = f"{answer['seconds']} s, {here} of {wanted} clients here; training has not begun"
    click.echo(line + (", paused" if answer["paused"] else ""))
    for name, task in answer["tasks"].items():
        metric = "not evaluated yet" if task["metric"] is None else f"metric {task['metric']}"
        click.echo(
            f"  {name}: {metric}, round {task['round']}, "
            f"{task['updates']} updates, {task['in_flight']}/{task['requests']} requests out"
            + (f", finished ({task['finished']})" if task["finished"] else "")
        )
    if answer["quarantined"]:
        click.echo(f"  quarantined: {', '.join(map(str, answer['quarantined']))}")
