"""Saying what is being waited for: a line that changes in a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from fedast.cli.starting import over

_QUICK, _SLOW, _LONG = 2.0, 30.0, 30.0
"""Elsewhere: seconds between two lines, at first and when it has taken long."""


@final
class Waiting:
    """Call it with what is being waited for, and with "" when the waiting is over. Nobody
    need look at a screen on which nothing happens. Use as a context."""

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool = False,
        over: Callable[[], None] = lambda: None,
    ) -> None:
        """``over`` is called, once, when the waiting is over."""
        self._console = console
        self._quiet = quiet
        self._over = over
        self._text = ""
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._status: Status | None = None

    def __enter__(self) -> Waiting:
        over()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def __call__(self, text: str) -> None:
        with self._lock:
            changed, self._text = text != self._text, text
        if self._ended.is_set() or not changed:
            return
        if not text:
            self._stop()
            self._over()
        elif self._quiet:
            pass
        elif self._console.is_terminal:
            if self._status is None:
                self._status = Status(self, console=self._console)
                self._status.start()
        else:
            self._line()
            if threading.current_thread() is threading.main_thread():
                self._tick()

    def __rich__(self) -> Text:
        return Text(self._now())

    def _now(self) -> str:
        with self._lock:
            return f"{self._text} ({time.monotonic() - self._began:.0f} s)"

    def _line(self) -> None:
        self._console.print(self._now(), markup=False, soft_wrap=True)

    def _tick(self) -> None:
        if self._ticking:
            return
        self._ticking = True

        def tick() -> None:
            every = _QUICK
            while not self._ended.wait(every):
                self._line()
                if time.monotonic() - self._began > _LONG:
                    every = _SLOW

        threading.Thread(target=tick, daemon=True).start()

    _ticking = False

    def _stop(self) -> None:
        self._ended.set()
        if self._status is not None:
            self._status.stop()
            self._status = None
