"""``fedast ui``, and ``--ui`` of other commands, which start it as a process of its own: a run
must not wait for a page, nor a page for a run."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, final

import click

from fedast.report.ui.find import Found

_AGAIN = 1.0
"""Seconds for which an answer of a federation's server is good."""
_DOWN = 4.0
"""The same, if there was none."""
_PATIENCE = 30.0
"""Seconds in which the page must be there."""


def show(folders: Sequence[str], *, port: int | None, browser: bool, attached: bool) -> None:
    """Serve until Ctrl-C; ``attached``: until the standard input ends."""
    from fedast.report.ui.library import Library
    from fedast.report.ui.server import serving

    logging.getLogger("asyncio").setLevel(logging.ERROR)  # about connections to federations
    library = Library([Path(folder) for folder in folders])
    with serving(library, port, Federations()) as (address, joined):
        if attached:
            print(address, flush=True)
            sys.stdin.read()
            return
        click.echo(f"{', '.join(folders)}: {address}")
        if library.wait_for_first_look(2.0) and library.empty:
            click.echo("no runs there yet; they are shown as soon as there are")
        if browser:
            open_browser(address)
        click.echo("Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            joined()


def open_browser(address: str) -> None:
    """Where somebody can see it."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if display or sys.platform in ("darwin", "win32"):
        with suppress(webbrowser.Error):
            webbrowser.open(address)


@final
class Federations:
    """Asks the servers of federations, but none of them more often than once a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def __call__(self, found: Found) -> Mapping[str, Any]:
        with self._lock:
            until, answer = self._answers.get(found.id, (0.0, {}))
            if time.monotonic() < until:
                return answer
            answer = _asked(found.path)
            good = _DOWN if answer.get("status") is None else _AGAIN
            self._answers[found.id] = time.monotonic() + good, answer
            return answer


def _asked(folder: Path) -> Mapping[str, Any]:
    try:
        from fedast.cli.control import ask
        from fedast.federation.nats.setup import Layout
        from fedast.federation.transport import TransportError
        from fedast.parts.errors import ConfigError
    except ModuleNotFoundError as error:
        return {"trouble": f"{error.name} is missing; install fedast[deploy] to see federations"}
    layout = Layout(folder)
    try:
        return {"status": json.loads(ask(layout, "status")), "keys": len(layout.clients)}
    except (TransportError, ConfigError, OSError, ValueError) as error:
        return {"trouble": str(error), "keys": len(layout.clients)}


def new_folder() -> str:
    """For the records of a run that is to be watched, if nobody has said where they should go."""
    folder = tempfile.mkdtemp(prefix="fedast-")
    _say(f"records: {folder} (choose a folder with --out)")
    return folder


# --- for other commands -------------------------------------------------------------------------


@final
class Page:
    """The page of a command that is running."""

    def __init__(self, process: subprocess.Popen[str] | None, address: str) -> None:
        """None: there is no page."""
        self._process = process
        self._address = address

    def stay(self) -> None:
        """The command's work is done: at a terminal, go on until Ctrl-C."""
        if self._process is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return
        _say(f"the page stays open: {self._address} (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            self._process.wait()


@contextmanager
def page_for(folder: str | None) -> Iterator[Page]:
    """Show a folder while something is done; None: do not."""
    if folder is None:
        yield Page(None, "")
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    process, address = _started(folder)
    _say(f"watch it: {address}")
    open_browser(address)
    try:
        yield Page(process, address)
    finally:
        _ended(process)
        _say(f"see it again: fedast ui {folder}")


def _started(folder: str) -> tuple[subprocess.Popen[str], str]:
    import uvicorn  # noqa: F401  missing: say so before the work begins

    process = subprocess.Popen(
        [sys.executable, "-m", "fedast", "ui", folder, "--no-browser", "--attached"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the run; the page ends after it
    )
    address = _line(process.stdout)
    if not address:
        _ended(process)
        raise click.ClickException("the page could not be started; leave out --ui")
    return process, address


def _line(source: IO[str] | None) -> str:
    found: list[str] = []
    assert source is not None
    reader = threading.Thread(target=lambda: found.append(source.readline().strip()), daemon=True)
    reader.start()
    reader.join(_PATIENCE)
    return found[0] if found else ""


def _ended(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _say(text: str) -> None:
    click.echo(text, err=True)
