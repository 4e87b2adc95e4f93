"""Tasks in the background, and their end."""

from __future__ import annotations

import asyncio

_SOON = 2.0
"""Seconds to wait for their end. (A cancellation can get lost in ``asyncio.wait_for``.)"""


async def end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel these and wait until they have ended; what they raise now is of no interest."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    for task in (await asyncio.wait(running, timeout=_SOON))[0] if running else ():
        if not task.cancelled():
            task.exception()  # nobody else is going to ask, and asyncio would print it
