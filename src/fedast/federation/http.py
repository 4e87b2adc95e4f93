"""``/metrics``, ``/healthz``, ``/readyz`` and ``/status`` over HTTP, from threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from fedast.federation.health import Check, Monitor, as_json

_JSON = "application/json; charset=utf-8"
_PATIENCE = 10
"""Seconds for a request, so that an idle connection does not occupy a thread."""


def serve_http(
    monitor: Monitor, registry: CollectorRegistry, port: int, address: str
) -> Callable[[], None]:
    """Serve until the result is called; ``OSError`` if the port is taken."""

    def answer(path: str) -> tuple[int, str, bytes]:
        match path:
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
            case "/healthz":
                return _checked(monitor.health())
            case "/readyz":
                return _checked(monitor.readiness())
            case "/status":
                return 200, _JSON, monitor.status().encode()
            case _:
                return 404, "text/plain", b"there are /metrics, /healthz, /readyz and /status\n"

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_GET(self) -> None:
            status, kind, body = answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing: the server's log should not have a line for every scrape."""

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(2)

    return end


def _checked(checks: list[Check]) -> tuple[int, str, bytes]:
    good = all(check.good for check in checks)
    return 200 if good else 503, _JSON, as_json(checks).encode()
