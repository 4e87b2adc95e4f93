"""Calls of Flower that may block for a long time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(do: Callable[[], T]) -> T:
    """Run this in a daemon thread: Flower may block it for hours, which must not delay our exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_unless_done(set_it: Callable[[], None]) -> None:
        if not future.done():
            set_it()

    def work() -> None:
        try:
            found = do()
        except BaseException as error:  # Flower ends runs with one of these
            reason = error
            outcome = lambda: future.set_exception(reason)  # noqa: E731
        else:
            outcome = lambda: future.set_result(found)  # noqa: E731
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(set_unless_done, outcome)

    threading.Thread(target=work, daemon=True).start()
    return await future
