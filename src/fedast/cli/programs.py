"""``fedast serve`` and ``fedast client``: the two programs of a federation."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from fedast.cli.live import LineView, LiveView
from fedast.cli.loading import load_resolved
from fedast.cli.logfiles import log_everything_to, log_to
from fedast.cli.starting import over
from fedast.cli.tables import result_table
from fedast.cli.waiting import Waiting
from fedast.federation.certificates import federation_of, visible
from fedast.federation.nats.setup import SERVER, Layout, client_name

_DAY = 24 * 3600.0


def _log(name: str, creds: str, log: str | None) -> None:
    """Log to the file that was asked for; else to the terminal, and to the logs of the federation's
    folder if the keys are in one and it can be written."""
    if log is not None:
        log_everything_to(Path(log))
        return
    root = federation_of(Path(creds))
    folder = None if root is None else Layout(root).logs
    writable = folder is not None and os.access(folder, os.W_OK)
    log_to(folder / f"{name}.log" if folder is not None and writable else None, terminal=True)


def serve(
    path: str,
    *,
    servers: Sequence[str],
    creds: str,
    out: str,
    quiet: bool,
    track: Sequence[str] = (),
    log: str | None = None,
    clients: Sequence[int] | None = None,
    waiting: Waiting | None = None,
    trouble: Callable[[], str] = lambda: "",
) -> None:
    """``waiting`` and ``trouble``: of ``up``, which has set up the log; the latter says what is
    wrong with those who are waited for."""
    console = Console(highlight=False)
    if waiting is None:
        _log(SERVER, creds, log)
    with ExitStack() as stack:
        wait = waiting or stack.enter_context(Waiting(console, quiet=quiet))
        wait("reading the configuration")
        from fedast.run.serve import endpoint_of, said_in
        from fedast.run.serve import serve as run_server

        config = load_resolved(path, (), track=track)
        known = range(config.simulation.clients) if clients is None else clients
        title = f"{config.algorithm.name} · a federation of {len(known)} clients"
        view: LiveView | LineView | None = None
        if not quiet:
            limits = {task.name or task.use: config.simulation.max_time for task in config.tasks}
            view = (
                LiveView(console, title, limits, "seconds")
                if console.is_terminal
                else LineView(click.echo, title)
            )

        def phase(text: str) -> None:
            waits = text.startswith("waiting for clients")
            wait(text + trouble() if waits else text)
            if not text and isinstance(view, LiveView):
                stack.enter_context(view)

        endpoint = endpoint_of(config, servers, Path(creds))
        watch = () if view is None else (view.watch,)
        result, finished = asyncio.run(
            run_server(
                config,
                endpoint,
                known,
                Path(out),
                said=said_in(Path(path)),
                watch=watch,
                started=_stop_on_signal,
                phase=phase,
            )
        )
        wait("")
    console.print(result_table(result, title, "seconds"))
    click.echo(f"records: {out}")
    if not finished:
        click.echo("stopped; start it again to continue")


def run_client(path: str, *, servers: Sequence[str], creds: str, log: str | None = None) -> None:
    over()
    from fedast.run.local_training import LocalTraining
    from fedast.run.serve import endpoint_of, take_part

    _log(Path(creds).name, creds, log)
    import torch

    torch.set_num_threads(1)
    config = load_resolved(path, ())
    client = config.federation.transport.client_number(Path(creds))
    threading.Thread(target=_watch_certificate, args=(creds, client), daemon=True).start()
    training = LocalTraining(config, client)
    endpoint = endpoint_of(config, servers, Path(creds))
    asyncio.run(take_part(config, endpoint, client, training, started=_stop_on_signal))


def _watch_certificate(creds: str, client: int) -> None:
    """Warn, every day, if this client's certificate expires soon: nobody else may see it."""
    while True:
        for certificate in visible(Path(creds)):
            if certificate.soon and certificate.name == client_name(client):
                logging.getLogger("fedast.client").warning("%s", certificate.warning())
        time.sleep(_DAY)


def _stop_on_signal(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
