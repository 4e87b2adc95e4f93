"""``fedast federation`` and ``ctl``: a real federation from the shell."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

import click
from rich.console import Console

from fedast.cli import control
from fedast.cli.loading import load_resolved, trackers
from fedast.cli.logfiles import log_files, log_to, readable, show
from fedast.cli.processes import Processes, by_hand
from fedast.cli.programs import serve
from fedast.cli.starting import over
from fedast.cli.ui import page_for
from fedast.cli.waiting import Waiting
from fedast.config.elsewhere import text_for_copy
from fedast.federation.nats.connection import Credentials, NobodyThere, connect
from fedast.federation.nats.names import CONTROL_INBOX
from fedast.federation.nats.setup import CONTROL, SERVER, Layout, client_name, initialise
from fedast.federation.transport import TransportError
from fedast.federation.transports import Nats
from fedast.parts.errors import ConfigError

_ALERTS = "alerts.yml"
_PATIENCE = 15.0
"""Seconds in which nats-server must answer after it was started."""
_DETACHED = 120.0
"""Seconds that ``up --detach`` waits for the server."""


# --- setting up ---------------------------------------------------------------------------------


def init(
    folder: str,
    *,
    clients: int,
    config: str | None,
    hosts: Sequence[str],
    port: int,
    nodes: Sequence[str],
) -> None:
    layout = Layout(Path(folder))
    if layout.root.exists():
        raise ConfigError("", f"{folder} exists already; choose another folder")
    if len(nodes) not in (0, 3, 5) or len(set(nodes)) < len(nodes):
        raise ConfigError(
            "--node",
            "give three or five different nodes",
        )
    if nodes and hosts:
        raise ConfigError("--host", "not with --node, which names the hosts of a cluster")
    if config is None:
        text = (files("fedast.run") / "federation.toml").read_text()
        text = text.replace("CLIENTS", str(clients)).replace("REQUESTS", str(2 * clients))
        if nodes:
            text = text.replace("[federation]\n", f"[federation]\nreplicas = {len(nodes)}\n")
    else:
        resolved = load_resolved(config, ())
        federation = resolved.federation
        if federation.transport.name != Nats.name:
            raise ConfigError("federation.transport", "fedast federation is for NATS only; start "
                              "fedast serve and fedast client yourself")  # fmt: skip
        replicas = federation.replicas
        if nodes and replicas < 3:
            raise ConfigError("federation.replicas", f"is {replicas}; for a cluster set it to 3")
        text = text_for_copy(Path(config), resolved)
    hosts = hosts or ("localhost", "127.0.0.1")
    initialise(layout, clients, hosts=hosts, port=port, config=text, nodes=nodes)
    (layout.root / _ALERTS).write_text(alerts())
    click.echo(f"{folder}: keys for {clients} clients, configuration of nats-server and fedast")
    if not nodes and 'host: "127.0.0.1"' in layout.nats_config.read_text():
        click.echo("nats-server will listen on this machine only (127.0.0.1); for clients on "
                   "others, name it with --host")  # fmt: skip
    if nodes:
        click.echo(f"Now copy each folder of {layout.nats} to its machine: docs/federation.md")
    else:
        click.echo(f"Now: fedast federation up {folder}")


def alerts() -> str:
    """Alert rules for Prometheus."""
    return (files("fedast.federation") / _ALERTS).read_text()


def nats_server() -> str:
    """The one on the PATH, else the one that the deploy extra installed."""
    beside = Path(sys.executable).with_name("nats-server")
    found = shutil.which("nats-server") or (str(beside) if beside.exists() else None)
    if found is None:
        raise ConfigError(
            "", "nats-server is not installed; install fedast[deploy], or put it on the PATH"
        )
    return found


def layout_of(folder: str) -> Layout:
    layout = Layout(Path(folder).absolute())
    if not layout.nats_config.is_file():
        raise ConfigError("", f"{folder} is not a federation; see fedast federation init")
    return layout


# --- up and down --------------------------------------------------------------------------------


def up(
    folder: str,
    *,
    local: int | None,
    detach: bool,
    ui: bool,
    quiet: bool,
    track: Sequence[str] = (),
) -> None:
    layout = layout_of(folder)
    trackers(track)  # before anything is started
    with page_for(folder if ui else None) as page:
        _up(folder, layout, local=local, detach=detach, quiet=quiet, track=track)
        page.stay()


def _up(
    folder: str,
    layout: Layout,
    *,
    local: int | None,
    detach: bool,
    quiet: bool,
    track: Sequence[str],
) -> None:
    if layout.nodes:
        raise ConfigError("", f"{folder} is a cluster; start each node on its own machine")
    processes = processes_of(layout)
    if processes.alive():
        raise ConfigError("", f"{folder} is up already; fedast federation down {folder}")
    if not layout.separated:
        click.echo(f"{folder}: made by an earlier version; its clients share one account of NATS, "
                   "where one of them could harm the others. Give each its own: "
                   f"fedast federation upgrade {folder}", err=True)  # fmt: skip
    for name, pid in by_hand(layout.root).items():
        if name in ("nats", SERVER):
            raise ConfigError("", f"{name} of {folder} was started by hand (process {pid}); end "
                              "it first")  # fmt: skip
    clients = layout.clients if local is None else layout.clients[:local]
    layout.logs.mkdir(exist_ok=True)
    log_to(None if detach else layout.logs / "server.log", terminal=False)
    over()
    click.echo(f"records: {control.shown(layout.run)}, logs: {control.shown(layout.logs)}")
    fedast = [sys.executable, "-m", "fedast"]

    def start(name: str, command: Sequence[str]) -> None:
        log = layout.logs / f"{name}.log"
        own = [*command, "--server", control.url(layout), "--creds", str(layout.credentials(name)),
               "--log", str(log), str(layout.config)]  # fmt: skip
        output = log.with_suffix(".out")
        output.unlink(missing_ok=True)
        processes.start(name, [*fedast, *own], output)

    with Waiting(Console(highlight=False), quiet=quiet) as waiting:
        try:
            waiting("starting nats-server")
            _start_nats(layout, processes)
            waiting(f"starting {len(clients)} clients")
            for client in clients:
                start(client_name(client), ["client"])
            if detach:
                tracked = [f"--track={name}" for name in track]
                start(SERVER, ["serve", "--out", str(layout.run), "--quiet", *tracked])
                _wait_for_server(folder, layout, processes, waiting)
                return
            processes.record(SERVER, os.getpid())
            serve(
                str(layout.config),
                servers=(control.url(layout),),
                creds=str(layout.credentials(SERVER)),
                out=str(layout.run),
                quiet=quiet,
                track=track,
                log=str(layout.logs / "server.log"),
                clients=layout.clients,
                waiting=waiting,
                trouble=lambda: _ended(folder, processes, map(client_name, clients)),
            )
        finally:
            if not detach:
                _down(layout)


def _start_nats(layout: Layout, processes: Processes) -> None:
    """Start nats-server and wait until it lets us in."""
    output = layout.logs / "nats.log"
    nats = processes.start(
        "nats", [nats_server(), "-c", layout.nats_config.name], output, layout.nats
    )

    async def probe() -> None:
        keys = Credentials(layout.credentials(CONTROL))
        connection = await connect(
            [control.url(layout)], keys, name="probe", inbox_prefix=CONTROL_INBOX, patience=0
        )
        await connection.close()

    end = time.monotonic() + _PATIENCE
    while True:
        try:
            asyncio.run(probe())
            return
        except TransportError as error:
            ended = nats.poll() is not None
            if not ended and isinstance(error, NobodyThere) and time.monotonic() < end:
                time.sleep(0.1)
                continue
            nats.terminate()
            said = _last_line(layout, "nats") if ended else str(error)
            what = "nats-server has ended" if ended else "nats-server does not answer"
            raise ConfigError("", f"{what} ({said}); more: fedast federation logs "
                              f"{control.shown(layout.root)} nats") from None  # fmt: skip


def _last_line(layout: Layout, name: str) -> str:
    lines = [
        line
        for path in log_files(layout).get(name, [])
        for line in path.read_text(errors="replace").splitlines()
    ]
    return readable(lines[-1]) if lines else "without a word"


def _ended(folder: str, processes: Processes, names: Iterable[str]) -> str:
    """Which of these are not running, and where to look."""
    gone = sorted(set(names) - set(processes.alive()))
    if not gone:
        return ""
    few = ", ".join(gone[:3]) + (" and others" if len(gone) > 3 else "")
    return f"; {len(gone)} ended ({few}): fedast federation logs {folder} {gone[0]}"


def _wait_for_server(folder: str, layout: Layout, processes: Processes, waiting: Waiting) -> None:
    """Wait until the detached server answers, and say what it says."""
    end = time.monotonic() + _DETACHED
    waiting("waiting for the server")
    while time.monotonic() < end:
        if SERVER not in processes.alive():
            raise ConfigError("", f"the server has ended ({_last_line(layout, SERVER)}); more: "
                              f"fedast federation logs {folder} server")  # fmt: skip
        try:
            control.ask(layout, "status")
            break
        except TransportError:
            time.sleep(0.2)
    waiting("")
    click.echo(f"up in the background: fedast federation status {folder}, logs -f {folder}, "
               f"down {folder}")  # fmt: skip


def processes_of(layout: Layout) -> Processes:
    return Processes(layout.root / "processes.json")


def _down(layout: Layout) -> None:
    """Clients and server first, so that they can say goodbye; then NATS."""
    processes = processes_of(layout)
    processes.end([name for name in processes.alive() if name != "nats"])
    processes.end(["nats"])
    processes.forget()


def down(folder: str) -> None:
    layout = layout_of(folder)
    count = len(processes_of(layout).alive())
    _down(layout)
    click.echo(f"{count} processes ended; `up` continues" if count else "nothing was running that "
               "`up` had started")  # fmt: skip
    for name, pid in by_hand(layout.root).items():
        click.echo(f"{name} was started by hand and is still running: kill {pid}")


def status(folder: str, as_json: bool) -> None:
    layout = layout_of(folder)
    control.status(layout, processes_of(layout).alive(), as_json)


def logs(folder: str, name: str | None, lines: int, follow: bool) -> None:
    show(layout_of(folder), name, lines, follow)


def ctl(folder: str, verb: str, argument: str) -> None:
    control.command(layout_of(folder), verb, argument)
