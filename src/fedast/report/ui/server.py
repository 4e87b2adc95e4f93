"""Serving the page: a port of the loopback address, a token, and uvicorn until it is stopped."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from fedast.parts.errors import ConfigError
from fedast.report.ui.app import AskFederation, make_app
from fedast.report.ui.library import Library

PORT = 8437
HOST = "127.0.0.1"


def listen(port: int | None) -> socket.socket:
    """A socket on this port; without one, on the usual port or, if that is taken, on any."""
    for candidate in (PORT, 0) if port is None else (port,):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((HOST, candidate))
            found.listen(128)
            return found
        except OSError as error:
            found.close()
            if port is not None:
                raise ConfigError(
                    "--port",
                    f"{port} cannot be used ({error.strerror}); choose another, or leave it out "
                    "to take any that is free",
                ) from error
    raise ConfigError("--port", f"no port of {HOST} can be used")


@contextmanager
def serving(
    library: Library, port: int | None = None, ask: AskFederation | None = None
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Serve in a thread. Gives the address, with its token, and a function that waits until the
    server has ended."""
    token = secrets.token_urlsafe(24)
    door = listen(port)
    config = uvicorn.Config(
        make_app(library, token, ask),
        log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([door],), name="fedast-ui", daemon=True)
    with library:
        thread.start()
        try:
            yield f"http://{HOST}:{door.getsockname()[1]}/?token={token}", thread.join
        finally:
            server.should_exit = True
            thread.join(10)
            door.close()
