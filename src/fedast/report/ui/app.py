"""What the browser is answered. Records are named by numbers, never by paths, and the files of the
page are a fixed set, so there is no path that could lead out of a folder.

Only who has the token of the address gets in; it is kept in a cookie after the first visit. Names
of other hosts are refused, so that a page elsewhere cannot reach this one through its own name.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import mimetypes
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedast.report.looks import colour_of, display_name
from fedast.report.ui.compare import compared
from fedast.report.ui.detail import detail
from fedast.report.ui.find import Found
from fedast.report.ui.library import Library
from fedast.report.ui.sweep import sweep_detail
from fedast.version import __version__

AskFederation: TypeAlias = Callable[[Found], Mapping[str, Any]]
"""What the server of the federation in a folder says; asked with the key that can only ask."""

_HOSTS = ("127.0.0.1", "localhost")
_MOST_RUNS = 1000
_BEAT = 15.0
"""Seconds between two signs of life to a page that waits for news."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def page_files() -> dict[str, bytes]:
    """The files of the page by name."""
    folder = files("fedast.report.ui") / "static"
    return {
        entry.name: entry.read_bytes()
        for entry in folder.iterdir()
        if not entry.name.startswith(".")
    }


def make_app(library: Library, token: str, ask: AskFederation | None = None) -> Starlette:
    page = page_files()

    def asset(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in page:
            return _refused(404, "there is no such page")
        kind = mimetypes.guess_type(name)[0] or "text/plain"
        return Response(page[name], media_type=kind)

    def runs(request: Request) -> Response:
        since = _number(request, "since", -1)
        version, rows, gone = library.summaries(since)
        return _json({
            "version": version, "ready": library.ready, "fedast": __version__, "runs": rows,
            "gone": gone, "folders": [str(root) for root in library.roots],
            "algorithms": _looks({str(row["algorithm"]) for row in rows if row.get("algorithm")}),
            "sweeps": [{"id": found.id, "name": found.name} for found in library.sweeps()],
            "federations": [{"id": f.id, "name": f.name} for f in library.federations()],
        })  # fmt: skip

    def keys(request: Request) -> Response:
        key = request.query_params.get("key")
        return _json(library.keys() if key is None else library.column(key))

    def run(request: Request) -> Response:
        with library.record(request.path_params["id"]) as (record, history):
            return _json(detail(record, history))

    def sweep(request: Request) -> Response:
        found = library.sweep(request.path_params["id"])
        return _json(sweep_detail(found, library.ids()))

    def config(request: Request) -> Response:
        return _json({number: library.config(number) for number in _ids(request)})

    def compare(request: Request) -> Response:
        query = request.query_params
        by = [key for key in query.get("by", "").split(",") if key]
        return _json(
            compared(
                library, _ids(request), by, query.get("axis", "t"), query.get("value", "value"),
                query.get("band", "range"),
            )
        )  # fmt: skip

    async def federation(request: Request) -> Response:
        found = library.federation(request.path_params["id"])
        if ask is None:
            return _json({"name": found.name, "trouble": "federations cannot be asked here"})
        return _json({"name": found.name, **await run_in_threadpool(ask, found)})

    async def news(request: Request) -> Response:
        return StreamingResponse(_news(library, request), media_type="text/event-stream")

    app = Starlette(
        routes=[
            Route("/", asset),
            Route("/static/{name}", asset),
            Route("/api/runs", runs),
            Route("/api/keys", keys),
            Route("/api/run/{id}", run),
            Route("/api/sweep/{id}", sweep),
            Route("/api/config", config),
            Route("/api/compare", compare),
            Route("/api/federation/{id}", federation),
            Route("/api/news", news),
        ],
        exception_handlers={KeyError: _gone},
    )
    app.add_middleware(Doorkeeper, token=token)
    return app


async def _news(library: Library, request: Request) -> AsyncIterator[str]:
    """An event whenever something has changed; the page then asks for what it shows."""
    version = _number(request, "since", -1)
    yield f"retry: 1000\ndata: {json.dumps({'version': library.version})}\n\n"
    waited = 0.0
    while not library.ended and not await request.is_disconnected():
        # The wait is short, so that nobody holds a thread, or up the end of the program, for long.
        await asyncio.sleep(0.2)
        waited += 0.2
        if library.version != version:
            version = library.version
            waited = 0.0
            yield f"data: {json.dumps({'version': version})}\n\n"
        elif waited >= _BEAT:
            waited = 0.0
            yield ": still here\n\n"


class Doorkeeper:
    """Lets in who has the token, under a name of this machine, and adds the headers of safety."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), text.encode()) for name, text in _HEADERS.items()),
                ]
            await send(message)

        request = Request(scope)
        answer = self._refusal(request)
        await (answer or self._app)(scope, receive, safely)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if host.rpartition(":")[0] not in _HOSTS and host not in _HOSTS:
            return _refused(403, "this page is only for this machine, by the name 127.0.0.1")
        if request.method not in ("GET", "HEAD"):
            return _refused(405, "this page is only for reading")
        cookie = f"fedast-{request.url.port}"  # cookies do not tell ports apart
        if "token" in request.query_params and request.url.path == "/":
            if not self._right(request.query_params["token"]):
                return _refused(
                    403, "the token in the address is wrong; fedast ui prints the address"
                )
            door = RedirectResponse("/", 303)
            door.set_cookie(cookie, self._token, httponly=True, samesite="lax")
            return door
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not self._right(request.cookies.get(cookie, "")) and not self._right(bearer):
            return _refused(
                403, "open this page by the address that fedast ui has printed: it has a token"
            )
        site = request.headers.get("sec-fetch-site", "none")
        if site not in ("same-origin", "none") and request.url.path != "/":
            return _refused(403, "another page asks for this")
        return None

    def _right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _looks(algorithms: set[str]) -> dict[str, dict[str, str]]:
    """How algorithms are written and drawn, as in every figure."""
    return {
        name: {"name": display_name(name), "color": colour_of(name)} for name in sorted(algorithms)
    }


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(why + "\n", status)


def _gone(request: Request, error: Exception) -> Response:
    return _refused(404, "there is no such record any more")


def _json(content: Any) -> Response:
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False, default=str)
    except ValueError:  # a configuration may say inf, which JSON cannot
        text = json.dumps(_finite(content), separators=(",", ":"), allow_nan=False, default=str)
    return Response(text, media_type="application/json")


def _finite(content: Any) -> Any:
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, list | tuple) else content


def _number(request: Request, name: str, default: int) -> int:
    try:
        return int(request.query_params.get(name, default))
    except ValueError:
        return default


def _ids(request: Request) -> list[str]:
    given = request.query_params.get("runs", "").split(",")
    return list(dict.fromkeys(number for number in given if number))[:_MOST_RUNS]
