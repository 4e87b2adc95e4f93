"""Trackio: a run in its local store, on a server of one's own, or in a Hugging Face Space."""

from __future__ import annotations

import sys
import uuid
from contextlib import redirect_stdout
from typing import Any, ClassVar, final

from fedast.trackers.tracking import Row, Tracked, Tracker, TrackerOptions


class Trackio(TrackerOptions):
    """A Trackio run, in TRACKIO_DIR or on a server; `trackio show` shows it."""

    name: ClassVar[str] = "trackio"
    package: ClassVar[str] = "trackio"
    project: str = "fedast"
    space: str | None = None
    """A Hugging Face Space to log to."""
    server: str | None = None
    """The address of a Trackio server to log to."""

    def tracker(self) -> Tracker:
        return _Trackio(self.project, self.space, self.server)


@final
class _Trackio:
    def __init__(self, project: str, space: str | None, server: str | None) -> None:
        self._project = project
        self._space = space
        self._server = server
        self._run: Any = None

    def begin(self, run: Tracked) -> str:
        import trackio

        with redirect_stdout(sys.stderr):  # a command's output may be JSON for another program
            self._run = trackio.init(
                project=self._project,
                name=run.known_as or f"{run.name}-{uuid.uuid4().hex[:6]}",
                config=dict(run.parameters),
                resume="allow" if run.known_as is not None else "never",
                space_id=self._space,
                server_url=self._server,
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return str(self._run.name)

    def send(self, row: Row) -> None:
        self._run.log(dict(row.values), step=row.step)

    def end(self, *, interrupted: bool) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()
